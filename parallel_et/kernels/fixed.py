"""Fixed-point accumulation: integer sums are the same in any order."""

import numpy as np

from parallel_et.kernels import kernel

LOW = 2.0**40
"""Units of the low word in one of the high word; leaves room for 2^22 additions."""


@kernel("void(float64[::1], float64, int64[::1], int64[::1])")
def add(values, scale, high, low):
    """Add values * scale to high + low / LOW, each rounded to the nearest integer; all (m,)."""
    for i in range(values.shape[0]):
        x = values[i] * scale
        whole = np.rint(x)
        high[i] += np.int64(whole)
        low[i] += np.int64(np.rint((x - whole) * LOW))


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
