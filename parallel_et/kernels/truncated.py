"""What all truncated posteriors share: single causes outside the candidates, and the weights that matter."""

from math import exp as exp_of
from math import log as log_of

import numpy as np

from parallel_et.kernels import NEGLIGIBLE, kernel, part, scratch
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


@kernel("void(float64[:,::1], float64, float64[::1])")
def weigh(logs, beta, evidence):
    """Replace log joints (n, K) by weights q ~ p^beta; evidence (n,) out: F_n = log sum p^beta. One exp a state."""
    N, K = logs.shape
    width = -(-K // LANES) * LANES
    row = scratch(width)
    for n in range(N):
        for k in range(K):
            row[k] = beta * logs[n, k]
        for k in range(K, width):
            row[k] = -np.inf
        top = load(row, 0)
        for k in range(LANES, width, LANES):
            top = maximum(top, load(row, k))
        peak = highest(top)
        shift, sum_q = fill(peak), fill(0.0)
        for k in range(0, width, LANES):
            weight = exp(load(row, k) - shift)
            store(row, k, weight)
            sum_q = sum_q + weight
        whole = total(sum_q)
        evidence[n] = peak + log_of(whole)
        for k in range(K):
            logs[n, k] = row[k] / whole


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


@kernel("void(int64[::1], int32[::1], float64[::1], int32[::1], float64[::1])")
def heaviest(start, column, value, best, weight):
    """The largest value of each row of ``significant`` ones, of equal ones the first.

    best (n,) out: its column; weight (n,) out: the value itself; -1 and 0 for a row without any.
    """
    for n in range(len(best)):
        best[n], weight[n] = -1, 0.0
        for k in range(start[n], start[n + 1]):
            if value[k] > weight[n]:
                best[n], weight[n] = column[k], value[k]


@kernel(
    "void(int32[:,::1], int32[:,::1], int64[::1], int32[::1], float64[::1], int64[::1], int32[::1], float64[::1], "
    "float64[:,::1])"
)
def means(candidates, members, start, state, weight, first, cause, single, out):
    """out[n, h] = <s_h> under the weights of the states and of the single causes.

    candidates (n, H'), members (K, gamma); start, state, weight: the states that matter, row by row; first, cause,
    single: the single causes that do; out (n, H).
    """
    out[:] = 0.0
    for n in range(len(out)):
        for k in range(start[n], start[n + 1]):
            for a in range(members.shape[1]):
                i = members[state[k], a]
                if i < 0:
                    break
                out[n, candidates[n, i]] += weight[k]
        for k in range(first[n], first[n + 1]):
            out[n, cause[k]] += single[k]
