"""What every source of data points offers: rows by their number."""

from abc import ABC, abstractmethod

import numpy as np

GROUP = 256
"""Points that a generator draws at a time; fixed for ever, so that the data depend on the seed alone."""


class Source(ABC):
    """Rows of a (points, dims) table, of which a rank reads its own; ``shape`` is a row's shape, for pictures."""

    points: int
    dims: int
    shape: tuple[int, ...]
    name = "data"

    @abstractmethod
    def read(self, first: int, last: int) -> np.ndarray:
        """Rows [first, last) as a (last - first, dims) array of float32 or float64."""

    def truth(self) -> dict[str, np.ndarray]:
        """The parameters behind the data, where they are known."""
        return {}


class Generated(Source):
    """A source that draws its points, in groups of ``GROUP``."""

    @abstractmethod
    def group(self, index: int) -> np.ndarray:
        """The points of one group, (GROUP, dims)."""

    def read(self, first: int, last: int) -> np.ndarray:
        rows = np.empty((last - first, self.dims))
        for index in range(first // GROUP, -(-last // GROUP)):
            low, high = max(first, index * GROUP), min(last, (index + 1) * GROUP)
            rows[low - first : high - first] = self.group(index)[low - index * GROUP : high - index * GROUP]
        return rows
