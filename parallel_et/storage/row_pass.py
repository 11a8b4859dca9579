"""One file of rows, made by all ranks piece by piece: its lock, what there is of it, progress, and stopping well."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.control.signals import STOPPED, stops
from parallel_et.control.stopping import Stopping, Wish
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.storage.lock import Lock
from parallel_et.storage.output import Output, Table, discard, open_output
from parallel_et.storage.row_tables import Span


class StoppedError(Exception):
    """Somebody wished to stop."""


class GivenUpError(Exception):
    """A range is not done to its end, as this rank is to stop."""


class Sweep:
    """Work on ranges, dealt out to the ranks in contiguous runs, into one file; all ranks call its methods together.

    Parameters
    ----------
    output : the file
    fresh : start over, whatever is there
    quiet : print errors only
    max_time : seconds since the start of the process after which to stop
    """

    def __init__(self, ranks: Ranks, output: str, fresh: bool, quiet: bool, max_time: float | None) -> None:
        self.ranks, self.output, self.path, self.fresh = ranks, output, Path(output), fresh
        self.report = Reporter(ranks.is_root, quiet)
        self.stopping = Stopping(max_time)
        ranks.limit_threads()

    def run(self, work: Callable[[], str]) -> int:
        """Do the work, alone on its file, until it is done or to stop; returns the exit code.

        ``work`` returns what to add to the name of the file for that of the table that it has written.
        """
        lock = Lock(Path(f"{self.output}.lock"), self.output, self.report.say)
        self.ranks.from_root(lock.take)
        try:
            with stops("as soon as what it is at is written"):
                table = work()
        except StoppedError as early:
            again = " without --fresh" if self.fresh and self._part.exists() else ""
            self.report.say(f"{early}; the same command{again} goes on")
            return STOPPED
        finally:
            lock.release()
        self.report.say(f"result: {self.output}{table}")
        return 0

    @property
    def _part(self) -> Path:
        """What there is of an output that was interrupted."""
        return Path(f"{self.output}.part")

    def refuse_taken(self) -> None:
        """Do not begin, on the root, what could not be written in the end."""
        if self.path.is_dir():
            raise UserError(f"{self.output}: expected a file, found a directory")
        if not self.fresh and self.path.exists() and not self._part.exists():  # else it is being written anew
            raise UserError(f"{self.output}: expected a name that is not taken, found a file; --fresh writes it anew")

    def open(
        self, tables: Mapping[str, Table], about: Mapping[str, Any], arrays: Mapping[str, np.ndarray] = {}
    ) -> Output:
        """The file to write, or what there is of it."""

        def look() -> None:
            self.refuse_taken()
            if self.fresh:
                discard(self.path)

        self.ranks.from_root(look)
        return open_output(self.path, tables, self.ranks, about, arrays=arrays)

    def fill(
        self,
        output: Output,
        groups: tuple[int, int],
        make: Callable[[int, int], Mapping[str, np.ndarray]],
        unit: str = "points",
        does: str = "written",
    ) -> None:
        """Write the rows that are not yet there as ``make(first, last)`` gives them; for ``groups`` see ``pieces``."""

        def work(first: int, last: int) -> None:
            rows = make(first, last)
            try:
                output.write(first, rows)
            except OSError as error:
                raise UserError(f"{output.path}: expected room to write, found {error.strerror}") from None

        self.over(pieces(output.rows, *groups, output.written), output.rows, unit, does, work)

    def between(self) -> None:
        """Give up the range that is being done if this rank is to stop: with many images it may take long."""
        if self.stopping.wish(0.0):
            raise GivenUpError

    def over(self, todo: Sequence[Span], total: int, unit: str, does: str, work: Callable[[int, int], None]) -> None:
        """Call ``work(first, last)`` for all ranges, those missing of ``total``; what it ``does`` is told with them."""
        ranks, longest = self.ranks, 0.0
        done = total - count_rows(todo)
        mine = todo[len(todo) * ranks.rank // ranks.size : len(todo) * (ranks.rank + 1) // ranks.size]
        self.report.begin(total, done, unit=unit)
        for turn in range(-(-len(todo) // ranks.size)):
            begun, count = time.monotonic(), 0
            with ranks.together(), suppress(GivenUpError):
                if turn < len(mine):
                    work(*mine[turn])
                    count = mine[turn][1] - mine[turn][0]
            longest = max(longest, time.monotonic() - begun)
            count = ranks.total(count)
            done += count
            line = f"{does} {done} of {total} {unit}".lstrip()
            if count:
                self.report.step(done, line)
            if done < total and (wish := Wish(ranks.either(self.stopping.wish(1.2 * longest)))):
                where = f": {line}" if does else f" after {done} {unit}"
                raise StoppedError(f"stopped by {wish.words()}{where}")


def pieces(rows: int, group: int, size: int, written: Sequence[Span] = ()) -> list[Span]:
    """The rows in groups of ``group``, without those that are written, side by side in pieces of at most ``size``."""
    found: list[Span] = []
    for first in range(0, rows, group):
        last = min(first + group, rows)
        if any(a <= first and last <= b for a, b in written):
            continue
        if found and found[-1][1] == first and last - found[-1][0] <= size:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def count_rows(spans: Sequence[Span]) -> int:
    """How many rows there are in ranges that do not overlap."""
    return sum(last - first for first, last in spans)
