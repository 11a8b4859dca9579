"""How a run tells of itself: a bar on a terminal, now and then a line in a batch log; only the root speaks."""

import shutil
import sys
import time
from collections.abc import Callable

from parallel_et.control.process import tell

EVERY = 5.0
"""Seconds between two lines of progress."""


class Reporter:
    """Prints, keeps a log of what was said, and shows the progress of long work."""

    def __init__(self, is_root: bool, quiet: bool) -> None:
        self.prints = is_root and not quiet
        self.bar = self.prints and sys.stdout.isatty()
        self.is_root = is_root
        self.unwritten: list[str] = []
        self.write: Callable[[str], None] = self.unwritten.append
        self.drawn = False

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

    def begin(self, steps: int, done: int, points: int = 1, unit: str = "points") -> None:
        """Work of so many steps begins, some of them done already; a step handles so many points, or other units."""
        self.steps, self.done, self.points, self.unit = steps, done, points, unit
        self.begun, self.said = time.monotonic(), 0.0

    def step(self, done: int, line: str) -> None:
        """So many steps are done: show it, and now and then write it down."""
        now = time.monotonic()
        rate = (done - self.done) / max(now - self.begun, 1e-9)
        line, left = f"{line}  {rate * self.points:.3g} {self.unit}/s", f"left {clock((self.steps - done) / rate)}"
        if now - self.said >= EVERY or done == self.steps:
            self.said = now
            if self.is_root:
                self.write(f"{line}  {left}")
            if not self.bar:
                self._print(f"{line}  {left}")
        if self.bar:
            width = shutil.get_terminal_size().columns - 1
            bar = ("█" * (12 * done // self.steps)).ljust(12, "░")
            tell(f"\r\033[K{f'{bar} {left}  {line}'[:width]}", end="")
            self.drawn = True

    def _print(self, line: str) -> None:
        if self.prints:
            tell(f"\n{line}" if self.drawn else line)
            self.drawn = False


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
