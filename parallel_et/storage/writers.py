"""Three writers of rows from many ranks to one file.

* mpio: HDF5 itself, if h5py is built with MPI
* direct: MPI-IO at the offsets of the tables; writes the same file
* virtual: a small file for each piece of rows, and one file of virtual tables
"""

import errno
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shared_file import MAX_WRITE_BYTES, SharedFile, system_error
from parallel_et.storage.atomic import make_durable
from parallel_et.storage.row_tables import (
    RowRange,
    Table,
    create_tables,
    create_virtual,
    refuse_unwritable,
    table_offsets,
)

WRITERS = ("mpio", "direct", "virtual")


class Writer(Protocol):
    """The writer of one rank."""

    def write(self, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write contiguous rows of all tables."""

    def sync(self) -> None:
        """Flush the rows of this rank to the disk."""

    def close(self) -> None:
        """Close all files. Collective."""

    def finish(self, path: Path, attributes: Mapping[str, Any], rows: Sequence[RowRange]) -> None:
        """Rename the complete file to ``path``, on the root. ``rows`` are the ranges of all writes."""


class DirectWriter:
    """Writes bytes at the offsets of the tables in ``part``."""

    def __init__(self, part: Path, tables: Mapping[str, Table], ranks: Ranks) -> None:
        self.part, self.tables = part, tables
        self._open(ranks)
        self._synced = os.open(part, os.O_RDWR)

    def _open(self, ranks: Ranks) -> None:
        self._offsets = ranks.from_root(lambda: table_offsets(self.part, self.tables))
        self._file: Any = SharedFile(self.part, ranks)

    def write(self, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            if array.size:
                self._file.write(self._offsets[name] + first * self.tables[name].row_bytes, array)

    def sync(self) -> None:
        os.fsync(self._synced)

    def close(self) -> None:
        self._file.close()
        os.close(self._synced)

    def finish(self, path: Path, attributes: Mapping[str, Any], rows: Sequence[RowRange]) -> None:
        make_durable(self.part)
        self.part.replace(path)


class MpioWriter(DirectWriter):
    """Writes slices of the tables in ``part`` through HDF5."""

    def _open(self, ranks: Ranks) -> None:
        file = h5py.File(self.part, "r+", driver="mpio", comm=ranks.comm)
        self._datasets = {name: file[name] for name in self.tables}
        self._file = file  # assigned last, so that the garbage collector closes it last

    def write(self, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            step = max(1, MAX_WRITE_BYTES // max(1, self.tables[name].row_bytes))
            for start in range(0, len(array) if array.size else 0, step):
                piece = array[start : start + step]
                try:
                    self._datasets[name][first + start : first + start + len(piece)] = piece
                except OSError as error:
                    raise system_error(str(error), self.part) from None


class VirtualWriter:
    """Writes files of pieces in ``<path>.parts``."""

    def __init__(
        self,
        folder: Path,
        part: Path,
        tables: Mapping[str, Table],
        rank: int,
        arrays: Mapping[str, np.ndarray] = {},
    ) -> None:
        self.folder, self.part, self.tables, self.rank, self.arrays = folder, part, tables, rank, arrays

    @staticmethod
    def pieces(folder: Path) -> list[RowRange]:
        """Return the rows of each existing piece."""
        names = (re.fullmatch(r"(\d+)-(\d+)\.h5", path.name) for path in folder.glob("*.h5"))
        return sorted((int(name[1]), int(name[2])) for name in names if name)

    @staticmethod
    def _file_name(rows: RowRange) -> str:
        return f"{rows[0]:012}-{rows[1]:012}.h5"

    def write(self, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        rows = (first, first + len(next(iter(arrays.values()))))
        path = self.folder / self._file_name(rows)
        temporary = path.with_suffix(f".{self.rank}.part")  # another rank may write the same rows
        tables = {name: Table(array.shape, array.dtype) for name, array in arrays.items()}
        create_tables(temporary, tables, {})
        offsets = table_offsets(temporary, tables)
        with open(temporary, "rb+", buffering=0) as file:
            for name, array in arrays.items():
                if array.size:
                    file.seek(offsets[name])
                    _write_all(file, array)
            os.fsync(file)
        temporary.replace(path)

    def sync(self) -> None:
        """Return at once: each piece is flushed before it gets its name."""

    def close(self) -> None:
        """Return at once: no file is open."""

    def finish(self, path: Path, attributes: Mapping[str, Any], rows: Sequence[RowRange]) -> None:
        make_durable(self.folder)
        temporary = self.part.with_name(self.part.name + ".new")
        pieces = [(f"{self.folder.name}/{self._file_name(r)}", r) for r in sorted(set(rows))]
        create_virtual(temporary, self.tables, attributes, pieces, self.arrays)
        make_durable(temporary)
        temporary.replace(path)
        make_durable(path.parent)  # the part is needed until the new file is safe
        self.part.unlink()


def _write_all(file: Any, array: np.ndarray) -> None:
    """Write a contiguous array. One system call writes at most 2 GiB."""
    raw = array.reshape(-1).view(np.uint8)
    while len(raw):
        raw = raw[file.write(raw[:MAX_WRITE_BYTES]) :]


def has_mpio() -> bool:
    """Return whether h5py is built with MPI, and with the same library as mpi4py."""
    return bool(h5py.get_config().mpi) and len(_mpi_libraries()) <= 1


def _mpi_libraries() -> set[str]:
    """Return the MPI libraries that this process has loaded; empty if the system does not list them."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return set()
    return set(re.findall(r"/\S*/libmpi(?:ch|_(?:abi|cray|gnu|intel|nvidia|amd|aocc)\w*)?\.so[.\d]*", maps))


def best_writer(ranks: Ranks, folder: Path = Path()) -> str:
    """Return the best writer for files in a folder. Collective.

    It is "mpio" if h5py is built with MPI, else "direct", and "virtual" if MPI-IO fails in the folder.
    """
    if ranks.is_root and h5py.get_config().mpi and not has_mpio():
        _print_warning(
            f"h5py and mpi4py use different MPI libraries: {', '.join(sorted(_mpi_libraries()))}; written without mpio"
        )
    problem = _shared_file_problem(ranks, folder)
    if problem and ranks.is_root:
        _print_warning(f"{folder}: MPI-IO cannot be used there ({problem}); written as a file for each piece of rows")
    return "virtual" if problem else ranks.broadcast_object("mpio" if has_mpio() else "direct")


def _print_warning(line: str) -> None:
    print(f"note: {line}", file=sys.stderr, flush=True)


def _shared_file_problem(ranks: Ranks, folder: Path) -> str:
    """Return the error if all ranks write neighbouring bytes of one file; empty if this works."""

    def create() -> Path:
        with refuse_unwritable(folder):
            descriptor, path = tempfile.mkstemp(prefix=".trial-", dir=folder)
        os.close(descriptor)
        return Path(path)

    path = ranks.from_root(create)
    marks = np.arange(1, ranks.size + 1).astype(np.uint8)
    problem: str | None = None
    try:
        file = SharedFile(path, ranks)
    except OSError as error:
        problem = error.strerror
    else:
        try:
            file.write(ranks.rank, marks[ranks.rank : ranks.rank + 1])
        except OSError as error:
            problem = error.strerror
        file.close()
    found = [text for text in ranks.gather(problem) if text]
    if ranks.is_root:
        if not found and path.read_bytes() != marks.tobytes():
            found = ["bytes of some ranks are lost"]
        path.unlink()
    first = ranks.broadcast_object(found[0] if found else "")
    if first in (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)):  # no other way would help
        raise UserError(f"{folder}: expected a place to write to, found {first}")
    return first
