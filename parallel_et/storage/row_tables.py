"""HDF5 files of tables with one row a point, whose bytes lie where others than HDF5 can write them."""

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p

from parallel_et.errors import PLACE, UserError
from parallel_et.storage.atomic import why_no_place
from parallel_et.storage.hdf5 import dataset_of, open_hdf5
from parallel_et.storage.raw_reader import place_of
from parallel_et.storage.stored_rows import files_of

Span = tuple[int, int]
"""A range of rows [first, last)."""
SHAPE = {"libver": ("v108", "v110"), "alignment_threshold": 1 << 16, "alignment_interval": 1 << 12}
"""Of a file to write: a format without marks of an unfinished writer, large tables at the start of a page."""

ROOM = 1 << 17
"""Bytes that all but the tables may take."""


@dataclass(frozen=True)
class Table:
    """One row of any shape for each of N points; ``about``: attributes of its dataset."""

    shape: tuple[int, ...]
    dtype: Any
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.shape[1:])) * np.dtype(self.dtype).itemsize


def merged(rows: Sequence[Span]) -> list[Span]:
    """The same rows, sorted, in as few ranges as can be."""
    ranges: list[Span] = []
    for first, last in sorted(rows):
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
        elif first < last:
            ranges.append((first, last))
    return ranges


@contextmanager
def place_for(path: Path) -> Iterator[None]:
    """Refuse a path where nobody could write."""
    try:
        yield
    except OSError as error:
        if error.errno not in PLACE:
            raise
        raise UserError(f"{path}: expected a place to write to, found {why_no_place(path, error)}") from None


@contextmanager
def new_file(path: Path, size: int = 0, more: int = 0) -> Iterator[h5py.File]:
    """An HDF5 file to make, of about that size, with so many bytes more that are written at once.

    HDF5 does not survive a file that it cannot flush when it closes it: whether there is room is found out before.
    """
    path.unlink(missing_ok=True)  # a link is not followed
    with open(path, "xb") as raw:
        raw.write(bytes(ROOM + more))
        raw.truncate(ROOM + more + size)
    try:
        with h5py.File(path, "w", **SHAPE) as file:
            yield file
    except RuntimeError as error:
        raise OSError(errno.EIO, str(error), str(path)) from None


def create(
    path: Path,
    tables: Mapping[str, Table],
    about: Mapping[str, Any],
    allocate: bool = True,
    arrays: Mapping[str, np.ndarray] = {},
) -> None:
    """A file of the tables, one run of bytes each, never filled; without ``allocate`` they have no bytes yet.

    ``arrays`` are written whole.
    """
    rows = sum(t.shape[0] * t.row_bytes for t in tables.values()) if allocate else 0
    with new_file(path, rows, _bytes(tables, about, arrays)) as file:
        for name, table in tables.items():
            layout = h5p.create(h5p.DATASET_CREATE)
            layout.set_layout(h5d.CONTIGUOUS)
            layout.set_alloc_time(h5d.ALLOC_TIME_EARLY if allocate else h5d.ALLOC_TIME_LATE)
            layout.set_fill_time(h5d.FILL_TIME_NEVER)
            file.create_dataset(name, table.shape, np.dtype(table.dtype), dcpl=layout).attrs.update(table.about)
        _add(file, about, arrays)


def create_virtual(
    path: Path,
    tables: Mapping[str, Table],
    about: Mapping[str, Any],
    pieces: Sequence[tuple[str, Span]],
    arrays: Mapping[str, np.ndarray] = {},
) -> None:
    """A file of the tables over others that hold them piece by piece, each named relative to its folder."""
    with new_file(path, more=_bytes(tables, about, arrays)) as file:
        for name, table in tables.items():
            layout, done = h5py.VirtualLayout(table.shape, np.dtype(table.dtype)), 0
            for piece, (first, last) in sorted(pieces, key=lambda piece: piece[1]):
                if table.row_bytes and last > done:  # rows that were written twice are taken once
                    source = h5py.VirtualSource(piece, name, (last - first, *table.shape[1:]), table.dtype)
                    layout[max(first, done) : last] = source[max(first, done) - first :]
                    done = last
            missing = np.nan if np.dtype(table.dtype).kind == "f" else None
            file.create_virtual_dataset(name, layout, fillvalue=missing).attrs.update(table.about)
        _add(file, about, arrays)


def _bytes(tables: Mapping[str, Table], about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> int:
    """Of the attributes and arrays, about."""
    values = [*about.values(), *(value for table in tables.values() for value in table.about.values())]
    return sum(len(str(value).encode()) for value in values) + sum(array.nbytes for array in arrays.values())


def _add(file: h5py.File, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        file.create_dataset(name, data=array)
    file.attrs.update(about)


def offsets(path: Path, tables: Mapping[str, Table]) -> dict[str, int]:
    """Where in the file the bytes of each table begin; UserError if they do not lie there as they are written.

    Tables of no bytes have no such place: 0.
    """
    found: dict[str, int] = {}
    with open_hdf5(str(path)) as file:
        for name, table in tables.items():
            size = table.shape[0] * table.row_bytes
            place = place_of(dataset_of(file, str(path), name), str(path)) if size else 0
            if place is None or place + size > path.stat().st_size:
                raise UserError(f"{path}: {name}: expected a table of {size} bytes in one piece, found it elsewhere")
            found[name] = place
    return found


def check_same(path: Path, tables: Mapping[str, Table | np.ndarray], about: Mapping[str, Any]) -> None:
    """Refuse the file of another output."""
    with open_hdf5(str(path)) as file:
        datasets: dict[str, h5py.Dataset] = {}
        file.visititems(lambda name, item: datasets.update({name: item} if isinstance(item, h5py.Dataset) else {}))
        there = _described(datasets, file.attrs)
    wanted = _described(tables, about)
    differ = []
    for name in sorted({*wanted, *there}):
        expected, found = wanted.get(name, "none"), there.get(name, "none")
        if expected != found:
            same = next((i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), 0)
            differ.append(f"{name}: expected {_brief(expected, same)}, found {_brief(found, same)}")
    if differ:
        raise UserError(f"{path}: part of another output: {'; '.join(differ)}; remove it or choose another name")


def _described(tables: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, str]:
    """Tables and attributes in words; a value reads like what HDF5 makes of it."""
    attributes = {f"attribute {name}": repr(np.asarray(value).tolist()) for name, value in about.items()}
    return attributes | {
        f"table {name}": f"{'x'.join(map(str, table.shape))} of {np.dtype(table.dtype)}"
        for name, table in tables.items()
    }


def _brief(text: str, place: int) -> str:
    """A long text around that place."""
    start, end = (max(0, place - 20), place + 40) if len(text) > 60 else (0, len(text))
    return f"{'…' * (start > 0)}{text[start:end]}{'…' * (end < len(text))}"


def read_rows(path: Path, name: str, first: int, last: int) -> np.ndarray:
    """Rows [first, last) of a table, (last - first, ...), in its own dtype."""
    with open_hdf5(str(path)) as file:
        dataset = dataset_of(file, str(path), name)
        files_of(dataset, first, last)
        return dataset[first:last]
