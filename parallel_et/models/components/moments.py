"""The second moments of linear models: their packed layout in exact sums, and their use in the M-step."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parallel_et.core.types import Bound, Settings, Statistic, Totals
from parallel_et.kernels import linear
from parallel_et.kernels.rows import writable

PRODUCT_ROUNDING = 2.0**-50
"""Relative rounding error of sums of products."""


def moment_statistics(H: int, width: int, ys: Bound = 1.0, ss: Bound = 1.0) -> dict[str, Statistic]:
    """Declare the statistics <s> y^T and <s s^T> with bounds of their elements."""
    return {"ys": Statistic((width * H,), ys), "ss": Statistic((H * (H + 1) // 2,), ss)}


@dataclass(frozen=True)
class Moments:
    """Sums of <s> y^T (H, D) in strips of dimensions, and of <s s^T> (H, H) as its lower triangle.

    Large sums are not copied, because ranks may share their memory.
    """

    strips: np.ndarray
    triangle: np.ndarray
    H: int
    D: int

    @classmethod
    def from_sums(cls, sums: Totals, H: int, D: int) -> "Moments":
        """Return the moments among the sums over all points."""
        return cls(writable(sums["ys"]), writable(sums["ss"]), H, D)

    @cached_property
    def active(self) -> np.ndarray:
        """The diagonal of <s s^T>, (H,)."""
        h = np.arange(self.H)
        return self.triangle[h * (h + 1) // 2 + h]

    @cached_property
    def ys(self) -> np.ndarray:
        """The sums of <s> y^T, (H, D)."""
        table = np.empty((self.H, self.D))
        self.columns(slice(0, self.D), table)
        return table

    @cached_property
    def ss(self) -> np.ndarray:
        """The sums of <s s^T>, (H, H)."""
        table = np.empty((self.H, self.H))
        linear.unpack_triangle(self.triangle, table)
        return table

    def columns(self, dims: slice, out: np.ndarray) -> None:
        """Write the columns of <s> y^T of some dimensions, (H, n)."""
        for strip, table in self._tables():
            start, stop = max(dims.start, strip.start), min(dims.stop, strip.stop)
            if start < stop:
                inside = table[:, start - strip.start : stop - strip.start]
                out[:, start - dims.start : stop - dims.start] = inside

    def rows(self, some: np.ndarray) -> np.ndarray:
        """Return the rows of <s s^T> of some causes, (k, H)."""
        if len(some) == self.H:
            return self.ss
        row, column = np.maximum(some[:, None], np.arange(self.H)), np.minimum(some[:, None], np.arange(self.H))
        return self.triangle[row * (row + 1) // 2 + column]

    def _tables(self) -> list[tuple[slice, np.ndarray]]:
        """Return strips of the padded dimensions, each with its table (H, width)."""
        strips = linear.strips(self.strips.size // self.H)
        return [(one, self.strips[one.start * self.H : one.stop * self.H].reshape(self.H, -1)) for one in strips]

    def upper(self, out: np.ndarray, first: int, last: int) -> None:
        """Write rows [first, last) of the upper triangle of <s s^T> into a larger matrix."""
        linear.unpack_upper_rows(self.triangle, out, first, last)

    def scaled(self, unit: np.ndarray) -> "Moments":
        """Return the moments of s / unit; unit (H,)."""
        row, column = np.tril_indices(self.H)
        strips = np.concatenate([(table / unit[:, None]).reshape(-1) for _, table in self._tables()])
        return Moments(strips, self.triangle / (unit[row] * unit[column]), self.H, self.D)

    def explained(self, WT: np.ndarray, solved: np.ndarray, settings: Settings) -> float:
        """Return the decrease of the sum of |y - W s|^2 by fields (H, D): the sum of 2 W^T ys - W^T ss W.

        For causes whose row of ss WT = ys is ``solved``, (H,) bool, the terms are W^T ys.
        """
        tables, rest = self._tables(), np.flatnonzero(~solved)
        ss = self.rows(rest)

        def work(k: int) -> float:
            strip, table = tables[k]
            W, ys = WT[:, strip.start : min(strip.stop, self.D)], table[:, : self.D - strip.start]
            found = np.einsum("hd,hd->", W, ys)
            if len(rest):
                found -= np.einsum("hd,hd->", W[rest], ss @ W - ys[rest])
            return float(found)

        return settings.algebra.sum_of(len(tables), work)

    def changed_error(self, error: float, old: np.ndarray, new: np.ndarray) -> float:
        """Return the sum of <|y - W s|^2> with the fields ``new`` (H, D) from that with the fields ``old``.

        Only the change of the fields enters, so a result that is tiny compared with |y|^2 keeps its digits.
        It is at least the rounding error of the change.
        """
        change = new - old
        rest = self.ys - self.ss @ old
        step = self.ss @ change
        gain = np.einsum("hd,hd->", change, 2 * rest - step)
        sizes = np.abs(self.ys) + np.abs(step)
        return max(error - gain, PRODUCT_ROUNDING * (error + np.einsum("hd,hd->", np.abs(change), sizes)))
