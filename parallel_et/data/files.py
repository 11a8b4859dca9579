"""Rows of data files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from parallel_et.data.base import ArrayRows, Source
from parallel_et.errors import UserError
from parallel_et.kernels.rows import new_table
from parallel_et.storage.error_translation import check_fits_memory, translate_errors
from parallel_et.storage.hdf5 import dataset_of, open_hdf5, split_location
from parallel_et.storage.raw_reader import byte_offset, open_npy, read_raw
from parallel_et.storage.stored_rows import files_of
from parallel_et.storage.subprocess_reader import SubprocessReader


class FileRows(Source):
    """Rows of ``file.h5:/dataset`` or ``file.npy``. The file is open only during reads, and must not change.

    An HDF5 file is first inspected in another process, as some damaged files crash HDF5.
    """

    def __init__(self, location: str) -> None:
        self.name = location
        self.path, self.dataset = split_location(location)
        self._states: dict[str, tuple[int, int]] = {}
        self._identities: dict[str, tuple[int, int, int]] = {}
        if not self.path.endswith(".npy") and os.path.isfile(self.path):
            with suppress(OSError), SubprocessReader() as reader:  # the system may refuse another process
                reader.call(self.path, "parallel_et.storage.stored_rows", "inspect_dataset", self.dataset)
        with self._open() as table:
            self.points, self.dims, self.shape = table.points, table.dims, table.shape
            self.dtype, self._stored = table.dtype, table.table.dtype
            self._offset = byte_offset(table.table, self.path)
            self._remember(self.path)
            self._compare_reads(table)

    def _compare_reads(self, table: ArrayRows) -> None:
        """Refuse a file if plain reads and its library return different first or last rows."""
        check_fits_memory(self.name, "a row", 8 * self._row_bytes)
        for row in (0, self.points - 1):
            read = self._read_with_library(table, row, row + 1)
            if self._offset is not None and self._read_unchecked(row, row + 1).tobytes() != read.tobytes():
                found = f"another at byte {self._offset}"
                raise UserError(f"{self.name}: row {row}: expected one, found {found}; h5repack makes a sound file")

    @property
    def _row_bytes(self) -> int:
        return self.dims * np.dtype(self.dtype).itemsize

    @contextmanager
    def _open(self) -> Iterator[ArrayRows]:
        if self.path.endswith(".npy"):
            yield ArrayRows(open_npy(self.path), self.name)
            return
        with open_hdf5(self.path) as file:
            yield ArrayRows(dataset_of(file, self.path, self.dataset), self.name)

    def read(self, first: int, last: int) -> np.ndarray:
        check_fits_memory(f"{self.name}: rows {first} to {last - 1}", "data", (last - first) * self._row_bytes)
        with translate_errors(f"{self.name}: rows {first} to {last - 1}", "numbers", "damage"):
            self._check_unchanged()
            try:
                return self._read_unchecked(first, last)
            finally:
                self._check_unchanged()  # a removed or changed file is not reported as damaged

    def _read_unchecked(self, first: int, last: int) -> np.ndarray:
        if self._offset is None:
            with self._open() as table:
                return self._read_with_library(table, first, last)
        rows = new_table(last - first, self.dims, self.dtype)
        read_raw(self.path, self._offset + first * self.dims * self._stored.itemsize, self._stored, rows, self.dims)
        return rows

    def _read_with_library(self, table: ArrayRows, first: int, last: int) -> np.ndarray:
        """Return rows as NumPy or HDF5 reads them."""
        if not isinstance(table.table, np.ndarray):
            for path in files_of(table.table, first, last):
                self._remember(path)
        with translate_errors(f"{self.name}: rows {first} to {last - 1}", "numbers", "damage"):
            return table.read(first, last)

    def version(self) -> str:
        size, changed = self._states[self.path]
        return f"{size} bytes, changed at {changed} ns"

    def _remember(self, path: str) -> None:
        """Record the state of a file, which must not change from now on."""
        found = os.stat(path)
        self._states.setdefault(path, _state(found))
        self._identities.setdefault(path, _identity(found))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for other ranks, without the identities of files, which are valid on this node only."""
        return {**self.__dict__, "_identities": {}}

    def _check_unchanged(self) -> None:
        """Refuse files that have changed, as rows are read more than once and by several ranks."""
        for path, state in self._states.items():
            try:
                now = os.stat(path)
                same = _state(now) == state and self._identities.setdefault(path, _identity(now)) == _identity(now)
                found = None if same else "another"
            except OSError as error:
                found = "nothing there" if isinstance(error, FileNotFoundError) else error.strerror
            if found is not None:
                raise UserError(f"{path}: expected the file that the run began with, found {found}")


def _state(found: os.stat_result) -> tuple[int, int]:
    """Return size and time of change, which differ between files of one name and agree on all nodes."""
    return found.st_size, found.st_mtime_ns


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    """Return numbers that differ between files of equal size and time, on this node. No program can set them."""
    return found.st_dev, found.st_ino, found.st_ctime_ns
