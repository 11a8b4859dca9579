"""How a run tells of itself: a bar on a terminal, now and then a line in a batch log."""

import sys
import time
from collections.abc import Callable

from parallel_et.em import Info
from parallel_et.models.base import Knobs, Params

EVERY = 5.0
"""Seconds between two lines where the output is not a terminal."""


class Progress:
    """Called after every iteration; silent except on the root."""

    def __init__(self, points: int, iterations: int, say: Callable[[str], None], quiet: bool) -> None:
        self.points, self.iterations, self.say = points, iterations, say
        self.bar = not quiet and sys.stdout.isatty()
        self.begun = self.said = time.monotonic()
        self.unused = 0

    def __call__(self, params: Params, knobs: Knobs, info: Info) -> None:
        now, done = time.monotonic(), knobs.iteration + 1
        if info.unused.sum() > self.unused:
            self.say(
                f"iteration {done}: {int(info.unused.sum())} of {len(info.unused)} causes unused, their fields kept"
            )
        self.unused = int(info.unused.sum())
        last = done == self.iterations
        rate = done / (now - self.begun) if now > self.begun else 0.0
        left = (self.iterations - done) / rate if rate else 0.0
        line = (
            f"iteration {done}/{self.iterations}  T {knobs.temperature:.3g}  free energy {info.free_energy:.5g}  "
            f"used {info.points_used}  sigma {float(params.sigma):.4g}  pi {float(params.pi):.4g}  "
            f"{rate * self.points:.3g} points/s  left {clock(left)}"
        )
        if self.bar:
            filled = 24 * done // self.iterations
            print(f"\r\033[K{'█' * filled}{'░' * (24 - filled)} {line}", end="\n" if last else "", flush=True)
        elif now - self.said >= EVERY or last or done == 1:
            self.say(line)
            self.said = now

    def leave(self) -> None:
        """End the line of the bar, where a run ended early."""
        if self.bar:
            print(flush=True)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
