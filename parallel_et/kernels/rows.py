"""Tables of points in the layout of the kernels: aligned in memory, with rows padded to whole vectors."""

from math import prod
from typing import Any, Protocol

import numpy as np

LANES = 8
"""Doubles in a vector."""
PIECE_COLUMNS = 3 * LANES
"""Columns of a right-hand side that a triangular system is solved for at a time."""
CACHE_LINE = 64
"""Bytes that a processor reads at a time."""


class Rows(Protocol):
    """A rank's points (n, D or wider), in memory or read from a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of points and values per point."""

    @property
    def dtype(self) -> Any:
        """float32 or float64."""

    @property
    def nbytes(self) -> int:
        """Maximum memory of the rows, in bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Return the rows of a block."""


def aligned(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """Return an uninitialised array that starts on a cache line."""
    size = prod(shape) * np.dtype(dtype).itemsize
    buffer = np.empty(size + CACHE_LINE, np.uint8)
    skip = -buffer.ctypes.data % CACHE_LINE
    return buffer[skip : skip + size].view(dtype).reshape(shape)


def writable(values: np.ndarray) -> np.ndarray:
    """Return a writable view of an array, because kernels accept no read-only array even if they only read it."""
    view = values.view()
    view.flags.writeable = True
    return view


def new_table(count: int, dims: int, dtype: Any) -> np.ndarray:
    """Return an uninitialised table for points: padded to (count, padded(dims)) if that is cheap, else (count, dims).

    Padding is cheap if it adds at most 5 %. ``pad_rows`` pads other tables, and float32 tables, block by block.
    """
    width = padded(dims) if dtype == np.float64 and padded(dims) <= 1.05 * dims else dims
    table = aligned((count, width), dtype)
    table[:, dims:] = 0.0
    return table


def padded(dims: int) -> int:
    """Return the next multiple of ``LANES``."""
    return -(-dims // LANES) * LANES


def pad_rows(table: np.ndarray) -> np.ndarray:
    """Return a table (n, D) as aligned float64 with zero padding, without a copy if it already is."""
    width = padded(table.shape[1])
    whole = table.dtype == np.float64 and table.flags.c_contiguous and width == table.shape[1]
    return table if whole and table.ctypes.data % CACHE_LINE == 0 else padded_copy(table)


def padded_copy(table: np.ndarray) -> np.ndarray:
    """Return a copy of a table (n, D) as aligned float64 with zero padding."""
    wide = aligned((len(table), padded(table.shape[1])))
    wide[:, : table.shape[1]] = table
    wide[:, table.shape[1] :] = 0.0
    return wide
