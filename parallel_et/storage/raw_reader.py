"""Plain reads of rows that a file stores contiguously and without compression, without NumPy or HDF5.

Plain reads let other threads run, and copy the numbers once.
They report a file that has become too short; a memory map would end the process.
"""

import os
from io import FileIO
from math import prod
from typing import Any

import h5py
import numpy as np

from parallel_et.control.paths import describe_path
from parallel_et.errors import UserError
from parallel_et.storage.error_translation import translate_errors

CONVERTED_BYTES = 1 << 20
"""Bytes read at a time if the numbers have to be converted."""


def open_npy(path: str) -> np.ndarray:
    """Return a memory map of the array of a .npy file; refuse files that are too short or have no numbers."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: expected a .npy file, found {describe_path(path)}")
    with translate_errors(path, "a .npy file", "something else"), open(path, "rb") as file:
        version, _ = np.lib.format.read_magic(file)
        if version not in (1, 2, 3):  # version 3 differs from 2 only in the names of fields, which numbers do not have
            raise UserError(f"{path}: expected version 1, 2 or 3 of .npy, found {version}")
        read = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(file)
        offset, size = file.seek(0, os.SEEK_CUR), os.fstat(file.fileno()).st_size
        if dtype.kind not in "fiub":
            raise UserError(f"{path}: expected numbers, found {dtype!s:.60}")
        if min(shape, default=0) < 0 or len(shape) > 32:
            raise UserError(f"{path}: expected a shape, found {shape!s:.60}")
        if offset + prod(shape) * dtype.itemsize > size:
            expected = f"{prod(shape) * dtype.itemsize:.6g} bytes of the shape {shape!s:.60}"
            raise UserError(f"{path}: expected {expected}, found {size - offset}")
        if not prod(shape):
            return np.empty(shape, dtype)
        return np.memmap(file, dtype, "r", offset, shape, "F" if columns_first else "C")


def byte_offset(table: Any, path: str) -> int | None:
    """Return the byte of a file at which a memory map or an HDF5 dataset begins; None if plain reads cannot read it.

    A dataset behind a link, or a source of a virtual dataset, may be in another file than the opened one.
    """
    if not isinstance(table, h5py.Dataset):
        return table.offset if isinstance(table, np.memmap) and table.flags.c_contiguous else None
    if table.chunks is not None or table.is_virtual or table.external or table.file.driver != "sec2":
        return None
    if not os.path.samefile(table.file.filename, path):
        return None
    as_it_is = h5py.h5t.py_create(table.dtype) == table.id.get_type()
    return table.id.get_offset() if as_it_is else None


def read_raw(path: str, offset: int, stored: np.dtype, rows: np.ndarray, dims: int) -> None:
    """Fill the first ``dims`` columns of ``rows`` (n, dims or wider) with numbers from byte ``offset`` of a file."""
    with FileIO(path) as file:
        file.seek(offset)
        if stored == rows.dtype and rows.shape[1] == dims:
            _fill(file, rows)
            return
        step = max(1, CONVERTED_BYTES // (stored.itemsize * dims))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            piece = np.empty((len(part), dims), stored)
            _fill(file, piece)
            part[:, :dims] = piece


def _fill(file: FileIO, array: np.ndarray) -> None:
    missing = array.reshape(-1).view(np.uint8)
    while len(missing):
        count = file.readinto(missing)  # type: ignore[arg-type]
        if not count:
            raise UserError(f"{file.name}: expected {len(missing)} bytes more, found the end of the file")
        missing = missing[count:]
