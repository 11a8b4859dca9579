"""Tables of points as the kernels like them: aligned in memory, rows padded to whole vectors."""

from math import prod
from typing import Any, Protocol

import numpy as np

LANES = 8
"""Doubles in a vector."""
PIECE = 3 * LANES
"""Columns that a triangle is solved for at a time."""
CACHE_LINE = 64
"""Bytes that a processor reads at a time."""


class Rows(Protocol):
    """A rank's points (n, D or wider), in memory or not."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Points and values of a point."""

    @property
    def dtype(self) -> Any:
        """float32 or float64."""

    @property
    def nbytes(self) -> int:
        """Memory that they take at most."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: Any) -> np.ndarray:
        """The rows of a block."""


def aligned(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """An uninitialised array that starts on a cache line."""
    size = prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + CACHE_LINE, np.uint8)
    skip = -room.ctypes.data % CACHE_LINE
    return room[skip : skip + size].view(dtype).reshape(shape)


def writable(values: np.ndarray) -> np.ndarray:
    """A view of an array that may be read-only, for kernels, which take no such array even if they only read it."""
    view = values.view()
    view.flags.writeable = True
    return view


def new_table(count: int, dims: int, dtype: Any) -> np.ndarray:
    """An uninitialised table for points that stay as they are: with zeros behind each row, where that costs little.

    Where it does not, or where they have to be widened from single precision anyway, ``pad_rows`` does it block by
    block; (count, dims) or (count, padded(dims)).
    """
    width = padded(dims) if dtype == np.float64 and padded(dims) <= 1.05 * dims else dims
    table = aligned((count, width), dtype)
    table[:, dims:] = 0.0
    return table


def padded(dims: int) -> int:
    """The next multiple of ``LANES``."""
    return -(-dims // LANES) * LANES


def pad_rows(table: np.ndarray) -> np.ndarray:
    """A table (n, D) as aligned float64 with zeros added to its rows; itself if nothing is to be done."""
    width = padded(table.shape[1])
    whole = table.dtype == np.float64 and table.flags.c_contiguous and width == table.shape[1]
    return table if whole and table.ctypes.data % CACHE_LINE == 0 else padded_copy(table)


def padded_copy(table: np.ndarray) -> np.ndarray:
    """A table (n, D) as aligned float64 with zeros added to its rows, in memory of its own."""
    wide = aligned((len(table), padded(table.shape[1])))
    wide[:, : table.shape[1]] = table
    wide[:, table.shape[1] :] = 0.0
    return wide
