"""Rows that lie in a file just as they are, one after another: read by their place, past all libraries.

Plain reads let other threads run, copy the numbers once, and notice a file that has become too short, for which a
memory map would end the process.
"""

from io import FileIO
from typing import Any

import h5py
import numpy as np

from parallel_et.errors import UserError

PIECE = 1 << 20
"""Bytes that are read at a time where they have to be converted."""


def place_of(table: Any) -> int | None:
    """The byte of its file at which a memory map or an HDF5 dataset begins, if it lies there whole and as it is."""
    if isinstance(table, np.memmap):
        return table.offset if table.flags.c_contiguous else None
    if table.chunks is not None or table.is_virtual or table.external:
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
