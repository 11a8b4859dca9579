"""What all truncated posteriors share: single causes outside the candidates, and the weights that matter."""

from math import exp as exp_of

import numpy as np

from parallel_et.kernels import NEGLIGIBLE, kernel, part
from parallel_et.kernels.simd import LANES, exp, fill, fma, highest, load, maximum, store, total


@part
def weigh_singles(n, beta, precision, base, bias, candidates, peak, singles):
    """Weights of single causes of point n, in place of their products; returns the new peak and their sum.

    The weights are relative to the largest of all states; the candidates are in the tree of states and get 0.
    """
    H = singles.shape[1]
    whole = H - H % LANES
    for i in range(candidates.shape[1]):
        singles[n, candidates[n, i]] = -np.inf
    scale, top = fill(precision), fill(-np.inf)
    for h in range(0, whole, LANES):
        value = fma(load(singles, n * H + h), scale, load(bias, h))
        store(singles, n * H + h, value)
        top = maximum(top, value)
    best = highest(top)
    for h in range(whole, H):
        singles[n, h] = singles[n, h] * precision + bias[h]
        best = max(best, singles[n, h])
    peak = max(peak, best + base)
    inverse_temperature, shift, sum_q = fill(beta), fill(base - peak), fill(0.0)
    for h in range(0, whole, LANES):
        value = exp(inverse_temperature * (load(singles, n * H + h) + shift))
        store(singles, n * H + h, value)
        sum_q = sum_q + value
    sum_singles = total(sum_q)
    for h in range(whole, H):
        singles[n, h] = exp_of(beta * (singles[n, h] + (base - peak)))
        sum_singles += singles[n, h]
    return peak, sum_singles


@kernel("Tuple((int64[::1], int32[::1], float64[::1]))(float64[:,::1])")
def significant(weights):
    """The weights (n, m) that are not negligible: where each row starts (n + 1,), their columns and their values."""
    N, M = weights.shape
    start = np.zeros(N + 1, np.int64)
    for n in range(N):
        count = 0
        for m in range(M):
            count += weights[n, m] >= NEGLIGIBLE
        start[n + 1] = start[n] + count
    column, value = np.empty(start[N], np.int32), np.empty(start[N])
    for n in range(N):
        k = start[n]
        if k == start[n + 1]:
            continue
        for m in range(M):
            if weights[n, m] >= NEGLIGIBLE:
                column[k] = m
                value[k] = weights[n, m]
                k += 1
    return start, column, value
