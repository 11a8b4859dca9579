"""HDF5 files of tables with one row per point, contiguous in the file, so that MPI-IO can write their bytes."""

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p

from parallel_et.errors import PATH_ERRORS, UserError
from parallel_et.storage.atomic import unwritable_reason
from parallel_et.storage.hdf5 import dataset_of, open_hdf5
from parallel_et.storage.raw_reader import byte_offset
from parallel_et.storage.stored_rows import files_of

RowRange = tuple[int, int]
"""A range of rows [first, last)."""
FILE_FORMAT = {"libver": ("v108", "v110"), "alignment_threshold": 1 << 16, "alignment_interval": 1 << 12}
"""Settings of new files: a format without marks of unfinished writers, and large tables that start at a page."""

METADATA_BYTES = 1 << 17
"""Bytes reserved for HDF5's own metadata."""


@dataclass(frozen=True)
class Table:
    """The shape (N, ...) and dtype of a table with a row for each of N points, and attributes of its dataset."""

    shape: tuple[int, ...]
    dtype: Any
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return int(np.prod(self.shape[1:])) * np.dtype(self.dtype).itemsize


def merge_ranges(rows: Sequence[RowRange]) -> list[RowRange]:
    """Return the same rows, sorted, as the smallest number of ranges."""
    ranges: list[RowRange] = []
    for first, last in sorted(rows):
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
        elif first < last:
            ranges.append((first, last))
    return ranges


@contextmanager
def refuse_unwritable(path: Path) -> Iterator[None]:
    """Refuse the path if this block raises an OSError because the path cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in PATH_ERRORS:
            raise
        raise UserError(f"{path}: expected a place to write to, found {unwritable_reason(path, error)}") from None


@contextmanager
def new_file(path: Path, size: int = 0, more: int = 0) -> Iterator[h5py.File]:
    """Create an HDF5 file after checking that the disk has enough space.

    HDF5 crashes if it cannot flush a file when it closes it.

    Parameters
    ----------
    size : bytes of tables that are written later
    more : further bytes, which are written at once
    """
    path.unlink(missing_ok=True)  # a link is not followed
    with open(path, "xb") as raw:
        raw.write(bytes(METADATA_BYTES + more))
        raw.truncate(METADATA_BYTES + more + size)
    try:
        with h5py.File(path, "w", **FILE_FORMAT) as file:
            yield file
    except RuntimeError as error:
        raise OSError(errno.EIO, str(error), str(path)) from None


def create_tables(
    path: Path,
    tables: Mapping[str, Table],
    attributes: Mapping[str, Any],
    allocate: bool = True,
    arrays: Mapping[str, np.ndarray] = {},
) -> None:
    """Create a file with contiguous, unfilled tables and ``arrays``. Without ``allocate`` tables have no bytes yet."""
    rows = sum(t.shape[0] * t.row_bytes for t in tables.values()) if allocate else 0
    with new_file(path, rows, _estimate_bytes(tables, attributes, arrays)) as file:
        for name, table in tables.items():
            layout = h5p.create(h5p.DATASET_CREATE)
            layout.set_layout(h5d.CONTIGUOUS)
            layout.set_alloc_time(h5d.ALLOC_TIME_EARLY if allocate else h5d.ALLOC_TIME_LATE)
            layout.set_fill_time(h5d.FILL_TIME_NEVER)
            file.create_dataset(name, table.shape, np.dtype(table.dtype), dcpl=layout).attrs.update(table.attributes)
        _add_arrays(file, attributes, arrays)


def create_virtual(
    path: Path,
    tables: Mapping[str, Table],
    attributes: Mapping[str, Any],
    pieces: Sequence[tuple[str, RowRange]],
    arrays: Mapping[str, np.ndarray] = {},
) -> None:
    """Create a file of virtual tables. ``pieces`` are files with some rows each, named relative to the folder."""
    with new_file(path, more=_estimate_bytes(tables, attributes, arrays)) as file:
        for name, table in tables.items():
            layout, done = h5py.VirtualLayout(table.shape, np.dtype(table.dtype)), 0
            for piece, (first, last) in sorted(pieces, key=lambda piece: piece[1]):
                if table.row_bytes and last > done:  # rows that were written twice are used once
                    source = h5py.VirtualSource(piece, name, (last - first, *table.shape[1:]), table.dtype)
                    layout[max(first, done) : last] = source[max(first, done) - first :]
                    done = last
            missing = np.nan if np.dtype(table.dtype).kind == "f" else None
            file.create_virtual_dataset(name, layout, fillvalue=missing).attrs.update(table.attributes)
        _add_arrays(file, attributes, arrays)


def _estimate_bytes(
    tables: Mapping[str, Table], attributes: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> int:
    """Estimate the bytes of attributes and arrays."""
    values = [*attributes.values(), *(value for table in tables.values() for value in table.attributes.values())]
    return sum(len(str(value).encode()) for value in values) + sum(array.nbytes for array in arrays.values())


def _add_arrays(file: h5py.File, attributes: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        file.create_dataset(name, data=array)
    file.attrs.update(attributes)


def table_offsets(path: Path, tables: Mapping[str, Table]) -> dict[str, int]:
    """Return the byte of the file at which each table begins, 0 for empty tables.

    Tables that are not contiguous, or not stored in the format of memory, raise a UserError.
    """
    found: dict[str, int] = {}
    with open_hdf5(str(path)) as file:
        for name, table in tables.items():
            size = table.shape[0] * table.row_bytes
            offset = byte_offset(dataset_of(file, str(path), name), str(path)) if size else 0
            if offset is None or offset + size > path.stat().st_size:
                raise UserError(f"{path}: {name}: expected a table of {size} bytes in one piece, found it elsewhere")
            found[name] = offset
    return found


def check_same(path: Path, tables: Mapping[str, Table | np.ndarray], attributes: Mapping[str, Any]) -> None:
    """Refuse a file whose tables or attributes differ from these."""
    with open_hdf5(str(path)) as file:
        datasets: dict[str, h5py.Dataset] = {}
        file.visititems(lambda name, item: datasets.update({name: item} if isinstance(item, h5py.Dataset) else {}))
        stored = _describe(datasets, file.attrs)
    described = _describe(tables, attributes)
    differ = []
    for name in sorted({*described, *stored}):
        expected, found = described.get(name, "none"), stored.get(name, "none")
        if expected != found:
            index = next((i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), 0)
            differ.append(f"{name}: expected {_excerpt(expected, index)}, found {_excerpt(found, index)}")
    if differ:
        raise UserError(f"{path}: part of another output: {'; '.join(differ)}; remove it or choose another name")


def _describe(tables: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, str]:
    """Describe tables and attributes as text. A value has the same text before and after its storage in HDF5."""
    described = {f"attribute {name}": repr(np.asarray(value).tolist()) for name, value in attributes.items()}
    return described | {
        f"table {name}": f"{'x'.join(map(str, table.shape))} of {np.dtype(table.dtype)}"
        for name, table in tables.items()
    }


def _excerpt(text: str, index: int) -> str:
    """Return the part of a long text around a character."""
    start, end = (max(0, index - 20), index + 40) if len(text) > 60 else (0, len(text))
    return f"{'…' * (start > 0)}{text[start:end]}{'…' * (end < len(text))}"


def read_rows(path: Path, name: str, first: int, last: int) -> np.ndarray:
    """Return rows [first, last) of a table, (last - first, ...), in its own dtype."""
    with open_hdf5(str(path)) as file:
        dataset = dataset_of(file, str(path), name)
        files_of(dataset, first, last)
        return dataset[first:last]
