"""Fixed-point accumulation: integer sums are the same in any order."""

import numpy as np

from parallel_et.kernels import kernel


@kernel("void(float64[::1], float64, int64[::1])")
def add(values, scale, total):
    """total += round(values * scale), elementwise; values, total (m,)."""
    for i in range(values.shape[0]):
        total[i] += np.int64(np.rint(values[i] * scale))
