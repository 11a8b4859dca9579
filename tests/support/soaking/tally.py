"""Counts of disturbances, of lost runs, and of results with other bits."""

import sys
import time
from collections import Counter
from threading import Event, Lock

COMPARED = "compared at the end"


class EndingError(Exception):
    """The soak ends now."""


class Tally:
    """Counts for all workers of a soak; a line of progress on a terminal, plain lines elsewhere."""

    def __init__(self, goal: int) -> None:
        self.goal = goal
        self.made: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.late = 0
        self.ending = Event()
        self._started, self._lock = time.monotonic(), Lock()
        self._terminal = sys.stdout.isatty()

    def add(self, kind: str) -> None:
        """Count a disturbance, or a comparison."""
        with self._lock:
            self.made[kind] += 1
            if self._terminal:
                print(f"\r{self.progress()}\x1b[K", end="", flush=True)

    def note(self, kind: str, seconds: float, words: str) -> None:
        """Print a line on a disturbance, in a batch log."""
        if not self._terminal:
            self.say(f"{self.disturbances:4d} of {self.goal}  {seconds:5.1f} s  {kind}: {words}")

    def complain(self, counter: Counter[str], kind: str, words: str) -> None:
        """Count a failure and print it."""
        with self._lock:
            counter[kind] += 1
        self.say(f"WRONG: {kind}: {words}")

    def say(self, line: str) -> None:
        """Print a line."""
        with self._lock:
            print(f"\r{line}\x1b[K" if self._terminal else line, flush=True)

    @property
    def disturbances(self) -> int:
        """Disturbances made so far."""
        return self.made.total() - self.made[COMPARED]

    @property
    def good(self) -> bool:
        """True if no run was lost and all bits were the same."""
        return not (self.lost.total() or self.wrong.total())

    @property
    def seconds(self) -> float:
        """Seconds since the start of the soak."""
        return time.monotonic() - self._started

    def progress(self) -> str:
        """Return the counts so far in one line."""
        each = self.seconds / max(self.disturbances, 1)
        return (
            f"{self.disturbances} of {self.goal} disturbances, {each:.2f} s each, "
            f"{self.lost.total()} lost, {self.wrong.total()} with wrong bits"
        )

    def table(self) -> str:
        """Return the table of all kinds, and a line with totals and times."""
        width = max(map(len, [*self.made, "disturbance"]))
        kinds = sorted(self.made, key=lambda kind: (kind == COMPARED, kind))
        rows = [(kind, self.made[kind], self.lost[kind], self.wrong[kind]) for kind in kinds]
        rows.append(("all", self.made.total(), self.lost.total(), self.wrong.total()))
        lines = [f"{kind:<{width}}  {made:6d}  {lost:6d}  {wrong:10d}" for kind, made, lost, wrong in rows]
        head = f"{'disturbance':<{width}}  {'made':>6}  {'lost':>6}  {'wrong bits':>10}"
        late = f"; {self.late} more came too late, after the end" if self.late else ""
        return "\n".join([head, *lines, f"{self.progress()}, {self.seconds:.0f} s in all{late}"])
