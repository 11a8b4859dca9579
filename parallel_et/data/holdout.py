"""Held-out rows: a random fraction of the data, which is not used for learning, as a separate source."""

from collections.abc import Iterator

import numpy as np

from parallel_et.core.random import stream
from parallel_et.data.base import GROUP_POINTS, READ_BYTES, Source
from parallel_et.errors import UserError
from parallel_et.kernels.rows import new_table


class RowSubset(Source):
    """The held-out rows of another source, or all other rows, in the order of the source.

    Each group of ``GROUP_POINTS`` rows has held-out rows such that the fraction is right for all rows up to its end.
    They are drawn with the seed and the number of the group, so any rank finds any row without the other groups.
    """

    def __init__(self, source: Source, fraction: float, seed: int, held_out: bool) -> None:
        self.source, self.fraction, self.seed, self.held_out = source, fraction, seed, held_out
        self.dims, self.shape, self.name = source.dims, source.shape, source.name
        self.dtype, self.working_bytes = source.dtype, source.working_bytes
        self.points = self._count_before(source.points)

    def version(self) -> str:
        return self.source.version()

    def truth(self) -> dict[str, np.ndarray]:
        return self.source.truth()

    def _count_before(self, row: int) -> int:
        """Return the number of rows of this subset before a row of the source, which begins a group or is the end."""
        held = int(self.fraction * row + 0.5)
        return held if self.held_out else row - held

    def _group(self, row: int) -> int:
        """Return the group of a row of this subset."""
        index = int(row / ((self.fraction if self.held_out else 1 - self.fraction) * GROUP_POINTS))
        while index > 0 and self._count_before(index * GROUP_POINTS) > row:
            index -= 1
        while self._count_before((index + 1) * GROUP_POINTS) <= row:
            index += 1
        return index

    def _members(self, first: int, last: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield groups as rows [start, stop) of the source, and the members among them of rows [first, last)."""
        for index in range(self._group(first), self._group(last - 1) + 1) if last > first else ():
            start, stop = index * GROUP_POINTS, min((index + 1) * GROUP_POINTS, self.source.points)
            before, count = self._count_before(start), self._count_before(stop) - self._count_before(start)
            order = stream(self.seed, "holdout", index).permutation(stop - start)
            mine = np.sort(order[:count] if self.held_out else order[stop - start - count :])
            yield start, stop, mine[max(0, first - before) : last - before]

    def row_numbers(self, first: int, last: int) -> np.ndarray:
        return np.concatenate([np.empty(0, int), *(start + mine for start, _, mine in self._members(first, last))])

    def read(self, first: int, last: int) -> np.ndarray:
        rows, done, low = new_table(last - first, self.dims, self.dtype), 0, first
        piece = max(1, READ_BYTES // (GROUP_POINTS * self.dims * rows.itemsize))  # groups
        while low < last:
            high = min(last, max(low + 1, self._count_before((self._group(low) + piece) * GROUP_POINTS)))
            groups = list(self._members(low, high))
            begin, end = groups[0][0], groups[-1][1]
            mine = np.concatenate([start - begin + some for start, _, some in groups])
            rows[done : done + len(mine), : self.dims] = self.source.read(begin, end)[mine, : self.dims]
            done, low = done + len(mine), high
        return rows


def split_holdout(source: Source, fraction: float | None, seed: int) -> tuple[Source, Source | None]:
    """Return the rows to learn from, and the held-out rows, None without a ``fraction``."""
    if fraction is None:
        return source, None
    learned, held = (RowSubset(source, fraction, seed, held_out) for held_out in (False, True))
    if min(learned.points, held.points) < 1:
        found = f"{learned.points} and {held.points} of {source.points}"
        raise UserError(f"data.holdout: expected rows to learn from and rows that are held out, found {found}")
    return learned, held
