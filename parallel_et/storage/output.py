"""Tables with one row per point, to which each rank writes its own rows. An interrupted output is continued."""

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
from parallel_et.parallel.shared_file import ClosingHandshake, keep_forever
from parallel_et.storage.atomic import make_durable
from parallel_et.storage.journal import Journal, check_folder
from parallel_et.storage.row_tables import (
    RowRange,
    Table,
    check_same,
    create_tables,
    merge_ranges,
    read_rows,
    refuse_unwritable,
)
from parallel_et.storage.writers import WRITERS, DirectWriter, MpioWriter, VirtualWriter, Writer, best_writer, has_mpio

__all__ = ["WRITERS", "Output", "Table", "best_writer", "discard", "open_output", "read_rows"]

SYNC_SECONDS = 5.0
"""Seconds between two flushes to the disk; a killed rank loses about this much work."""


def discard(path: Path) -> None:
    """Remove the files of an interrupted output to ``path``. A complete output stays, unless its rows are in pieces."""
    pieces = path.with_name(f"{path.name}.parts")
    journal = Journal(path.with_name(f"{path.name}.part.journal"))
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
    attributes: Mapping[str, Any] = {},
    writer: str | None = None,
    arrays: Mapping[str, np.ndarray] = {},
) -> "Output":
    """Open the output to a file, or continue an interrupted one. Collective.

    Parameters
    ----------
    tables : name -> table; all with the same number of rows
    attributes : attributes of the root
    writer : one of ``WRITERS``, by default the best; an output that is continued keeps its writer
    arrays : further datasets, the same on all ranks
    """
    output = Output(path, tables, ranks, attributes, arrays)
    output._open(writer)
    return output


class Output:
    """Tables in one HDF5 file, to which each rank writes its own rows. The file appears when it is complete.

    Until then the rows are in ``<path>.part``, and ``<path>.part.journal`` records the rows that are safe.
    The writer "virtual" keeps the rows in the folder ``<path>.parts``, which belongs to the complete file.
    As a context manager, an output is closed on success and abandoned on an exception.

    Attributes
    ----------
    writer : name of the writer, one of ``WRITERS``
    written : ranges [first, last) of the rows of earlier runs, sorted and merged, on every rank
    """

    def __init__(
        self,
        path: Path,
        tables: Mapping[str, Table],
        ranks: Ranks,
        attributes: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        self.path, self.tables, self.attributes, self.arrays = Path(path), dict(tables), dict(attributes), dict(arrays)
        (self.rows,) = {table.shape[0] for table in tables.values()}
        self._ranks = ranks
        self._part, self._new, self._pieces, journal = (
            self.path.with_name(self.path.name + end) for end in (".part", ".part.new", ".parts", ".part.journal")
        )
        self._journal = Journal(journal)
        self._pending: list[RowRange] = []
        self._safe: list[RowRange] = []

    def _open(self, writer: str | None) -> None:
        """Create the part, or continue an existing part. Collective."""
        ranks = self._ranks
        if writer not in (None, *WRITERS):
            raise UserError(f"writer: expected {', '.join(WRITERS)}, found {writer}")
        earlier_writer = ranks.from_root(self._writer_of_part)
        if earlier_writer is None and writer == "mpio" and not has_mpio():
            raise UserError("writer: expected an h5py built with MPI for mpio, found a serial one; make parallel-hdf5")
        self.writer = earlier_writer or writer or best_writer(ranks, self.path.parent)
        if earlier_writer is None:
            ranks.from_root(self._create_part)
        earlier, run = ranks.from_root(self._earlier_rows_and_run)
        with ranks.synchronise_errors():
            if not self._part.exists():
                raise UserError(
                    f"{self.path}: expected a folder that all nodes share, found it on the root's node only"
                )
        self.written, self._earlier_rows = merge_ranges(earlier), earlier
        self._journal.start(run, ranks.rank)
        with ranks.synchronise_errors():
            self._writer: Writer = (
                VirtualWriter(self._pieces, self._part, self.tables, ranks.rank, self.arrays)
                if self.writer == "virtual"
                else (MpioWriter if self.writer == "mpio" else DirectWriter)(self._part, self.tables, ranks)
            )
        self._closing = ClosingHandshake(ranks)
        self._synced = time.monotonic()
        self._is_open = True

    def write(self, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write rows [first, first + n) of all tables. Any rank may call this at any time, any number of times."""
        if not self._is_open:
            raise ValueError(f"{self.path}: expected an open output, found it closed")
        count = len(arrays[next(iter(self.tables))])
        for name, table in self.tables.items():
            if np.shape(arrays[name]) != (count, *table.shape[1:]) or not 0 <= first <= first + count <= self.rows:
                raise ValueError(f"{name}: expected rows of {table.shape}, found {np.shape(arrays[name])} at {first}")
        if count:
            self._writer.write(first, {n: np.ascontiguousarray(arrays[n], t.dtype) for n, t in self.tables.items()})
            self._pending.append((first, first + count))
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self._sync()

    def close(self) -> None:
        """Close the complete output. Collective; raise an OSError if another rank has abandoned it."""
        if not self._is_open:
            return
        gone = self._close_together(True)
        if gone is not None:
            raise OSError(errno.ECANCELED, f"rank {gone} has given up this output", str(self.path))
        rows = [*self._earlier_rows, *(rows for rank in self._ranks.gather(self._safe) for rows in rank)]
        self._ranks.from_root(lambda: self._finish(rows))

    def abandon(self) -> None:
        """Close the part, which a later run can continue, without waiting for other ranks."""
        if self._is_open:
            self._close_together(False)

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
        except OSError as second:  # the first error is reported
            error.add_note(f"{self.path}: the last rows are not recorded as written ({second})")

    def _writer_of_part(self) -> str | None:
        """Return the writer of the existing part, None if there is no part; refuse the part of another output."""
        if not self._part.exists():
            return None
        check_same(self._part, {**self.tables, **self.arrays}, self.attributes)
        file = self._journal.writer_file
        if not file.exists():
            raise UserError(f"{self._part}: expected {file} next to it, found none; remove it or choose another name")
        writer = self._journal.read_writer(WRITERS)
        return "direct" if writer == "mpio" and not has_mpio() else writer  # both write the same file

    def _create_part(self) -> None:
        """Create an empty part; it gets its name when it is complete."""
        virtual = self.writer == "virtual"
        if virtual and self._pieces.exists():
            raise UserError(f"{self._pieces}: expected nothing there yet, found an earlier output; remove it")
        with refuse_unwritable(self.path):
            self._journal.clear()
            self._journal.folder.mkdir()
            self._journal.writer_file.write_text(self.writer)
            create_tables(self._new, self.tables, self.attributes, not virtual, self.arrays)
        for path in (self._journal.writer_file, self._journal.folder, self._new):
            make_durable(path)
        self._new.replace(self._part)
        make_durable(self.path.parent)

    def _earlier_rows_and_run(self) -> tuple[list[RowRange], int]:
        """Return the rows that earlier runs have written, and the number of this run."""
        rows, run = self._journal.read(self.rows)
        if self.writer == "virtual":
            self._pieces.mkdir(exist_ok=True)
            for torn in self._pieces.glob("*.part"):
                torn.unlink()
            rows = VirtualWriter.pieces(self._pieces)
        return rows, run

    def _sync(self) -> None:
        rows, self._pending = self._pending, []  # after a failed flush the next one may succeed without the data
        if rows:
            self._writer.sync()
            self._journal.add(rows)
            self._safe += rows
        self._synced = time.monotonic()

    def _close_together(self, done: bool) -> int | None:
        """Flush, and close together with the other ranks; return the lowest rank that gave up, or None."""
        self._is_open = False
        synced = False
        try:
            self._sync()
            synced = True
        finally:
            self._journal.close()
            gone, together = self._closing.finish(done and synced)
            if together:
                self._writer.close()
            else:
                keep_forever(self._writer)
        return gone

    def _finish(self, rows: list[RowRange]) -> None:
        ranges = merge_ranges(rows)
        edges = [0, *(edge for pair in ranges for edge in pair), self.rows]
        missing = [f"{a} to {b - 1}" for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
        if missing:
            some = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
            raise UserError(f"{self.path}: expected all of {self.rows} rows written, found rows {some} missing")
        self._writer.finish(self.path, self.attributes, rows)
        make_durable(self.path.parent)
        shutil.rmtree(self._journal.folder)
