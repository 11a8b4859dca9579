"""Three ways to write rows of one file from many ranks.

mpio: HDF5 itself, where h5py is built with MPI. direct: MPI-IO, at the places where the tables lie in the file; makes
the same file. virtual: a small file for each piece of rows, and one file of virtual tables over them.
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
from parallel_et.parallel.shared_file import PIECE, SharedFile, plain_error
from parallel_et.storage.atomic import make_durable
from parallel_et.storage.row_tables import Span, Table, create, create_virtual, offsets, place_for

WAYS = ("mpio", "direct", "virtual")


class Writer(Protocol):
    """What a way does for the rank that has it."""

    def write(self, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write contiguous rows of all tables."""

    def sync(self) -> None:
        """Flush what this rank has written to the disk."""

    def close(self) -> None:
        """Close what is open; collective."""

    def finish(self, path: Path, about: Mapping[str, Any], rows: Sequence[Span]) -> None:
        """Give the whole of it, of which these rows were written by whomever, its name; on the root."""


class Direct:
    """Bytes at the places of the tables in ``part``."""

    def __init__(self, part: Path, tables: Mapping[str, Table], ranks: Ranks) -> None:
        self.part, self.tables = part, tables
        self._open(ranks)
        self._synced = os.open(part, os.O_RDWR)

    def _open(self, ranks: Ranks) -> None:
        self._offsets = ranks.from_root(lambda: offsets(self.part, self.tables))
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

    def finish(self, path: Path, about: Mapping[str, Any], rows: Sequence[Span]) -> None:
        make_durable(self.part)
        self.part.replace(path)


class Mpio(Direct):
    """Slices of the tables in ``part`` through HDF5."""

    def _open(self, ranks: Ranks) -> None:
        file = h5py.File(self.part, "r+", driver="mpio", comm=ranks.comm)
        self._datasets = {name: file[name] for name in self.tables}
        self._file = file  # after them, so that it goes after them where nobody closes it

    def write(self, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            step = max(1, PIECE // max(1, self.tables[name].row_bytes))
            for start in range(0, len(array) if array.size else 0, step):
                piece = array[start : start + step]
                try:
                    self._datasets[name][first + start : first + start + len(piece)] = piece
                except OSError as error:
                    raise plain_error(str(error), self.part) from None


class Virtual:
    """Files of pieces in ``<path>.parts``."""

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
    def pieces(folder: Path) -> list[Span]:
        """The rows of each piece that is there."""
        names = (re.fullmatch(r"(\d+)-(\d+)\.h5", path.name) for path in folder.glob("*.h5"))
        return sorted((int(name[1]), int(name[2])) for name in names if name)

    @staticmethod
    def _name(rows: Span) -> str:
        return f"{rows[0]:012}-{rows[1]:012}.h5"

    def write(self, first: int, arrays: Mapping[str, np.ndarray]) -> None:
        rows = (first, first + len(next(iter(arrays.values()))))
        place = self.folder / self._name(rows)
        beside = place.with_suffix(f".{self.rank}.part")  # another rank may write the same rows
        here = {name: Table(array.shape, array.dtype) for name, array in arrays.items()}
        create(beside, here, {})
        starts = offsets(beside, here)
        with open(beside, "rb+", buffering=0) as file:
            for name, array in arrays.items():
                if array.size:
                    file.seek(starts[name])
                    _write_all(file, array)
            os.fsync(file)
        beside.replace(place)

    def sync(self) -> None:
        """Each piece is safe before it has its name."""

    def close(self) -> None:
        """Nothing is open."""

    def finish(self, path: Path, about: Mapping[str, Any], rows: Sequence[Span]) -> None:
        make_durable(self.folder)
        beside = self.part.with_name(self.part.name + ".new")
        pieces = [(f"{self.folder.name}/{self._name(r)}", r) for r in sorted(set(rows))]
        create_virtual(beside, self.tables, about, pieces, self.arrays)
        make_durable(beside)
        beside.replace(path)
        make_durable(path.parent)  # only then may what is needed to begin the file again go
        self.part.unlink()


def _write_all(file: Any, array: np.ndarray) -> None:
    """Write a contiguous array; one system call takes 2 GiB at most."""
    raw = array.reshape(-1).view(np.uint8)
    while len(raw):
        raw = raw[file.write(raw[:PIECE]) :]


def has_mpio() -> bool:
    """Whether h5py is built with MPI, and with the library that mpi4py has."""
    return bool(h5py.get_config().mpi) and len(_mpi_libraries()) <= 1


def _mpi_libraries() -> set[str]:
    """The MPI libraries that this process has loaded; empty where the system does not tell."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return set()
    return set(re.findall(r"/\S*/libmpi(?:ch|_(?:abi|cray|gnu|intel|nvidia|amd|aocc)\w*)?\.so[.\d]*", maps))


def best_way(ranks: Ranks, folder: Path = Path()) -> str:
    """The way for files in a folder: mpio, direct without such an h5py, virtual where MPI-IO fails; collective."""
    if ranks.is_root and h5py.get_config().mpi and not has_mpio():
        _note(
            f"h5py and mpi4py use different MPI libraries: {', '.join(sorted(_mpi_libraries()))}; written without mpio"
        )
    trouble = _try_shared(ranks, folder)
    if trouble and ranks.is_root:
        _note(f"{folder}: MPI-IO cannot be used there ({trouble}); written as a file for each piece of rows")
    return "virtual" if trouble else ranks.of_root("mpio" if has_mpio() else "direct")


def _note(line: str) -> None:
    print(f"note: {line}", file=sys.stderr, flush=True)


def _try_shared(ranks: Ranks, folder: Path) -> str:
    """What keeps all ranks from writing to one file, each a byte beside that of the next; nothing if it works."""

    def begin() -> Path:
        with place_for(folder):
            descriptor, path = tempfile.mkstemp(prefix=".trial-", dir=folder)
        os.close(descriptor)
        return Path(path)

    path = ranks.from_root(begin)
    marks = np.arange(1, ranks.size + 1).astype(np.uint8)
    trouble: str | None = None
    try:
        file = SharedFile(path, ranks)
    except OSError as error:
        trouble = error.strerror
    else:
        try:
            file.write(ranks.rank, marks[ranks.rank : ranks.rank + 1])
        except OSError as error:
            trouble = error.strerror
        file.close()
    found = [text for text in ranks.gather(trouble) if text]
    if ranks.is_root:
        if not found and path.read_bytes() != marks.tobytes():
            found = ["bytes of some ranks are lost"]
        path.unlink()
    first = ranks.of_root(found[0] if found else "")
    if first in (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)):  # no other way would help
        raise UserError(f"{folder}: expected a place to write to, found {first}")
    return first
