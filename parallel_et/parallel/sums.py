"""Sums over all points that are the same bits on any number of ranks.

A block's float sums are rounded to multiples of a unit that follows from a bound of the whole sum, and added as
integers, which has no order. Two words of 64 bits hold a sum: the first to 2^-62 of the bound, the second to 2^-40
of that, so that also an element far below the bound keeps all digits of a double.
"""

from collections.abc import Mapping
from math import frexp

import numpy as np

from parallel_et.kernels import fixed
from parallel_et.parallel.ranks import Ranks


def scale_for(bound: float) -> float:
    """Power of two that maps sums of magnitude up to ``bound`` into 62 bits."""
    return 2.0 ** max(-1000, min(1000, 62 - frexp(bound)[1])) if bound > 0 else 1.0


class ExactSum:
    """Sum of named arrays over the blocks of all ranks.

    Parameters
    ----------
    shapes : name -> shape of each array
    bounds : name -> largest magnitude that a single point can add to an element
    points : number of points of all ranks
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], bounds: Mapping[str, float], points: int) -> None:
        self.shapes = dict(shapes)
        self.scales = {name: scale_for(bounds[name] * points) for name in shapes}
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()]).tolist()
        self.parts = {name: slice(start, end) for name, start, end in zip(shapes, [0, *ends], ends, strict=False)}
        self.words = np.zeros((2, ends[-1]), np.int64)

    def add(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add one block's sums."""
        for name, part in self.parts.items():
            values = np.ascontiguousarray(arrays[name], np.float64).reshape(-1)
            fixed.add(values, self.scales[name], self.words[0, part], self.words[1, part])

    def on_root(self, ranks: Ranks) -> dict[str, np.ndarray]:
        """The sums over all ranks, in one message; only the root's are meant to be used."""
        ranks.sum_on_root(self.words)
        return self._values()

    def everywhere(self, ranks: Ranks) -> dict[str, np.ndarray]:
        """The sums over all ranks, on every rank."""
        ranks.sum(self.words)
        return self._values()

    def _values(self) -> dict[str, np.ndarray]:
        high, low = self.words
        return {
            name: ((high[part] + low[part] / fixed.LOW) / self.scales[name]).reshape(self.shapes[name])
            for name, part in self.parts.items()
        }


def exact_sum(ranks: Ranks, values: np.ndarray, points: int) -> float:
    """Sum of the ``values`` of all ranks, of which there are ``points``, on every rank."""
    bound = ranks.max(float(np.max(np.abs(values), initial=0.0)))
    scale = scale_for(bound * points)
    total = np.zeros(1, np.int64)
    total[0] = np.rint(values * scale).astype(np.int64).sum()
    ranks.sum(total)
    return float(total[0] / scale)
