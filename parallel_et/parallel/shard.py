"""Who owns which points: fixed blocks, dealt out to the ranks in contiguous runs."""

from collections.abc import Iterator
from dataclasses import dataclass

LARGEST, SMALLEST, GRAIN = 512, 16, 16
SCRATCH = 1 << 25
"""Doubles that the states of one block may take (256 MiB)."""


def block_size(points: int, states: int) -> int:
    """Points a block, from the job alone and never from the number of ranks.

    A sixteenth of the points, so that a small job spreads over some ranks, between 16 and 512; less where the
    states of a block would fill the memory. A multiple of 16, the lanes of the kernels.
    """
    largest = min(LARGEST, max(SMALLEST, SCRATCH // states // GRAIN * GRAIN))
    return min(largest, max(SMALLEST, -(-points // 16 // GRAIN) * GRAIN))


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
        first, last = (min(points, block * (blocks * r // ranks)) for r in (rank, rank + 1))
        return cls(points, block, first, last)

    def __len__(self) -> int:
        return self.last - self.first

    def blocks(self) -> Iterator[slice]:
        """The blocks as slices into this rank's own rows."""
        for start in range(0, len(self), self.block):
            yield slice(start, min(start + self.block, len(self)))
