"""A pass of all ranks over the rows of one file, with its lock, resumption, progress and stops."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.control.signals import EXIT_STOPPED, ctrl_c_reply
from parallel_et.control.stopping import Request, StopMonitor
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.storage.lock import Lock
from parallel_et.storage.output import Output, Table, discard, open_output
from parallel_et.storage.row_tables import RowRange


class StoppedError(Exception):
    """Raised on all ranks when the pass stops early."""


class GivenUpError(Exception):
    """Raised in the work on a range when this rank is to stop."""


class RowPass:
    """Work on ranges of rows for one output file; each rank gets contiguous ranges. All methods are collective.

    Parameters
    ----------
    output : the file
    fresh : discard an earlier output
    quiet : print errors only
    max_time : seconds after the start of the process at which to stop
    """

    def __init__(self, ranks: Ranks, output: str, fresh: bool, quiet: bool, max_time: float | None) -> None:
        self.ranks, self.output, self.path, self.fresh = ranks, output, Path(output), fresh
        self.reporter = Reporter(ranks.is_root, quiet)
        self.stopping = StopMonitor(max_time)
        ranks.limit_threads()

    def run(self, work: Callable[[], str]) -> int:
        """Run ``work`` under the lock of the file, and return the exit code.

        ``work`` returns the suffix that makes the name of the written table from the name of the file.
        """
        lock = Lock(Path(f"{self.output}.lock"), self.output, self.reporter.log)
        self.ranks.from_root(lock.take)
        try:
            with ctrl_c_reply("as soon as the current rows are written"):
                table = work()
        except StoppedError as early:
            again = " without --fresh" if self.fresh and self._part.exists() else ""
            self.reporter.log(f"{early}; the same command{again} resumes")
            return EXIT_STOPPED
        finally:
            lock.release()
        self.reporter.log(f"result: {self.output}{table}")
        return 0

    @property
    def _part(self) -> Path:
        """Return the path of an interrupted output."""
        return Path(f"{self.output}.part")

    def refuse_existing(self) -> None:
        """Refuse an output file that exists, before the work starts; on the root."""
        if self.path.is_dir():
            raise UserError(f"{self.output}: expected a file, found a directory")
        if not self.fresh and self.path.exists() and not self._part.exists():  # a part replaces the file in the end
            raise UserError(f"{self.output}: expected the name of a new file, found a file; --fresh replaces it")

    def open(
        self, tables: Mapping[str, Table], attributes: Mapping[str, Any], arrays: Mapping[str, np.ndarray] = {}
    ) -> Output:
        """Open the output file, or continue an interrupted one."""

        def check_or_discard() -> None:
            self.refuse_existing()
            if self.fresh:
                discard(self.path)

        self.ranks.from_root(check_or_discard)
        return open_output(self.path, tables, self.ranks, attributes, arrays=arrays)

    def fill(
        self,
        output: Output,
        groups: tuple[int, int],
        make: Callable[[int, int], Mapping[str, np.ndarray]],
        unit: str = "points",
        verb: str = "written",
    ) -> None:
        """Write the missing rows, which ``make(first, last)`` returns; ``groups`` are arguments of ``split_rows``."""

        def work(first: int, last: int) -> None:
            rows = make(first, last)
            try:
                output.write(first, rows)
            except OSError as error:
                raise UserError(f"{output.path}: expected space to write, found {error.strerror}") from None

        self.for_each(split_rows(output.rows, *groups, output.written), output.rows, unit, verb, work)

    def give_up_if_stopping(self) -> None:
        """Stop the work on the current range if this rank is to stop; a range with many images may take long."""
        if self.stopping.requested(0.0):
            raise GivenUpError

    def for_each(
        self, todo: Sequence[RowRange], total: int, unit: str, verb: str, work: Callable[[int, int], None]
    ) -> None:
        """Call ``work(first, last)`` for all ranges.

        Parameters
        ----------
        todo : the missing ranges of the ``total`` rows
        unit, verb : words of the progress lines, such as "written 5 of 10 points"
        """
        ranks, longest = self.ranks, 0.0
        done = total - count_rows(todo)
        mine = todo[len(todo) * ranks.rank // ranks.size : len(todo) * (ranks.rank + 1) // ranks.size]
        self.reporter.start(total, done, unit=unit)
        for turn in range(-(-len(todo) // ranks.size)):
            begun, count = time.monotonic(), 0
            with ranks.synchronise_errors(), suppress(GivenUpError):
                if turn < len(mine):
                    work(*mine[turn])
                    count = mine[turn][1] - mine[turn][0]
            longest = max(longest, time.monotonic() - begun)
            count = ranks.total(count)
            done += count
            line = f"{verb} {done} of {total} {unit}".lstrip()
            if count:
                self.reporter.update(done, line)
            if done < total and (request := Request(ranks.bitwise_or(self.stopping.requested(1.2 * longest)))):
                where = f": {line}" if verb else f" after {done} {unit}"
                raise StoppedError(f"stopped by {request.reasons()}{where}")


def split_rows(rows: int, group: int, size: int, written: Sequence[RowRange] = ()) -> list[RowRange]:
    """Return the unwritten rows as ranges of whole groups of ``group`` rows, with at most ``size`` rows per range."""
    found: list[RowRange] = []
    for first in range(0, rows, group):
        last = min(first + group, rows)
        if any(a <= first and last <= b for a, b in written):
            continue
        if found and found[-1][1] == first and last - found[-1][0] <= size:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def count_rows(spans: Sequence[RowRange]) -> int:
    """Return the number of rows in ranges that do not overlap."""
    return sum(last - first for first, last in spans)
