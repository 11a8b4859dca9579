"""Sums over all points that are bit-identical on any number of ranks.

The floating point sums of a block are rounded to multiples of a unit, and added as integers. Integer addition has no
order. The unit follows from a bound of the whole sum. Two words of 64 bits hold a sum: a high word in units of 2^-62 of
the bound, and a low word in units of 2^-40 of that. Elements far below the bound therefore keep all digits of a double.
"""

from collections.abc import Mapping
from math import frexp
from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.kernels import fixed
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.work_sharing import WorkSharing, serial


def scale_for(bound: float) -> float:
    """Return the power of two that maps sums of magnitude up to ``bound`` into 62 bits."""
    return 2.0 ** max(-1000, min(1000, 62 - frexp(bound)[1])) if bound > 0 else 1.0


def scales_for(bound: float | np.ndarray, shape: tuple[int, ...]) -> Any:
    """Return the scale of an array, or the scales of its elements (m,) if the bound is an array."""
    if np.ndim(bound) == 0:
        return scale_for(float(bound))
    scales = np.where(bound > 0, np.ldexp(1.0, np.clip(62 - np.frexp(bound)[1], -1000, 1000)), 1.0)
    return np.array(np.broadcast_to(scales, shape)).reshape(-1)


def largest_product(bound: float | np.ndarray, scale: Any, shape: tuple[int, ...]) -> float:
    """Return the largest bound times its scale, of an array of a shape."""
    if np.ndim(bound) == 0:
        return float(bound * scale)
    return float(np.max(np.broadcast_to(bound, shape).reshape(-1) * scale))


class ExactSum:
    """The sums of named arrays over the blocks of all ranks. Call ``reset`` before the first sum.

    Parameters
    ----------
    shapes : name -> shape of each array
    work_sharing : owner of the shared memory for the sums of a node
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], work_sharing: WorkSharing = serial) -> None:
        self.shapes = dict(shapes)
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()]).tolist()
        self._slices = {name: slice(start, end) for name, start, end in zip(shapes, [0, *ends], ends, strict=False)}
        self._words_of_node = work_sharing.shared_array("words", (work_sharing.size, 2, ends[-1]), np.int64)
        self._words = self._words_of_node[work_sharing.rank]
        self._largest = {name: np.zeros(1) for name in shapes}

    def reset(self, bounds: Mapping[str, float | np.ndarray], points: int, block: int) -> None:
        """Set all sums to zero.

        Parameters
        ----------
        bounds : name -> largest magnitude that a point adds to an element: a number, or an array that broadcasts to the
            shape of the sum, so that small elements keep their digits
        points : points of all ranks
        block : number of points per block; the last block may be shorter
        """
        self.bounds = dict(bounds)
        self._block_points = min(points, block)
        self.scales = {name: scales_for(bounds[name] * points, shape) for name, shape in self.shapes.items()}
        self._limits = {
            name: (1 + 1e-6) * self._block_points * largest_product(bounds[name], self.scales[name], shape)
            for name, shape in self.shapes.items()
        }
        self._words[:] = 0
        for largest in self._largest.values():
            largest[:] = 0.0

    def words(self, name: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        """Return the state of a sum, for kernels that add to it.

        Returns
        -------
        the scale, (m,) if the bound is an array; the high and the low words, (m,) each; and the largest scaled
        magnitude that was added to an element so far, (1,)
        """
        part = self._slices[name]
        return self.scales[name], self._words[0, part], self._words[1, part], self._largest[name]

    def check(self) -> None:
        """Raise an error if a block has added more than the bound of its points, as integers may have overflowed.

        If all blocks respect the bound, the sum is below twice the bound of all points, which 63 bits hold.
        """
        for name, limit in self._limits.items():
            if not self._largest[name][0] <= limit:
                bound = float(np.max(self.bounds[name]))
                found = self._largest[name][0] / np.min(self.scales[name])
                raise UserError(
                    f"statistic {name}: expected at most {bound * self._block_points:.6g} of a block of "
                    f"{self._block_points} points, by the model's bound of {bound:.6g} per point, found {found:.6g}"
                    + (" or NaN" if np.isinf(found) else "")
                )

    def add(self, name: str, values: Any, first: int = 0) -> None:
        """Add the sum of a block to an array, or to its elements from ``first`` on."""
        flat = np.ascontiguousarray(values, np.float64).reshape(-1)
        scale, high, low, largest = self.words(name)
        some = slice(first, first + len(flat))
        if np.ndim(scale):
            flat, scale = flat * scale[some], 1.0
        fixed.add(flat, scale, high[some], low[some], largest)

    def merge(self, other: "ExactSum") -> None:
        """Add the sums of another instance."""
        for words in (self._words, other._words):
            fixed.carry_all(*words)
        self._words += other._words

    def on_root(self, ranks: Ranks) -> dict[str, np.ndarray]:
        """Return the sums over all ranks on the root, and an empty dictionary elsewhere. Call ``check`` before."""
        if ranks.size > 1:
            fixed.carry_all(*self._words)
        ranks.sum_on_root(self._words)
        return self._numbers() if ranks.is_root else {}

    def on_all_ranks(self, ranks: Ranks) -> dict[str, np.ndarray]:
        """Check the sums, and return the sums over all ranks on every rank."""
        with ranks.synchronise_errors():
            self.check()
        if ranks.size > 1:
            fixed.carry_all(*self._words)
        ranks.sum(self._words)
        return self._numbers()

    def in_shared_memory(self, work_sharing: WorkSharing) -> dict[str, np.ndarray]:
        """Return the sums over all ranks in read-only memory that a node shares. Call ``check`` before."""
        values = work_sharing.shared_array("sums", self._words.shape[1:])
        work_sharing.sum(self._words_of_node, lambda words, first: self._write(words, first, values), values)
        sums = self._named(values)
        for one in sums.values():
            one.flags.writeable = False
        return sums

    def _numbers(self) -> dict[str, np.ndarray]:
        """Return the sums as floating point numbers."""
        values = np.empty(self._words.shape[1])
        self._write(self._words, 0, values)
        return self._named(values)

    def _write(self, words: np.ndarray, first: int, values: np.ndarray) -> None:
        """Convert ``words`` (2, n) to numbers, and write them to ``values`` (m,) from element ``first`` on."""
        last = first + words.shape[1]
        for name, part in self._slices.items():
            start, stop = max(first, part.start), min(last, part.stop)
            if start < stop:
                scale, words_of = self.scales[name], words[:, start - first : stop - first]
                fixed.to_float(1.0 if np.ndim(scale) else scale, *words_of, values[start:stop])
                if np.ndim(scale):
                    values[start:stop] /= scale[start - part.start : stop - part.start]

    def _named(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Return views of ``values`` (m,) with the names and shapes of the sums."""
        return {name: values[part].reshape(self.shapes[name]) for name, part in self._slices.items()}


def exact_sum(ranks: Ranks, values: np.ndarray, points: int) -> float:
    """Return the sum of the ``values`` of all ranks, ``points`` numbers in total, on every rank."""
    bound = ranks.max(float(np.max(np.abs(values), initial=0.0)))
    scale = scale_for(bound * points)
    total = np.zeros(1, np.int64)
    total[0] = np.rint(values * scale).astype(np.int64).sum()
    ranks.sum(total)
    return float(total[0] / scale)
