"""Sums over all points that are the same bits on any number of ranks.

A block's float sums are rounded to multiples of a unit that follows from a bound of the whole sum, and added as
integers, which has no order. Two words of 64 bits hold a sum: the first to 2^-62 of the bound, the second to 2^-40
of that, so that also an element far below the bound keeps all digits of a double.
"""

from collections.abc import Mapping
from math import frexp
from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.kernels import fixed
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.work_sharing import Deal, alone


def scale_for(bound: float) -> float:
    """Power of two that maps sums of magnitude up to ``bound`` into 62 bits."""
    return 2.0 ** max(-1000, min(1000, 62 - frexp(bound)[1])) if bound > 0 else 1.0


def scales_for(bound: float | np.ndarray, shape: tuple[int, ...]) -> Any:
    """Return the scale of an array, or one for each of its elements (m,) if the bound has axes."""
    if np.ndim(bound) == 0:
        return scale_for(float(bound))
    scales = np.where(bound > 0, np.ldexp(1.0, np.clip(62 - np.frexp(bound)[1], -1000, 1000)), 1.0)
    return np.array(np.broadcast_to(scales, shape)).reshape(-1)


class ExactSum:
    """Sum of named arrays over the blocks of all ranks; to be ``reset`` before use.

    Parameters
    ----------
    shapes : name -> shape of each array
    deal : has the room in which they are added up, if not all of it is this rank's own
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], deal: Deal = alone) -> None:
        self.shapes = dict(shapes)
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()]).tolist()
        self.parts = {name: slice(start, end) for name, start, end in zip(shapes, [0, *ends], ends, strict=False)}
        self._of_node = deal.room("words", (deal.size, 2, ends[-1]), np.int64)
        self._words = self._of_node[deal.rank]
        self._largest = {name: np.zeros(1) for name in shapes}

    def reset(self, bounds: Mapping[str, float | np.ndarray], points: int, block: int) -> None:
        """Begin a sum over ``points`` points of all ranks, each of which adds at most its bound to an element.

        A bound is a number, or an array that is broadcast to the shape of the sum: elements of small bounds keep their
        digits beside those of large ones. Points come in blocks of ``block``, of which the last may be shorter.
        """
        self.bounds, self._at_once = dict(bounds), min(points, block)
        self.scales = {name: scales_for(bounds[name] * points, shape) for name, shape in self.shapes.items()}
        self._limits = {
            name: (1 + 1e-6)
            * self._at_once
            * np.max(np.broadcast_to(bounds[name], shape).reshape(-1) * self.scales[name])
            for name, shape in self.shapes.items()
        }
        self._words[:] = 0
        for largest in self._largest.values():
            largest[:] = 0.0

    def words(self, name: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        """Of an array, for kernels that add to it themselves: scale, high words and low words (m,), and (1,) for the
        largest magnitude, scaled, that was ever added to an element. The scale is (m,) if the bound has axes.
        """
        part = self.parts[name]
        return self.scales[name], self._words[0, part], self._words[1, part], self._largest[name]

    def check(self) -> None:
        """Refuse sums to which a block has added more than its points may: they could have left their range.

        Where each block keeps to it, the sum is below twice the bound of all points, and 63 bits hold that.
        """
        for name, limit in self._limits.items():
            if not self._largest[name][0] <= limit:
                bound = float(np.max(self.bounds[name]))
                most, found = bound * self._at_once, self._largest[name][0] / np.min(self.scales[name])
                raise UserError(
                    f"statistic {name}: expected at most {most:.6g} of a block of {self._at_once} points, by the "
                    f"model's bound of {bound:.6g} a point, found {found:.6g}"
                    + (" or no number" if np.isinf(found) else "")
                )

    def add(self, name: str, values: Any, first: int = 0) -> None:
        """Add one block's sum to an array, or to a run of its elements from ``first`` on."""
        flat = np.ascontiguousarray(values, np.float64).reshape(-1)
        scale, high, low, largest = self.words(name)
        some = slice(first, first + len(flat))
        if np.ndim(scale):
            flat, scale = flat * scale[some], 1.0
        fixed.add(flat, scale, high[some], low[some], largest)

    def merge(self, other: "ExactSum") -> None:
        """Add what another one has added up."""
        for words in (self._words, other._words):
            fixed.settle(*words)
        self._words += other._words

    def on_root(self, ranks: Ranks) -> dict[str, np.ndarray]:
        """The sums over all ranks, in one message; only the root's are meant to be used. ``check`` them before."""
        if ranks.size > 1:
            fixed.settle(*self._words)
        ranks.sum_on_root(self._words)
        return self._numbers() if ranks.is_root else {}

    def everywhere(self, ranks: Ranks) -> dict[str, np.ndarray]:
        """The sums over all ranks, checked, on every rank."""
        with ranks.together():
            self.check()
        if ranks.size > 1:
            fixed.settle(*self._words)
        ranks.sum(self._words)
        return self._numbers()

    def in_room(self, deal: Deal) -> dict[str, np.ndarray]:
        """The sums over all ranks in a room, read-only, for those that add them up in one. ``check`` them before."""
        values = deal.room("sums", self._words.shape[1:])
        deal.sum(self._of_node, lambda words, first: self._write(words, first, values), values)
        sums = self._named(values)
        for one in sums.values():
            one.flags.writeable = False
        return sums

    def _numbers(self) -> dict[str, np.ndarray]:
        values = np.empty(self._words.shape[1])
        self._write(self._words, 0, values)
        return self._named(values)

    def _write(self, words: np.ndarray, first: int, values: np.ndarray) -> None:
        """Write the numbers that ``words`` (2, n) stand for, from ``first`` on, into those of all arrays (m,)."""
        last = first + words.shape[1]
        for name, part in self.parts.items():
            start, stop = max(first, part.start), min(last, part.stop)
            if start < stop:
                scale, words_of = self.scales[name], words[:, start - first : stop - first]
                fixed.value(1.0 if np.ndim(scale) else scale, *words_of, values[start:stop])
                if np.ndim(scale):
                    values[start:stop] /= scale[start - part.start : stop - part.start]

    def _named(self, values: np.ndarray) -> dict[str, np.ndarray]:
        return {name: values[part].reshape(self.shapes[name]) for name, part in self.parts.items()}


def exact_sum(ranks: Ranks, values: np.ndarray, points: int) -> float:
    """Sum of the ``values`` of all ranks, of which there are ``points``, on every rank."""
    bound = ranks.max(float(np.max(np.abs(values), initial=0.0)))
    scale = scale_for(bound * points)
    total = np.zeros(1, np.int64)
    total[0] = np.rint(values * scale).astype(np.int64).sum()
    ranks.sum(total)
    return float(total[0] / scale)
