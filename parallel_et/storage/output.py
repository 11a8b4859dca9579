"""Tables of one row a point, written by all ranks, each the rows it has; an output that was cut short is continued."""

import errno
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shared_file import Farewell, keep
from parallel_et.storage.atomic import make_durable
from parallel_et.storage.journal import Journal, check_folder
from parallel_et.storage.row_tables import Span, Table, check_same, create, merged, place_for, read_rows
from parallel_et.storage.writers import WAYS, Direct, Mpio, Virtual, Writer, best_way, has_mpio

__all__ = ["WAYS", "Output", "Table", "best_way", "discard", "open_output", "read_rows"]

SYNC = 5.0
"""Seconds between two flushes to the disk: about what a rank that is killed loses."""


def discard(path: Path) -> None:
    """Remove what an interrupted output to ``path`` has left; a whole one stays, unless its rows are in pieces."""
    pieces, journal = path.with_name(f"{path.name}.parts"), Journal(path.with_name(f"{path.name}.part.journal"))
    check_folder(pieces, r"\d+-\d+\.(h5|\d+\.part)", "the pieces of an output")
    journal.check()
    if pieces.exists():
        path.unlink(missing_ok=True)
    for end in (".part", ".part.new"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    shutil.rmtree(pieces, ignore_errors=True)
    journal.clear()


def open_output(
    path: Path,
    tables: Mapping[str, Table],
    ranks: Ranks,
    about: Mapping[str, Any] = {},
    way: str | None = None,
    arrays: Mapping[str, np.ndarray] = {},
) -> "Output":
    """The output to a file, or what there is of it; all ranks call this together.

    Parameters
    ----------
    tables : name -> table; all with the same number of rows
    about : root attributes
    way : one of ``WAYS``, by default the best; a part that is continued keeps its own
    arrays : datasets of their own besides the tables, the same on all ranks
    """
    output = Output(path, tables, ranks, about, arrays)
    output._open(way)
    return output


class Output:
    """Tables of which each rank writes the rows it has, in one HDF5 file that is there as a whole or not at all.

    Until then it is ``<path>.part``, with ``<path>.part.journal`` that says which rows are safe. The way virtual keeps
    the rows in ``<path>.parts``, which belongs to the file also when it is whole. As a context manager it closes on
    success and abandons on an exception.

    Attributes
    ----------
    way : what is used
    written : ranges [first, last) of the rows that an earlier run has written, sorted and merged, on every rank
    """

    def __init__(
        self,
        path: Path,
        tables: Mapping[str, Table],
        ranks: Ranks,
        about: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        self.path, self.tables, self.about, self.arrays = Path(path), dict(tables), dict(about), dict(arrays)
        (self.rows,) = {table.shape[0] for table in tables.values()}
        self._ranks = ranks
        self._part, self._new, self._pieces, journal = (
            self.path.with_name(self.path.name + end) for end in (".part", ".part.new", ".parts", ".part.journal")
        )
        self._journal = Journal(journal)
        self._pending: list[Span] = []
        self._safe: list[Span] = []

    def _open(self, way: str | None) -> None:
        """Begin the part, or go on with the one that is there; collective."""
        ranks = self._ranks
        if way not in (None, *WAYS):
            raise UserError(f"way: expected {', '.join(WAYS)}, found {way}")
        begun = ranks.from_root(self._way_of_part)
        if begun is None and way == "mpio" and not has_mpio():
            raise UserError("way: expected an h5py built with MPI for mpio, found a serial one; make parallel-hdf5")
        self.way = begun or way or best_way(ranks, self.path.parent)
        if begun is None:
            ranks.from_root(self._begin)
        earlier, run = ranks.from_root(self._earlier)
        with ranks.together():
            if not self._part.exists():
                raise UserError(f"{self.path}: expected a folder that all nodes share, found it on the root's alone")
        self.written, self._earlier_rows = merged(earlier), earlier
        self._journal.begin(run, ranks.rank)
        with ranks.together():
            self._writer: Writer = (
                Virtual(self._pieces, self._part, self.tables, ranks.rank, self.arrays)
                if self.way == "virtual"
                else (Mpio if self.way == "mpio" else Direct)(self._part, self.tables, ranks)
            )
        self._farewell = Farewell(ranks)
        self._synced = time.monotonic()
        self._is_open = True

    def write(self, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write rows [first, first + n) of all tables; any rank, any number of times, whatever the others do."""
        if not self._is_open:
            raise ValueError(f"{self.path}: expected an open output, found it closed")
        count = len(arrays[next(iter(self.tables))])
        for name, table in self.tables.items():
            if np.shape(arrays[name]) != (count, *table.shape[1:]) or not 0 <= first <= first + count <= self.rows:
                raise ValueError(f"{name}: expected rows of {table.shape}, found {np.shape(arrays[name])} at {first}")
        if count:
            self._writer.write(first, {n: np.ascontiguousarray(arrays[n], t.dtype) for n, t in self.tables.items()})
            self._pending.append((first, first + count))
        if time.monotonic() - self._synced >= SYNC:
            self._sync()

    def close(self) -> None:
        """Make the output whole; collective. If another rank has given it up, an OSError says so on this one."""
        if not self._is_open:
            return
        gone = self._part_company(True)
        if gone is not None:
            raise OSError(errno.ECANCELED, f"rank {gone} has given up this output", str(self.path))
        rows = [*self._earlier_rows, *(rows for rank in self._ranks.gather(self._safe) for rows in rank)]
        self._ranks.from_root(lambda: self._finish(rows))

    def abandon(self) -> None:
        """Leave the part to be continued later, with all that this rank has written, whatever the others do."""
        if self._is_open:
            self._part_company(False)

    def __enter__(self) -> "Output":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.abandon()
        except OSError as trouble:  # the first error is the one to report
            error.add_note(f"{self.path}: the last rows are not noted as written ({trouble})")

    def _way_of_part(self) -> str | None:
        """The way of the part that is there, if one is; refuses that of something else."""
        if not self._part.exists():
            return None
        check_same(self._part, {**self.tables, **self.arrays}, self.about)
        noted = self._journal.folder / "way"
        if not noted.exists():
            raise UserError(f"{self._part}: expected {noted} beside it, found none; remove it or choose another name")
        way = self._journal.way(WAYS)
        return "direct" if way == "mpio" and not has_mpio() else way  # the two make the same file

    def _begin(self) -> None:
        """Make an empty part; it has its name when it is whole."""
        virtual = self.way == "virtual"
        if virtual and self._pieces.exists():
            raise UserError(f"{self._pieces}: expected nothing there yet, found an earlier output; remove it")
        with place_for(self.path):
            self._journal.clear()
            self._journal.folder.mkdir()
            (self._journal.folder / "way").write_text(self.way)
            create(self._new, self.tables, self.about, not virtual, self.arrays)
        for place in (self._journal.folder / "way", self._journal.folder, self._new):
            make_durable(place)
        self._new.replace(self._part)
        make_durable(self.path.parent)

    def _earlier(self) -> tuple[list[Span], int]:
        """What earlier runs have written, and the number of this run."""
        rows, run = self._journal.read(self.rows)
        if self.way == "virtual":
            self._pieces.mkdir(exist_ok=True)
            for torn in self._pieces.glob("*.part"):
                torn.unlink()
            rows = Virtual.pieces(self._pieces)
        return rows, run

    def _sync(self) -> None:
        rows, self._pending = self._pending, []  # a flush that failed may seem to work the next time, without the data
        if rows:
            self._writer.sync()
            self._journal.add(rows)
            self._safe += rows
        self._synced = time.monotonic()

    def _part_company(self, done: bool) -> int | None:
        """Flush, and close with the others; returns the lowest rank that gave up, if one did."""
        self._is_open = False
        synced = False
        try:
            self._sync()
            synced = True
        finally:
            self._journal.close()
            gone, together = self._farewell.say(done and synced)
            if together:
                self._writer.close()
            else:
                keep(self._writer)
        return gone

    def _finish(self, rows: list[Span]) -> None:
        ranges = merged(rows)
        edges = [0, *(edge for pair in ranges for edge in pair), self.rows]
        missing = [f"{a} to {b - 1}" for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
        if missing:
            some = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
            raise UserError(f"{self.path}: expected all of {self.rows} rows written, found rows {some} missing")
        self._writer.finish(self.path, self.about, rows)
        make_durable(self.path.parent)
        shutil.rmtree(self._journal.folder)
