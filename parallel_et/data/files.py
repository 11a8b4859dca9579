"""Rows of data files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from parallel_et.data.base import ArrayRows, Source
from parallel_et.errors import UserError
from parallel_et.kernels.rows import new_table
from parallel_et.storage.error_translation import check_room, gate
from parallel_et.storage.hdf5 import dataset_of, open_hdf5, split_place
from parallel_et.storage.raw_reader import open_npy, place_of, read_plain
from parallel_et.storage.stored_rows import files_of
from parallel_et.storage.subprocess_reader import Apart


class FileRows(Source):
    """Rows of ``file.h5:/dataset`` or ``file.npy``; the file is open only while it is read, and must stay as it is.

    An HDF5 file is first looked at in another process, as there are damaged ones that HDF5 does not survive.
    """

    def __init__(self, place: str) -> None:
        self.name = place
        self.path, self.dataset = split_place(place)
        self._states: dict[str, tuple[int, int]] = {}
        self._identities: dict[str, tuple[int, int, int]] = {}
        if not self.path.endswith(".npy") and os.path.isfile(self.path):
            with suppress(OSError), Apart() as apart:  # no other process may be had: not the fault of the file
                apart.ask(self.path, "parallel_et.storage.stored_rows", "look", self.dataset)
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
            try:
                return self._read(first, last)
            finally:
                self._check()  # a file that went away or changed meanwhile is not damaged

    def _read(self, first: int, last: int) -> np.ndarray:
        if self._place is None:
            with self._open() as table:
                return self._from(table, first, last)
        rows = new_table(last - first, self.dims, self.dtype)
        read_plain(self.path, self._place + first * self.dims * self._stored.itemsize, self._stored, rows, self.dims)
        return rows

    def _from(self, table: ArrayRows, first: int, last: int) -> np.ndarray:
        """Rows as their library reads them."""
        if not isinstance(table.table, np.ndarray):
            for path in files_of(table.table, first, last):
                self._note(path)
        with gate(f"{self.name}: rows {first} to {last - 1}", "numbers", "damage"):
            return table.read(first, last)

    def state(self) -> str:
        size, changed = self._states[self.path]
        return f"{size} bytes, changed at {changed} ns"

    def _note(self, path: str) -> None:
        """From now on this file must not change."""
        found = os.stat(path)
        self._states.setdefault(path, _state(found))
        self._identities.setdefault(path, _identity(found))

    def __getstate__(self) -> dict[str, Any]:
        """Return what other ranks get: what identifies a file on this node does not do so on theirs."""
        return {**self.__dict__, "_identities": {}}

    def _check(self) -> None:
        """Rows are read more than once, and by several ranks: they must not change meanwhile."""
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
    """Return what tells a file from another of its name, the same on every node that has the file."""
    return found.st_size, found.st_mtime_ns


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    """Return what tells a file from one of the same size and time, on this node: no program can set these numbers."""
    return found.st_dev, found.st_ino, found.st_ctime_ns
