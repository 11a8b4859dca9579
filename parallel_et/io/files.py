"""Rows of data files, and small arrays of HDF5 files."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from pathlib import Path

import h5py
import numpy as np

from parallel_et.data.base import PIECE, ArrayRows, Source
from parallel_et.errors import UserError
from parallel_et.io.plain import place_of, read_plain
from parallel_et.rows import new_table

CHUNK = 256
"""Rows that are compressed together: whole rows, and few, as all are needed to read one."""


@contextmanager
def open_hdf5(path: str) -> Iterator[h5py.File]:
    """An HDF5 file to read from; one that is missing, damaged or something else is told in one line."""
    if not Path(path).is_file():
        raise UserError(f"{path}: expected an HDF5 file, found nothing there")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"{path}: expected an HDF5 file, found something else ({error})") from None
    try:
        with file:
            yield file
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:  # what h5py says has no common kind
        raise UserError(f"{path}: expected a sound HDF5 file, found damage ({error})") from None


def dataset_of(file: h5py.File, path: str, name: str) -> h5py.Dataset:
    """The dataset of that name, or the line that says what is there instead."""
    if name and isinstance(file.get(name), h5py.Dataset):
        return file[name]
    there: list[str] = []
    file.visititems(lambda key, item: there.append(f"/{key}") if isinstance(item, h5py.Dataset) else None)
    near = get_close_matches(name, there, 1) or there[:8]
    found = ", ".join(near) + (", …" if len(near) < len(there) else "") if there else "no dataset at all"
    raise UserError(f"{path}: expected a dataset {name or 'as in file.h5:/dataset'}, found {found}")


def read_array(path: str, name: str) -> np.ndarray:
    """One whole dataset as float64."""
    with open_hdf5(path) as file:
        return _numbers(dataset_of(file, path, name), path)


def read_group(path: str, name: str) -> dict[str, np.ndarray]:
    """All datasets of one group as float64."""
    with open_hdf5(path) as file:
        if not isinstance(file.get(name), h5py.Group):
            raise UserError(f"{path}: expected a group /{name}, found {', '.join('/' + key for key in file) or 'none'}")
        return {key: _numbers(item, path) for key, item in file[name].items() if isinstance(item, h5py.Dataset)}


def read_attributes(path: str) -> dict[str, str]:
    """What an HDF5 file says of itself, in words."""
    with open_hdf5(path) as file:
        return {name: str(value) for name, value in file.attrs.items()}


def _numbers(dataset: h5py.Dataset, path: str) -> np.ndarray:
    if dataset.dtype.kind not in "fiub":
        raise UserError(f"{path}: {dataset.name}: expected numbers, found {dataset.dtype}")
    return np.asarray(dataset[()], np.float64)


class FileRows(Source):
    """Rows of ``file.h5:/dataset`` or ``file.npy``; the file is open only while it is read, and must stay as it is."""

    def __init__(self, place: str) -> None:
        self.name = place
        self.path, _, self.dataset = place.partition(":")
        with self._open() as table:
            self.points, self.dims, self.shape = table.points, table.dims, table.shape
            self.dtype, self._stored, self._place = table.dtype, table.table.dtype, place_of(table.table)
            self._state = self._stat()

    @contextmanager
    def _open(self) -> Iterator[ArrayRows]:
        if not self.path.endswith(".npy"):
            with open_hdf5(self.path) as file:
                yield ArrayRows(dataset_of(file, self.path, self.dataset), self.name)
            return
        if not Path(self.path).is_file():
            raise UserError(f"{self.path}: expected a .npy file, found nothing there")
        try:
            table = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise UserError(f"{self.path}: expected a .npy file, found something else ({error})") from None
        yield ArrayRows(table, self.name)

    def read(self, first: int, last: int) -> np.ndarray:
        with self._reading(first, last):
            self._check()
            rows = self._read(first, last)
            self._check()
        return rows

    @contextmanager
    def _reading(self, first: int, last: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self.name}: rows {first} to {last - 1}: expected numbers, found damage ({error})"
            ) from None

    def _read(self, first: int, last: int) -> np.ndarray:
        if self._place is None:
            with self._open() as table, self._reading(first, last):
                return table.read(first, last)
        rows = new_table(last - first, self.dims, self.dtype)
        read_plain(self.path, self._place + first * self.dims * self._stored.itemsize, self._stored, rows, self.dims)
        return rows

    def state(self) -> str:
        _, _, size, changed = self._state
        return f"{size} bytes, changed at {changed} ns"

    def _stat(self) -> tuple[int, ...]:
        found = os.stat(self.path)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _check(self) -> None:
        """Rows are read more than once, and by several ranks: they must not change meanwhile."""
        there = os.path.exists(self.path)
        if not there or self._stat() != self._state:
            found = "another" if there else "nothing there"
            raise UserError(f"{self.path}: expected the file that the run began with, found {found}")


def write_rows(source: Source, place: str, compression: str | None = None) -> None:
    """Write all rows of a source in single precision to ``file.npy`` or ``file.h5:/dataset``, some at a time."""
    path, _, name = place.partition(":")
    shape, step = (source.points, source.dims), max(1, PIECE // (8 * source.dims))
    with ExitStack() as stack:
        if path.endswith(".npy"):
            table = np.lib.format.open_memmap(path, "w+", np.float32, shape)
        else:
            file = stack.enter_context(h5py.File(path, "a"))
            chunks = (min(source.points, CHUNK), source.dims) if compression else None
            table = file.create_dataset(name, shape, np.float32, chunks=chunks, compression=compression)
        for first in range(0, source.points, step):
            last = min(first + step, source.points)
            table[first:last] = source.read(first, last)[:, : source.dims]
