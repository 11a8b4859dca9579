"""Selection of the largest values of all ranks, without gathering or sorting: data classification uses it."""

import numpy as np

from parallel_et.parallel.communicator import Ranks

SIGN = np.uint64(1 << 63)
"""Sign bit of a double."""


def ordered_bits(values: np.ndarray) -> np.ndarray:
    """Return unsigned integers in the order of the doubles ``values``; -0.0 counts as 0.0."""
    bits = (values + 0.0).view(np.uint64)
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def mark_largest(ranks: Ranks, values: np.ndarray, count: int) -> np.ndarray:
    """Mark the ``count`` largest values of all ranks. The lower global index breaks ties.

    This is a radix select of eight rounds. Each round sums 256 counts over the ranks.

    Parameters
    ----------
    values : (n,) values of this rank; ranks are in the order of the points
    count : number of values to mark on all ranks together

    Returns
    -------
    (n,) bool
    """
    bits = ordered_bits(values)
    if count <= 0:
        return np.zeros(len(values), bool)
    above = np.zeros(len(values), bool)
    level = np.ones(len(values), bool)
    wanted = count
    for shift in range(56, -8, -8):
        digit = (bits >> np.uint64(shift)).astype(np.uint8)
        counts = np.bincount(digit[level], minlength=256).astype(np.int64)
        ranks.sum(counts)
        from_top = np.cumsum(counts[::-1])
        if from_top[-1] < wanted:
            return np.ones(len(values), bool)
        pivot = 255 - int(np.searchsorted(from_top, wanted))
        wanted -= int(from_top[255 - pivot] - counts[pivot])
        above |= level & (digit > pivot)
        level &= digit == pivot
    ties = np.flatnonzero(level)
    above[ties[: max(0, wanted - ranks.count_before(len(ties)))]] = True
    return above
