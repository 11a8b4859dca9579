"""What every source of data points offers: rows by their number."""

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
from parallel_et.storage.error_translation import brief

GROUP = 256
"""Points that a generator draws at a time; fixed for ever, so that the data depend on the seed alone."""

PIECE = 1 << 24
"""Bytes that are read from a file at a time."""


class DataOptions(Section):
    """The keys of [data] that all sources have."""

    source: str = Field(description='"file.h5:/dataset", "file.npy", or the name of a generator')
    memory: Size = Field(
        None, description='most that a rank keeps of its rows, as "8 GiB"; of more it reads all again in every pass'
    )
    holdout: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="part of the rows, drawn by run.seed, that is not learned from; their evidence is told instead",
    )
    centre: bool = Field(
        False,
        description="subtract from each dimension its mean over all points; kept in the result, undone by infer and "
        "generate",
    )

    def mistakes(self) -> list[tuple[str, str, object]]:
        """What does not fit together: key, what was expected, what was found."""
        return []


class Source(ABC):
    """Rows of a (points, dims) table, of which a rank reads its own; ``shape`` is a row's shape, for pictures.

    ``dtype`` is what rows are read as: float32 or float64; ``holds`` are the bytes that it takes to make them.
    """

    points: int
    dims: int
    shape: tuple[int, ...]
    name = "data"
    dtype: Any = np.float64
    holds: int = 0

    def state(self) -> str:
        """What tells these data from others of the same name, as far as that can be had without reading them."""
        return ""

    @abstractmethod
    def read(self, first: int, last: int) -> np.ndarray:
        """Rows [first, last) as an array of float32 or float64, (last - first, dims), or wider with zeros behind."""

    def numbers(self, first: int, last: int) -> np.ndarray:
        """What numbers the rows [first, last) have where they come from, rising."""
        return np.arange(first, last)

    def truth(self) -> dict[str, np.ndarray]:
        """The parameters behind the data, where they are known."""
        return {}


class ArrayRows(Source):
    """Rows of an array, a memory map or an open HDF5 dataset; axes after the first, the points, are flattened.

    float32 and float64 stay as they are; half precision becomes float32, integers and truth values float64.
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
        step = max(1, PIECE // (rows.itemsize * self.dims))
        for start in range(first, last, step):
            piece = np.asarray(self.table[start : min(start + step, last)])
            rows[start - first : start - first + len(piece), : self.dims] = piece.reshape(len(piece), self.dims)
            forget(self.table)
        return rows


def as_array(table: Any, name: str) -> np.ndarray:
    """Return what a script gives as an array."""
    try:
        return np.asarray(table)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: expected points x dimensions, found {type(table).__name__}: {brief(error)}") from None


class Centred(Source):
    """The rows of another source less what is subtracted from each, ``mean`` (D,), rounded as that has its rows."""

    def __init__(self, source: Source, mean: np.ndarray) -> None:
        self.source, self.mean = source, mean
        self.points, self.dims, self.shape = source.points, source.dims, source.shape
        self.name, self.dtype, self.holds = source.name, source.dtype, source.holds

    def state(self) -> str:
        return self.source.state()

    def numbers(self, first: int, last: int) -> np.ndarray:
        return self.source.numbers(first, last)

    def read(self, first: int, last: int) -> np.ndarray:
        rows = self.source.read(first, last)
        rows[:, : self.dims] -= self.mean
        return rows

    def truth(self) -> dict[str, np.ndarray]:
        return self.source.truth()


def forget(table: Any) -> None:
    """Let the system have back the memory of what was read of a memory map; others are left alone."""
    if isinstance(table, np.memmap) and table.mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
        table._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def shown(s: np.ndarray, proximity: np.ndarray, masks: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Points in which each pixel shows the nearest of the active causes that are there, or nothing.

    s (n, b) bool, proximity (n, b) > 0, masks (b, pixels) bool, features (b, channels) -> (n, pixels channels).
    """
    who, nearest = np.full((len(s), masks.shape[1]), -1), np.zeros((len(s), masks.shape[1]))
    for number, mask in enumerate(masks):
        near = np.where(mask, (s[:, number] * proximity[:, number])[:, None], 0.0)
        who, nearest = np.where(near > nearest, number, who), np.maximum(near, nearest)
    return np.vstack([features, np.zeros_like(features[:1])])[who].reshape(len(s), -1)


class Generated(Source):
    """A source that draws its points, in groups of ``GROUP``."""

    @abstractmethod
    def group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The points of one group, (GROUP, dims), and the states that made them, (GROUP, causes)."""

    def drawn(self, first: int, last: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Rows [first, last) group by group: their place among these rows, the points and their states."""
        for index in range(first // GROUP, -(-last // GROUP)):
            low, high = max(first, index * GROUP), min(last, (index + 1) * GROUP)
            part = slice(low - index * GROUP, high - index * GROUP)
            points, states = self.group(index)
            yield slice(low - first, high - first), points[part], states[part]

    def read(self, first: int, last: int) -> np.ndarray:
        rows = new_table(last - first, self.dims, np.float64)
        for place, points, _ in self.drawn(first, last):
            rows[place, : self.dims] = points
        return rows
