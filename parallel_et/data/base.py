"""The base class of all sources of data points, which return rows by their number."""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from pydantic import Field

from parallel_et.core.schema import Section, Size
from parallel_et.errors import UserError
from parallel_et.kernels.rows import new_table
from parallel_et.storage.error_translation import one_line

GROUP_POINTS = 256
"""Points that a generator draws together. The value never changes, so that data depend only on the seed."""

READ_BYTES = 1 << 24
"""Bytes read from a file at a time."""


class DataOptions(Section):
    """The keys of [data] that all sources have."""

    source: str = Field(description='"file.h5:/dataset", "file.npy", or the name of a generator')
    memory: Size = Field(
        None,
        description='maximum memory per rank for the data, such as "8 GiB"; larger data are read again in every pass',
    )
    holdout: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="fraction of held-out rows (validation set), drawn with run.seed; the run reports their evidence",
    )
    centre: bool = Field(
        False,
        description="subtract the mean of all points; the result stores the mean, and infer and generate use it",
    )

    def inconsistencies(self) -> list[tuple[str, str, object]]:
        """Return the keys that do not fit together, each as (key, expected, found)."""
        return []


class Source(ABC):
    """A table of data points. Each rank reads its own rows.

    Attributes
    ----------
    points, dims : shape of the table
    shape : shape of a row, for pictures
    dtype : float32 or float64
    working_bytes : memory that the source needs to make rows
    """

    points: int
    dims: int
    shape: tuple[int, ...]
    name = "data"
    dtype: Any = np.float64
    working_bytes: int = 0

    def version(self) -> str:
        """Return a text that differs between data of the same name, as far as known without reading the data."""
        return ""

    @abstractmethod
    def read(self, first: int, last: int) -> np.ndarray:
        """Return rows [first, last) as float32 or float64, (last - first, dims), or wider and padded with zeros."""

    def row_numbers(self, first: int, last: int) -> np.ndarray:
        """Return the numbers of rows [first, last) in the original data, ascending."""
        return np.arange(first, last)

    def truth(self) -> dict[str, np.ndarray]:
        """Return the true parameters of the data, empty if unknown."""
        return {}


class ArrayRows(Source):
    """Rows of an array, a memory map or an open HDF5 dataset. All axes but the first are flattened.

    float32 and float64 are kept. Half precision becomes float32; integers and truth values become float64.
    """

    def __init__(self, table: Any, name: str = "data") -> None:
        if np.ma.is_masked(table):
            hidden = np.argwhere(np.ma.getmaskarray(table))[0]
            raise UserError(f"{name}: row {hidden[0]}: expected numbers, found a masked value")
        if hasattr(table, "toarray"):
            size = prod(table.shape) * max(8, table.dtype.itemsize)
            way_out = f"data.toarray() makes one, of {size / 1e6:.3g} MB"
            raise UserError(f"{name}: expected a dense array, found a sparse one ({type(table).__name__}); {way_out}")
        self.table = table if isinstance(getattr(table, "dtype", None), np.dtype) else as_array(table, name)
        self.table = np.asarray(table) if isinstance(table, np.ma.MaskedArray) else self.table
        self.name = name
        shape = np.shape(self.table)
        if len(shape) < 2 or 0 in shape:
            raise UserError(f"{name}: expected points x dimensions, found the shape {shape}")
        if self.table.dtype.kind not in "fiub" or self.table.dtype.itemsize > 8:
            raise UserError(f"{name}: expected numbers, found {self.table.dtype}")
        self.points, self.shape = shape[0], tuple(shape[1:])
        self.dims = prod(self.shape)
        self.dtype = np.float32 if self.table.dtype in (np.float32, np.float16) else np.float64

    def read(self, first: int, last: int) -> np.ndarray:
        rows = new_table(last - first, self.dims, self.dtype)
        step = max(1, READ_BYTES // (rows.itemsize * self.dims))
        for start in range(first, last, step):
            piece = np.asarray(self.table[start : min(start + step, last)])
            rows[start - first : start - first + len(piece), : self.dims] = piece.reshape(len(piece), self.dims)
            release_pages(self.table)
        return rows


def as_array(table: Any, name: str) -> np.ndarray:
    """Return the data of a script as an array."""
    try:
        return np.asarray(table)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{name}: expected points x dimensions, found {type(table).__name__}: {one_line(error)}"
        ) from None


class Centred(Source):
    """The rows of another source minus ``mean`` (D,), in the dtype of the other source."""

    def __init__(self, source: Source, mean: np.ndarray) -> None:
        self.source, self.mean = source, mean
        self.points, self.dims, self.shape = source.points, source.dims, source.shape
        self.name, self.dtype, self.working_bytes = source.name, source.dtype, source.working_bytes

    def version(self) -> str:
        return self.source.version()

    def row_numbers(self, first: int, last: int) -> np.ndarray:
        return self.source.row_numbers(first, last)

    def read(self, first: int, last: int) -> np.ndarray:
        rows = self.source.read(first, last)
        rows[:, : self.dims] -= self.mean
        return rows

    def truth(self) -> dict[str, np.ndarray]:
        return self.source.truth()


def release_pages(table: Any) -> None:
    """Free the pages of a memory map that were read; other tables are ignored."""
    if isinstance(table, np.memmap) and table.mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
        table._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def show_nearest(s: np.ndarray, proximity: np.ndarray, masks: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return points in which each pixel shows its nearest active cause, or zero.

    Parameters
    ----------
    s : (n, b) bool, active causes
    proximity : (n, b), positive; the nearest cause has the largest value
    masks : (b, pixels) bool, pixels of each cause
    features : (b, channels), colours

    Returns
    -------
    (n, pixels * channels)
    """
    cause, nearest = np.full((len(s), masks.shape[1]), -1), np.zeros((len(s), masks.shape[1]))
    for number, mask in enumerate(masks):
        near = np.where(mask, (s[:, number] * proximity[:, number])[:, None], 0.0)
        cause, nearest = np.where(near > nearest, number, cause), np.maximum(near, nearest)
    return np.vstack([features, np.zeros_like(features[:1])])[cause].reshape(len(s), -1)


class Generated(Source):
    """A source that draws its points in groups of ``GROUP_POINTS``."""

    @abstractmethod
    def group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the points of one group, (GROUP_POINTS, dims), and their true states, (GROUP_POINTS, causes)."""

    def draw_groups(self, first: int, last: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield rows [first, last) group by group: slice of these rows, points and states."""
        for index in range(first // GROUP_POINTS, -(-last // GROUP_POINTS)):
            low, high = max(first, index * GROUP_POINTS), min(last, (index + 1) * GROUP_POINTS)
            part = slice(low - index * GROUP_POINTS, high - index * GROUP_POINTS)
            points, states = self.group(index)
            yield slice(low - first, high - first), points[part], states[part]

    def read(self, first: int, last: int) -> np.ndarray:
        rows = new_table(last - first, self.dims, np.float64)
        for span, points, _ in self.draw_groups(first, last):
            rows[span, : self.dims] = points
        return rows
