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
