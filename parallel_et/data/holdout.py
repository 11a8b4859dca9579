"""Rows that are not learned from: a share of the data, drawn by the seed, as a source of its own beside the rest."""

from collections.abc import Iterator

import numpy as np

from parallel_et.core.random import stream
from parallel_et.data.base import GROUP, PIECE, Source
from parallel_et.errors import UserError
from parallel_et.kernels.rows import new_table


class Part(Source):
    """The rows of another source that are held out, or those that are not, in their order.

    Of every ``GROUP`` rows of the source as many are held out as it takes for the share of all rows so far, drawn by
    the seed and the number of the group: any rank finds any row of a part without looking at the others.
    """

    def __init__(self, source: Source, share: float, seed: int, held: bool) -> None:
        self.source, self.share, self.seed, self.held = source, share, seed, held
        self.dims, self.shape, self.name = source.dims, source.shape, source.name
        self.dtype, self.holds = source.dtype, source.holds
        self.points = self._before(source.points)

    def state(self) -> str:
        return self.source.state()

    def truth(self) -> dict[str, np.ndarray]:
        return self.source.truth()

    def _before(self, row: int) -> int:
        """How many of the rows of the source before this one are of the part; of the first of a group, or the end."""
        held = int(self.share * row + 0.5)
        return held if self.held else row - held

    def _group(self, place: int) -> int:
        """The group that has the row of the part with this number."""
        index = int(place / ((self.share if self.held else 1 - self.share) * GROUP))
        while index > 0 and self._before(index * GROUP) > place:
            index -= 1
        while self._before((index + 1) * GROUP) <= place:
            index += 1
        return index

    def _chosen(self, first: int, last: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Groups as rows [start, stop) of the source, and which of these are rows [first, last) of the part."""
        for index in range(self._group(first), self._group(last - 1) + 1) if last > first else ():
            start, stop = index * GROUP, min((index + 1) * GROUP, self.source.points)
            before, count = self._before(start), self._before(stop) - self._before(start)
            order = stream(self.seed, "holdout", index).permutation(stop - start)
            mine = np.sort(order[:count] if self.held else order[stop - start - count :])
            yield start, stop, mine[max(0, first - before) : last - before]

    def numbers(self, first: int, last: int) -> np.ndarray:
        return np.concatenate([np.empty(0, int), *(start + mine for start, _, mine in self._chosen(first, last))])

    def read(self, first: int, last: int) -> np.ndarray:
        rows, done, low = new_table(last - first, self.dims, self.dtype), 0, first
        piece = max(1, PIECE // (GROUP * self.dims * rows.itemsize))  # groups
        while low < last:
            high = min(last, max(low + 1, self._before((self._group(low) + piece) * GROUP)))
            groups = list(self._chosen(low, high))
            begin, end = groups[0][0], groups[-1][1]
            mine = np.concatenate([start - begin + some for start, _, some in groups])
            rows[done : done + len(mine), : self.dims] = self.source.read(begin, end)[mine, : self.dims]
            done, low = done + len(mine), high
        return rows


def split(source: Source, share: float | None, seed: int) -> tuple[Source, Source | None]:
    """The rows that are learned from, and those that are held out, if any are."""
    if share is None:
        return source, None
    learned, held = (Part(source, share, seed, which) for which in (False, True))
    if min(learned.points, held.points) < 1:
        found = f"{learned.points} and {held.points} of {source.points}"
        raise UserError(f"data.holdout: expected rows to learn from and rows that are held out, found {found}")
    return learned, held
