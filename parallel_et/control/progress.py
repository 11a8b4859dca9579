"""Progress of a run: a bar on a terminal, lines in a batch log. Only the root prints."""

import shutil
import sys
import time
from collections.abc import Callable

from parallel_et.control.process import print_now

LINE_SECONDS = 5.0
"""Time between two lines of progress."""


class Reporter:
    """A reporter that prints lines, logs them, and shows the progress of long work."""

    def __init__(self, is_root: bool, quiet: bool) -> None:
        self.prints = is_root and not quiet
        self.shows_bar = self.prints and sys.stdout.isatty()
        self.is_root = is_root
        self.unwritten: list[str] = []
        self.write: Callable[[str], None] = self.unwritten.append
        self.bar_drawn = False

    def log_to(self, write: Callable[[str], None]) -> None:
        """Log with ``write`` from now on, starting with the earlier lines."""
        self.write = write
        for line in self.unwritten:
            write(line)

    def log(self, line: str) -> None:
        """Print a line and log it."""
        self._print(line)
        if self.is_root:
            self.write(line)

    def start(self, steps: int, done: int, points: int = 1, unit: str = "points") -> None:
        """Start the progress of work.

        Parameters
        ----------
        steps : steps in total
        done : steps that an earlier run has done
        points : points in a step, or other units
        unit : name of the unit
        """
        self.steps, self.done, self.points, self.unit = steps, done, points, unit
        self.started = time.monotonic()
        self.line_written = 0.0

    def update(self, done: int, line: str) -> None:
        """Show that ``done`` steps are done. From time to time, log the line."""
        now = time.monotonic()
        rate = (done - self.done) / max(now - self.started, 1e-9)
        line = f"{line}  {rate * self.points:.3g} {self.unit}/s"
        left = f"left {format_duration((self.steps - done) / rate)}"
        if now - self.line_written >= LINE_SECONDS or done == self.steps:
            self.line_written = now
            if self.is_root:
                self.write(f"{line}  {left}")
            if not self.shows_bar:
                self._print(f"{line}  {left}")
        if self.shows_bar:
            width = shutil.get_terminal_size().columns - 1
            bar = ("█" * (12 * done // self.steps)).ljust(12, "░")
            print_now(f"\r\033[K{f'{bar} {left}  {line}'[:width]}", end="")
            self.bar_drawn = True

    def _print(self, line: str) -> None:
        if self.prints:
            print_now(f"\n{line}" if self.bar_drawn else line)
            self.bar_drawn = False


def format_duration(seconds: float) -> str:
    """Return hours, minutes and seconds, such as "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
