"""Who owns which points: fixed blocks, dealt out to the ranks in contiguous runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LARGEST, SMALLEST = 1024, 16
OVERHEAD, ADDING, WORTH = 30_000.0, 2.0, 20.0
"""Nanoseconds that a block costs whatever its size, that it costs to add a statistic to the sums, and how much of
these its points should be worth."""
BESIDE, ROUNDING = 5_000.0, 0.25
"""The same nanoseconds where a block is treated together with others."""


def block_size(points: int, nanoseconds: float, statistics: int, alike: bool = False) -> int:
    """Points a block of the ``points`` of an M-step, from the job alone and never from the number of ranks.

    As many as it takes, at some ``nanoseconds`` a point, to make the cost of a block and of adding its ``statistics``
    small beside; but about a quarter of all points at most, so that also a small job spreads over some ranks.
    A multiple of 16 between 16 and 1024. Where points are treated ``alike``, whatever is beside them, fewer do, and the
    number of blocks is a power of two as far as that can be.
    """
    if alike:
        wanted = WORTH * (BESIDE + ROUNDING * statistics) / nanoseconds
        size = points / 4
        while size >= 2 * wanted or size > LARGEST:
            size /= 2
    else:
        wanted = WORTH * (OVERHEAD + ADDING * statistics) / nanoseconds
        size = min(wanted, points / 4, LARGEST)
    return max(SMALLEST, -(-round(size) // SMALLEST) * SMALLEST)


def owners(sizes: Sequence[int], ranks: int) -> np.ndarray:
    """Which rank does each piece of a work in pieces of these sizes, (pieces,): rising, each about its share of all."""
    ends = np.cumsum(sizes)
    return (2 * ends - np.asarray(sizes)) * ranks // (2 * ends[-1])


def even(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """Where the share of a rank begins and ends of a number of things that are shared out in the order of the ranks."""
    return count * rank // ranks, count * (rank + 1) // ranks


def merged(blocks: Iterable[slice], most: int) -> Iterator[slice]:
    """Adjacent blocks as one, as long as that has at most so many points."""
    run: slice | None = None
    for block in blocks:
        if run and block.start == run.stop and block.stop - run.start <= most:
            run = slice(run.start, block.stop)
            continue
        if run:
            yield run
        run = block
    if run:
        yield run


@dataclass(frozen=True)
class Shard:
    """The rows [first, last) of one rank out of ``points``, in blocks of ``block`` rows; the last may be shorter."""

    points: int
    block: int
    first: int
    last: int

    @classmethod
    def of(cls, points: int, block: int, rank: int, ranks: int) -> "Shard":
        """The shard of ``rank``: as even as whole blocks allow, maybe empty."""
        blocks = -(-points // block)
        first, last = (min(points, block * number) for number in even(blocks, rank, ranks))
        return cls(points, block, first, last)

    def __len__(self) -> int:
        return self.last - self.first

    def blocks(self) -> Iterator[slice]:
        """The blocks as slices into this rank's own rows."""
        for start in range(0, len(self), self.block):
            yield slice(start, min(start + self.block, len(self)))

    def among(self, numbers: np.ndarray) -> Iterator[slice]:
        """Of the blocks of these numbers, among those of all ranks, the ones of this rank, likewise."""
        starts = numbers * self.block - self.first
        for start in starts[(starts >= 0) & (starts < len(self))].tolist():
            yield slice(start, min(start + self.block, len(self)))
