"""Fixed-point accumulation: integer sums are the same in any order.

A sum is held in two words, high + low / LOW, in units that the caller's scale makes of its values.
"""

import numpy as np

from parallel_et.kernels import kernel, part

LOW_BITS = 40
LOW = 2.0**LOW_BITS
"""Units of the low word in one of the high word."""
ONE, FULL = 1 << LOW_BITS, 1 << 61


@part
def add_one(high, low, index, x):
    """Add x to the number at an index."""
    whole = np.rint(x)
    high[index] += np.int64(whole)
    low[index] += np.int64(np.rint((x - whole) * LOW))
    if abs(low[index]) > FULL:
        carry(high, low, index)


@part
def carry(high, low, index):
    """Bring the low word of a number into [0, LOW)."""
    whole = low[index] >> LOW_BITS
    high[index] += whole
    low[index] -= whole << LOW_BITS


@part
def note(largest, x):
    """Raise the largest magnitude so far, (1,), to that of x; what is no number counts as infinite."""
    if not abs(x) <= largest[0]:
        largest[0] = abs(x) if x == x else np.inf


@kernel("void(float64[::1], float64, int64[::1], int64[::1], float64[::1])")
def add(values, scale, high, low, largest):
    """Add values * scale, each rounded to the nearest unit of the low word; all (m,) but ``largest``, see ``note``."""
    for i in range(values.shape[0]):
        add_one(high, low, i, values[i] * scale)
        note(largest, values[i] * scale)


@kernel("void(int64[::1], int64[::1])")
def settle(high, low):
    """Carry in all numbers (m,), so that the words of many ranks can be added, and equal sums have equal words."""
    for i in range(high.shape[0]):
        carry(high, low, i)


@kernel("void(int64[:,:,::1], int64, int64[:,::1])")
def add_up(words, first, total):
    """The sums over ranks of words (ranks, 2, m), of as many columns from ``first`` on as ``total`` (2, n) out has.

    Low words are brought into [0, LOW) before, so that those of many ranks can be added.
    """
    n = total.shape[1]
    high, low = total[0], total[1]
    total[:] = 0
    for r in range(words.shape[0]):
        more_high, more_low = words[r, 0, first : first + n], words[r, 1, first : first + n]
        for i in range(n):
            high[i] += more_high[i] + (more_low[i] >> LOW_BITS)
            low[i] += more_low[i] & (ONE - 1)


@kernel("void(float64, int64[::1], int64[::1], float64[::1])")
def value(scale, high, low, out):
    """out = (high + low / LOW) / scale, the same for all words that stand for the same number; all (m,)."""
    for i in range(high.shape[0]):
        carry(high, low, i)
        out[i] = (high[i] + low[i] / LOW) / scale


@kernel("uint64(uint64[:,::1], int64)")
def digest(words, first):
    """Sum over the rows of a hash (FNV-1a over words, then mixed) of the row's number and bits; words (n, D)."""
    total = np.uint64(0)
    for n in range(words.shape[0]):
        value = np.uint64(14695981039346656037) ^ np.uint64(first + n)
        for d in range(words.shape[1]):
            value = (value ^ words[n, d]) * np.uint64(1099511628211)
            value ^= value >> np.uint64(29)
        value *= np.uint64(0xBF58476D1CE4E5B9)
        total += value ^ (value >> np.uint64(32))
    return total
