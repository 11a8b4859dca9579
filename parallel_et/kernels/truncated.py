"""Shared parts of truncated posteriors: singleton states outside the candidates, and the non-negligible weights."""

from math import exp as exp_of
from math import log as log_of

import numpy as np

from parallel_et.kernels import NEGLIGIBLE_WEIGHT, device_function, kernel, scratch
from parallel_et.kernels.simd import LANES, exp, fill, fma, highest, load, maximum, store, total


@device_function
def weigh_singletons(n, beta, precision, base, bias, candidates, peak, singletons):
    """Replace the products of singletons of point n by weights relative to the peak; return the peak and their sum."""
    H = singletons.shape[1]
    whole = H - H % LANES
    for i in range(candidates.shape[1]):
        singletons[n, candidates[n, i]] = -np.inf
    scale, top = fill(precision), fill(-np.inf)
    for h in range(0, whole, LANES):
        value = fma(load(singletons, n * H + h), scale, load(bias, h))
        store(singletons, n * H + h, value)
        top = maximum(top, value)
    best = highest(top)
    for h in range(whole, H):
        singletons[n, h] = singletons[n, h] * precision + bias[h]
        best = max(best, singletons[n, h])
    peak = max(peak, best + base)
    inverse_temperature, shift, sum_q = fill(beta), fill(base - peak), fill(0.0)
    for h in range(0, whole, LANES):
        value = exp(inverse_temperature * (load(singletons, n * H + h) + shift))
        store(singletons, n * H + h, value)
        sum_q = sum_q + value
    sum_singletons = total(sum_q)
    for h in range(whole, H):
        singletons[n, h] = exp_of(beta * (singletons[n, h] + (base - peak)))
        sum_singletons += singletons[n, h]
    return peak, sum_singletons


@kernel("void(float64[:,::1], float64, float64[::1])")
def weigh(logs, beta, evidence):
    """Replace log joints by posterior weights q ~ p^beta (ET eq. 20).

    logs : (n, K) log joints in, weights out
    evidence : (n,) out, F_n = log sum p^beta

    Costs one exp per state.
    """
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
    """Return the non-negligible weights, row by row.

    weights : (n, m)

    Returns the start of each row (n + 1,), the columns and the values. Costs two comparisons per weight.
    """
    N, M = weights.shape
    start = np.zeros(N + 1, np.int64)
    for n in range(N):
        count = 0
        for m in range(M):
            count += weights[n, m] >= NEGLIGIBLE_WEIGHT
        start[n + 1] = start[n] + count
    column, value = np.empty(start[N], np.int32), np.empty(start[N])
    for n in range(N):
        k = start[n]
        if k == start[n + 1]:
            continue
        for m in range(M):
            if weights[n, m] >= NEGLIGIBLE_WEIGHT:
                column[k] = m
                value[k] = weights[n, m]
                k += 1
    return start, column, value


@kernel("void(int64[::1], int32[::1], float64[::1], int32[::1], float64[::1])")
def heaviest(start, column, value, best, weight):
    """Find the largest value of each row of ``significant`` weights, the first in case of ties.

    start, column, value : (n + 1,), (m,), (m,) weights as from ``significant``
    best, weight : (n,) out, column and value; -1 and 0 for an empty row

    Costs a comparison per value.
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
    """Compute out[n, h] = <s_h> under the weights of the states and of the singletons.

    candidates, members : (n, H') causes, and (K, gamma) states of the table
    start, state, weight : states with non-negligible weight, row by row
    first, cause, single : singletons with non-negligible weight, row by row
    out : (n, H)

    Costs |s| additions per state.
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
