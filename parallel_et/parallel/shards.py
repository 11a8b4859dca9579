"""Blocks of points, and their distribution over the ranks in contiguous runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

MIN_BLOCK_POINTS = 16
MAX_BLOCK_POINTS = 1024
BLOCK_NANOSECONDS = 30_000.0
"""Overhead of a block, whatever its size."""
STATISTIC_NANOSECONDS = 2.0
"""Time to add one statistic of a block to the sums."""
MERGED_BLOCK_NANOSECONDS = 5_000.0
"""Overhead of a block that is processed together with its neighbours."""
MERGED_STATISTIC_NANOSECONDS = 0.25
"""Time to add one statistic of a merged block to the sums."""
WORK_TO_OVERHEAD = 20.0
"""Ratio of the time for the points of a block to its overhead."""


def block_size(points: int, nanoseconds: float, statistics: int, row_independent: bool = False) -> int:
    """Return the number of points in a block, a multiple of 16 from 16 to 1024. It follows from the job alone.

    The overhead of a block must be small compared with the time for its points. A block has at most about a quarter of
    all points, so that a small job can use several ranks.

    Parameters
    ----------
    points : points of an M-step
    nanoseconds : time for a point
    statistics : numbers that a block adds to the sums
    row_independent : blocks can be merged, so they may be smaller; their number is a power of two if possible
    """
    if row_independent:
        wanted = WORK_TO_OVERHEAD * (MERGED_BLOCK_NANOSECONDS + MERGED_STATISTIC_NANOSECONDS * statistics) / nanoseconds
        size = points / 4
        while size >= 2 * wanted or size > MAX_BLOCK_POINTS:
            size /= 2
    else:
        wanted = WORK_TO_OVERHEAD * (BLOCK_NANOSECONDS + STATISTIC_NANOSECONDS * statistics) / nanoseconds
        size = min(wanted, points / 4, MAX_BLOCK_POINTS)
    return max(MIN_BLOCK_POINTS, -(-round(size) // MIN_BLOCK_POINTS) * MIN_BLOCK_POINTS)


def owners(sizes: Sequence[int], ranks: int) -> np.ndarray:
    """Return the rank of each piece, (pieces,) rising. Ranks get pieces of about the same total size."""
    ends = np.cumsum(sizes)
    return (2 * ends - np.asarray(sizes)) * ranks // (2 * ends[-1])


def even_range(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the first index of a rank and the end, if ``count`` indices are split evenly over the ranks."""
    return count * rank // ranks, count * (rank + 1) // ranks


def merge_blocks(blocks: Iterable[slice], max_points: int) -> Iterator[slice]:
    """Merge adjacent blocks into slices of at most ``max_points`` points."""
    run: slice | None = None
    for block in blocks:
        if run and block.start == run.stop and block.stop - run.start <= max_points:
            run = slice(run.start, block.stop)
            continue
        if run:
            yield run
        run = block
    if run:
        yield run


@dataclass(frozen=True)
class Shard:
    """The rows [first, last) of one rank out of ``points``, in blocks of ``block`` rows. The last may be shorter."""

    points: int
    block: int
    first: int
    last: int

    @classmethod
    def of(cls, points: int, block: int, rank: int, ranks: int) -> "Shard":
        """Return the shard of ``rank``, as even as whole blocks allow. It may be empty."""
        blocks = -(-points // block)
        first, last = (min(points, block * number) for number in even_range(blocks, rank, ranks))
        return cls(points, block, first, last)

    def __len__(self) -> int:
        return self.last - self.first

    def blocks(self) -> Iterator[slice]:
        """Yield the blocks as slices into the rows of this rank."""
        for start in range(0, len(self), self.block):
            yield slice(start, min(start + self.block, len(self)))

    def selected_blocks(self, numbers: np.ndarray) -> Iterator[slice]:
        """Yield the blocks of this rank whose global numbers are in ``numbers``, as slices into its rows."""
        starts = numbers * self.block - self.first
        for start in starts[(starts >= 0) & (starts < len(self))].tolist():
            yield slice(start, min(start + self.block, len(self)))
