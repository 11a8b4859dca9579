"""Fixed-point accumulation: integer sums are bit-identical in any order.

A sum has two integer words, high + low / LOW. The caller's scale converts values to units of the high word.
"""

import numpy as np

from parallel_et.kernels import device_function, kernel

LOW_BITS = 40
LOW = 2.0**LOW_BITS
"""Units of the low word in one unit of the high word."""
LOW_UNITS = 1 << LOW_BITS
CARRY_LIMIT = 1 << 61
"""Magnitude of a low word above which it is carried into the high word."""


@device_function
def add_value(high, low, index, x):
    """Add x to the sum at an index."""
    whole = np.rint(x)
    high[index] += np.int64(whole)
    low[index] += np.int64(np.rint((x - whole) * LOW))
    if abs(low[index]) > CARRY_LIMIT:
        carry(high, low, index)


@device_function
def carry(high, low, index):
    """Carry the low word of a sum into the high word, which leaves [0, LOW)."""
    whole = low[index] >> LOW_BITS
    high[index] += whole
    low[index] -= whole << LOW_BITS


@device_function
def update_largest(largest, x):
    """Raise the largest magnitude so far, (1,), to that of x; NaN counts as infinite."""
    if not abs(x) <= largest[0]:
        largest[0] = abs(x) if x == x else np.inf


@kernel("void(float64[::1], float64, int64[::1], int64[::1], float64[::1])")
def add(values, scale, high, low, largest):
    """Add values * scale (m,) to the sums high, low (m,), each rounded to the nearest unit of the low word.

    largest (1,) is raised to the largest magnitude that was added. Costs two roundings per value.
    """
    for i in range(values.shape[0]):
        add_value(high, low, i, values[i] * scale)
        update_largest(largest, values[i] * scale)


@kernel("void(int64[::1], int64[::1])")
def carry_all(high, low):
    """Carry the low words of all sums (m,), so that equal sums have equal words and ranks can be added."""
    for i in range(high.shape[0]):
        carry(high, low, i)


@kernel("void(int64[:,:,::1], int64, int64[:,::1])")
def sum_words(words, first, total):
    """Sum the words of all ranks, from column ``first`` on.

    words : (ranks, 2, m) high and low words of each rank
    total : (2, n) out, the sums of n columns

    Low words are brought into [0, LOW) first, so they cannot overflow. Costs three additions per rank and column.
    """
    n = total.shape[1]
    high, low = total[0], total[1]
    total[:] = 0
    for r in range(words.shape[0]):
        more_high, more_low = words[r, 0, first : first + n], words[r, 1, first : first + n]
        for i in range(n):
            high[i] += more_high[i] + (more_low[i] >> LOW_BITS)
            low[i] += more_low[i] & (LOW_UNITS - 1)


@kernel("void(float64, int64[::1], int64[::1], float64[::1])")
def to_float(scale, high, low, out):
    """Compute out = (high + low / LOW) / scale, all (m,); equal numbers give equal doubles, whatever their words."""
    for i in range(high.shape[0]):
        carry(high, low, i)
        out[i] = (high[i] + low[i] / LOW) / scale


@kernel("uint64(uint64[:,::1], int64)")
def digest(words, first):
    """Return the sum over rows of a hash (FNV-1a, then mixed) of the row's number and bits; words (n, D)."""
    total = np.uint64(0)
    for n in range(words.shape[0]):
        value = np.uint64(14695981039346656037) ^ np.uint64(first + n)
        for d in range(words.shape[1]):
            value = (value ^ words[n, d]) * np.uint64(1099511628211)
            value ^= value >> np.uint64(29)
        value *= np.uint64(0xBF58476D1CE4E5B9)
        total += value ^ (value >> np.uint64(32))
    return total
