"""Rows that lie in a file just as they are, one after another: read by their place, past all libraries.

Plain reads let other threads run, copy the numbers once, and notice a file that has become too short, for which a
memory map would end the process.
"""

import os
from io import FileIO
from math import prod
from typing import Any

import h5py
import numpy as np

from parallel_et.control.paths import kind_of
from parallel_et.errors import UserError
from parallel_et.storage.error_translation import gate

PIECE = 1 << 20
"""Bytes that are read at a time where they have to be converted."""


def open_npy(path: str) -> np.ndarray:
    """A memory map of the array of a .npy file, which is numbers, and all there."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: expected a .npy file, found {kind_of(path)}")
    with gate(path, "a .npy file", "something else"), open(path, "rb") as file:
        version, _ = np.lib.format.read_magic(file)
        if version not in (1, 2, 3):  # the third differs from the second in names alone, which numbers do not have
            raise UserError(f"{path}: expected version 1, 2 or 3 of .npy, found {version}")
        read = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(file)
        place, size = file.tell(), os.fstat(file.fileno()).st_size
        if dtype.kind not in "fiub":
            raise UserError(f"{path}: expected numbers, found {dtype!s:.60}")
        if min(shape, default=0) < 0 or len(shape) > 32:
            raise UserError(f"{path}: expected a shape, found {shape!s:.60}")
        if place + prod(shape) * dtype.itemsize > size:
            expected = f"{prod(shape) * dtype.itemsize:.6g} bytes of the shape {shape!s:.60}"
            raise UserError(f"{path}: expected {expected}, found {size - place}")
        if not prod(shape):
            return np.empty(shape, dtype)
        return np.memmap(file, dtype, "r", place, shape, "F" if columns_first else "C")


def place_of(table: Any, path: str) -> int | None:
    """The byte of its file at which a memory map or an HDF5 dataset begins, if it lies there whole and as it is.

    A dataset may also lie in another file than the one that was opened: links lead there, and sources of virtual ones.
    """
    if not isinstance(table, h5py.Dataset):
        return table.offset if isinstance(table, np.memmap) and table.flags.c_contiguous else None
    if table.chunks is not None or table.is_virtual or table.external or table.file.driver != "sec2":
        return None
    if not os.path.samefile(table.file.filename, path):
        return None
    as_it_is = h5py.h5t.py_create(table.dtype) == table.id.get_type()
    return table.id.get_offset() if as_it_is else None


def read_plain(path: str, place: int, stored: np.dtype, rows: np.ndarray, dims: int) -> None:
    """Fill the first ``dims`` columns of ``rows`` (n, dims or wider) with numbers that begin at a byte of a file."""
    with FileIO(path) as file:
        file.seek(place)
        if stored == rows.dtype and rows.shape[1] == dims:
            _fill(file, rows)
            return
        step = max(1, PIECE // (stored.itemsize * dims))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            piece = np.empty((len(part), dims), stored)
            _fill(file, piece)
            part[:, :dims] = piece


def _fill(file: FileIO, array: np.ndarray) -> None:
    room = array.reshape(-1).view(np.uint8)
    while len(room):
        count = file.readinto(room)  # type: ignore[arg-type]
        if not count:
            raise UserError(f"{file.name}: expected {len(room)} bytes more, found the end of the file")
        room = room[count:]
