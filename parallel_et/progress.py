"""How a run tells of itself: a bar on a terminal, now and then a line in a batch log; only the root speaks."""

import shutil
import sys
import time
from collections.abc import Callable

from parallel_et.em import Info
from parallel_et.models.base import Knobs, Params

EVERY = 5.0
"""Seconds between two lines of progress."""


class Reporter:
    """Prints, and keeps a log of what was said; called after every iteration it shows the progress."""

    def __init__(self, is_root: bool, quiet: bool) -> None:
        self.prints = is_root and not quiet
        self.bar = self.prints and sys.stdout.isatty()
        self.is_root = is_root
        self.unwritten: list[str] = []
        self.write: Callable[[str], None] = self.unwritten.append
        self.drawn = False
        self.unused = 0

    def log_to(self, write: Callable[[str], None]) -> None:
        """Log with ``write`` from now on, beginning with what was said before."""
        self.write = write
        for line in self.unwritten:
            write(line)

    def say(self, line: str) -> None:
        """Print a line and log it."""
        self._print(line)
        if self.is_root:
            self.write(line)

    def begin(self, points: int, iterations: int, done: int) -> None:
        """Training begins, with some iterations done already."""
        self.points, self.iterations, self.done = points, iterations, done
        self.begun = self.said = time.monotonic()

    def __call__(self, params: Params, knobs: Knobs, info: Info) -> None:
        now, done = time.monotonic(), knobs.iteration + 1
        unused = int(info.unused.sum())
        if unused > self.unused:
            self.say(f"iteration {done}: {unused} of {len(info.unused)} causes are unused, their fields are kept")
        self.unused = unused
        rate = (done - self.done) / max(now - self.begun, 1e-9)
        left = f"left {clock((self.iterations - done) / rate)}"
        line = (
            f"iteration {done}/{self.iterations}  T {knobs.temperature:.3g}  free energy {info.free_energy:.5g}  "
            f"used {info.points_used}  sigma {float(params.sigma):.4g}  pi {float(params.pi):.4g}  "
            f"{rate * self.points:.3g} points/s"
        )
        if now - self.said >= EVERY or done in (self.done + 1, self.iterations):
            self.said = now
            self.write(f"{line}  {left}")
            if not self.bar:
                self._print(f"{line}  {left}")
        if self.bar:
            width = shutil.get_terminal_size().columns - 1
            bar = ("█" * (12 * done // self.iterations)).ljust(12, "░")
            print(f"\r\033[K{f'{bar} {left}  {line}'[:width]}", end="", flush=True)
            self.drawn = True

    def _print(self, line: str) -> None:
        if self.prints:
            print(f"\n{line}" if self.drawn else line, flush=True)
            self.drawn = False


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
