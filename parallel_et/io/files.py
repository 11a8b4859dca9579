"""Rows of data files, and small arrays of HDF5 files."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path

import h5py
import numpy as np

from parallel_et.data.base import PIECE, ArrayRows, Source
from parallel_et.errors import UserError
from parallel_et.io.apart import Apart
from parallel_et.io.gate import brief, check_room, gate
from parallel_et.io.plain import open_npy, place_of, read_plain
from parallel_et.io.storage import files_of
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
    except Exception as error:
        raise UserError(f"{path}: expected an HDF5 file, found something else ({brief(error)})") from None
    with gate(path, "a sound HDF5 file", "damage"), file:
        yield file


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
    files_of(dataset)
    check_room(f"{path}: {dataset.name}", "an array", 2 * 8 * (dataset.size or 0))
    return np.asarray(dataset[()], np.float64)


class FileRows(Source):
    """Rows of ``file.h5:/dataset`` or ``file.npy``; the file is open only while it is read, and must stay as it is.

    An HDF5 file is first looked at in another process, as there are damaged ones that HDF5 does not survive.
    """

    def __init__(self, place: str) -> None:
        self.name = place
        self.path, _, self.dataset = place.partition(":")
        self._states: dict[str, tuple[int, int]] = {}
        if not self.path.endswith(".npy") and os.path.isfile(self.path):
            with suppress(OSError), Apart() as apart:  # no other process may be had: not the fault of the file
                apart.ask(self.path, "parallel_et.io.storage", "look", self.dataset)
        with self._open() as table:
            self.points, self.dims, self.shape = table.points, table.dims, table.shape
            self.dtype, self._stored = table.dtype, table.table.dtype
            self._place = place_of(table.table, self.path)
            self._note(self.path)
            self._compare(table)

    def _compare(self, table: ArrayRows) -> None:
        """Refuse a file of which plain reads give other rows than its library: the first or the last."""
        check_room(self.name, "a row", 8 * self._row)
        for row in (0, self.points - 1):
            read = self._from(table, row, row + 1)
            if self._place is not None and self._read(row, row + 1).tobytes() != read.tobytes():
                found = f"another at byte {self._place}"
                raise UserError(f"{self.name}: row {row}: expected one, found {found}; h5repack makes a sound file")

    @property
    def _row(self) -> int:
        return self.dims * np.dtype(self.dtype).itemsize

    @contextmanager
    def _open(self) -> Iterator[ArrayRows]:
        if self.path.endswith(".npy"):
            yield ArrayRows(open_npy(self.path), self.name)
            return
        with open_hdf5(self.path) as file:
            yield ArrayRows(dataset_of(file, self.path, self.dataset), self.name)

    def read(self, first: int, last: int) -> np.ndarray:
        check_room(f"{self.name}: rows {first} to {last - 1}", "data", (last - first) * self._row)
        with gate(f"{self.name}: rows {first} to {last - 1}", "numbers", "damage"):
            self._check()
            rows = self._read(first, last)
            self._check()
        return rows

    def _read(self, first: int, last: int) -> np.ndarray:
        if self._place is None:
            with self._open() as table:
                return self._from(table, first, last)
        rows = new_table(last - first, self.dims, self.dtype)
        read_plain(self.path, self._place + first * self.dims * self._stored.itemsize, self._stored, rows, self.dims)
        return rows

    def _from(self, table: ArrayRows, first: int, last: int) -> np.ndarray:
        """Rows as their library reads them."""
        if isinstance(table.table, h5py.Dataset):
            for path in files_of(table.table, first, last):
                self._note(path)
        with gate(f"{self.name}: rows {first} to {last - 1}", "numbers", "damage"):
            return table.read(first, last)

    def state(self) -> str:
        size, changed = self._states[self.path]
        return f"{size} bytes, changed at {changed} ns"

    def _note(self, path: str) -> None:
        """From now on this file must not change."""
        self._states.setdefault(path, _state(path))

    def _check(self) -> None:
        """Rows are read more than once, and by several ranks: they must not change meanwhile."""
        for path, state in self._states.items():
            there = os.path.exists(path)
            if not there or _state(path) != state:
                found = "another" if there else "nothing there"
                raise UserError(f"{path}: expected the file that the run began with, found {found}")


def _state(path: str) -> tuple[int, int]:
    """What tells a file from another of its name, on every node that has it."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


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
