"""Posterior of models whose mean is the elementwise maximum of the active causes' fields."""

from math import log as log_of

import numpy as np

from parallel_et.kernels import VACANT, kernel, part, scratch
from parallel_et.kernels.counts import gain_of_state, gains_of_fields, gains_of_four, gains_of_two
from parallel_et.kernels.simd import LANES, exp, fill, fma, highest, load, maximum, store, total
from parallel_et.kernels.truncated import weigh_singles


@part
def squared(y, mean, field, sofar):
    """Add the squared distance of y to the larger of a mean and a field."""
    gap = y - maximum(mean, field)
    return fma(gap, gap, sofar)


@part
def error(Y, y, means, mean, fields, field, D):
    """Squared distance of D numbers of Y to the larger of a mean and a field, all from flat indices on."""
    first, second = fill(0.0), fill(0.0)
    whole = D - D % (2 * LANES)
    for d in range(0, whole, 2 * LANES):
        e = d + LANES
        first = squared(load(Y, y + d), load(means, mean + d), load(fields, field + d), first)
        second = squared(load(Y, y + e), load(means, mean + e), load(fields, field + e), second)
    if whole < D:
        first = squared(load(Y, y + whole), load(means, mean + whole), load(fields, field + whole), first)
    return total(first + second)


@part
def errors_of_four(Y, y, means, above, mean, fields, added, field, keep, D):
    """Squared distances of Y to the larger of a mean and each of four fields that stand one after the other.

    The mean is the larger of the one above and of the field that is added, and is kept at ``mean`` if asked for.
    """
    a, b, c, e = fill(0.0), fill(0.0), fill(0.0), fill(0.0)
    for d in range(0, D, LANES):
        here, there = load(Y, y + d), maximum(load(means, above + d), load(fields, added + d))
        if keep:
            store(means, mean + d, there)
        a = squared(here, there, load(fields, field + d), a)
        b = squared(here, there, load(fields, field + D + d), b)
        c = squared(here, there, load(fields, field + 2 * D + d), c)
        e = squared(here, there, load(fields, field + 3 * D + d), e)
    return total(a), total(b), total(c), total(e)


@part
def errors_of_two(Y, y, means, above, mean, fields, added, field, keep, D):
    """As ``errors_of_four``, for two fields."""
    a, b = fill(0.0), fill(0.0)
    for d in range(0, D, LANES):
        here, there = load(Y, y + d), maximum(load(means, above + d), load(fields, added + d))
        if keep:
            store(means, mean + d, there)
        a = squared(here, there, load(fields, field + d), a)
        b = squared(here, there, load(fields, field + D + d), b)
    return total(a), total(b)


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], boolean, float64[::1], float64[::1], float64[::1], "
    "float64[::1], float64, float64, int32[:,::1], int32[::1], int32[:,::1], float64[:,::1], float64[::1], "
    "float64[:,::1])"
)
def posterior(
    Y,
    WT,
    factors,
    counts,
    level,
    base,
    bias,
    odds,
    precision,
    beta,
    candidates,
    size,
    inner,
    singles,
    evidence,
    weights,
):
    """ET eq. 20 for all states over each point's candidates: a child's mean is the max of its parent's and one field.

    log p(s, y) = level + sum_{h in s} odds_h - |y - m|^2 / (2 sigma^2), m = max_{h in s} W_h, or for counts with
    sum_d y_d log m_d - m_d in place of the distance.
    Y (n, D), WT (H, D) >= 0, factors (H, D): log W for counts; level (n,), base (n,) of the empty state with bias (H,)
    of single causes, odds (H,), or (1,) where all causes have the same, precision = 1 / sigma^2, or 1 for counts,
    beta = 1 / T, candidates (n, H'), size (K,) and inner (M, 4) of the tree of states.
    singles (n, H) or (n, 0): factors_h . y of all causes, becomes the weights of the states with one cause; 0 for
    candidates. evidence (n,) out: F_n = log sum p^beta. weights (n, K) out. Costs 3 D operations and one exp a state.
    """
    N, D = Y.shape
    C, M, K, H = candidates.shape[1], inner.shape[0], size.shape[0], singles.shape[1]
    deepest = np.max(inner[:, 1])
    fields, means = scratch((C + 1) * D), scratch((deepest + 1) * D)
    fields[C * D :], means[:] = 0.0, 0.0
    gains, mean_gains = scratch((C + 1) * D if counts else 0), scratch((deepest + 1) * D if counts else 0)
    wide = -(-K // LANES) * LANES
    logs, prior = scratch(wide), scratch(wide)
    logs[:], prior[:] = 0.0, -np.inf
    for k in range(K):
        prior[k] = odds[0] * size[k]
    inverse_temperature = fill(beta)
    scale = fill(1.0 if counts else -0.5 * precision)
    for n in range(N):
        for i in range(C):
            for d in range(0, D, LANES):
                store(fields, i * D + d, load(WT, candidates[n, i] * D + d))
        if len(odds) > 1:
            for node in range(M):
                for j in range(inner[node, 2] + 1, C):
                    prior[inner[node, 3] + j] = prior[inner[node, 0]] + odds[candidates[n, j]]
        if counts:
            gains_of_fields(Y, n, WT, factors, candidates, gains)
            none = fill(0.0)
            for d in range(0, D, LANES):
                store(mean_gains, d, load(gains, C * D + d))
                none = none + load(gains, C * D + d)
            logs[0] = total(none)
        else:
            logs[0] = error(Y, n * D, means, 0, means, 0, D)
        for node in range(M):
            g, i, child = inner[node, 1], inner[node, 2], inner[node, 3]
            above, mean, added = max(g - 1, 0) * D, g * D, (i if g > 0 else C) * D
            keep, j, k = 0 < g < deepest, i + 1, child + i + 1
            while j + 4 <= C:
                if counts:
                    logs[k], logs[k + 1], logs[k + 2], logs[k + 3] = gains_of_four(
                        means, mean_gains, above, mean, fields, gains, added, j * D, keep, D
                    )
                else:
                    logs[k], logs[k + 1], logs[k + 2], logs[k + 3] = errors_of_four(
                        Y, n * D, means, above, mean, fields, added, j * D, keep, D
                    )
                keep, j, k = False, j + 4, k + 4
            while j < C:  # of a last one alone the empty field behind it is the other
                if counts:
                    one, two = gains_of_two(means, mean_gains, above, mean, fields, gains, added, j * D, keep, D)
                else:
                    one, two = errors_of_two(Y, n * D, means, above, mean, fields, added, j * D, keep, D)
                logs[k] = one
                if j + 1 < C:
                    logs[k + 1] = two
                keep, j, k = False, j + 2, k + 2
        here = fill(level[n])
        for k in range(0, wide, LANES):
            store(logs, k, fma(scale, load(logs, k), here) + load(prior, k))
        top = load(logs, 0)
        for k in range(LANES, wide, LANES):
            top = maximum(top, load(logs, k))
        peak, sum_singles = highest(top), 0.0
        if H > 0:
            peak, sum_singles = weigh_singles(n, beta, precision, base[n], bias, candidates, peak, singles)
        sum_q, shift = fill(0.0), fill(peak)
        for k in range(0, wide, LANES):
            q = exp(inverse_temperature * (load(logs, k) - shift))
            store(logs, k, q)
            sum_q = sum_q + q
        sum_all = total(sum_q) + sum_singles
        evidence[n] = beta * peak + log_of(sum_all)
        share = 1.0 / sum_all
        for k in range(K):
            weights[n, k] = logs[k] * share
        for h in range(H):
            singles[n, h] *= share


@part
def largest_fields(WT, candidates, n, members, state, mean):
    """The mean (D,) of a state over the candidates of point n: the elementwise maximum of its fields."""
    D = WT.shape[1]
    mean[:] = 0.0
    for a in range(members.shape[1]):
        i = members[state, a]
        if i < 0:
            break
        for d in range(0, D, LANES):
            store(mean, d, maximum(load(mean, d), load(WT, candidates[n, i] * D + d)))


@part
def error_of_state(Y, y, WT, state, size, mean):
    """Squared distance of Y from a flat index on to the largest of the fields of a state; mean (D,) is scratch."""
    D = WT.shape[1]
    if size == 0:
        mean[:] = 0.0
        return error(Y, y, mean, 0, mean, 0, D)
    first, second = np.int64(state[0]) * D, np.int64(state[min(1, size - 1)]) * D
    if size <= 2:
        return error(Y, y, WT, first, WT, second, D)
    for d in range(0, D, LANES):
        top = maximum(load(WT, first + d), load(WT, second + d))
        for i in range(2, size - 1):
            top = maximum(top, load(WT, np.int64(state[i]) * D + d))
        store(mean, d, top)
    return error(Y, y, mean, 0, WT, np.int64(state[size - 1]) * D, D)


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], boolean, float64[::1], float64[::1], float64, "
    "int32[:,:,::1], float64[:,::1])"
)
def log_states(Y, WT, factors, counts, level, odds, precision, states, logs):
    """Log joints of states (n, K, g) that are listed for each point, as ``posterior`` has them for those of a table.

    odds (H,) or (1,), logs (n, K) out. Costs (|s| + 2) D operations a state, for counts twice as many.
    """
    N, K, most = states.shape
    D = Y.shape[1]
    mean, same = scratch(D), len(odds) == 1
    for n in range(N):
        for k in range(K):
            if states[n, k, 0] == VACANT:
                logs[n, k] = -np.inf
                continue
            size, prior = 0, level[n]
            while size < most and states[n, k, size] >= 0:
                prior += odds[0 if same else states[n, k, size]]
                size += 1
            if counts:
                logs[n, k] = prior + gain_of_state(Y, n * D, WT, factors, states[n, k], size)
            else:
                logs[n, k] = prior - 0.5 * precision * error_of_state(Y, n * D, WT, states[n, k], size, mean)


@kernel(
    "void(float64[:,::1], int32[:,::1], int32[:,::1], int64[::1], int32[::1], float64[::1], "
    "int64[::1], int32[::1], float64[::1], float64[:,::1])"
)
def expected_means(WT, candidates, members, start, state, weight, first, cause, single, means):
    """means[n] = <max_{h in s} W_h> under the weights of the states and of the single causes; the rest as below.

    means (n, D) out. Costs |s| D operations a state that matters.
    """
    N, D = means.shape
    mean = scratch(D)
    means[:] = 0.0
    for n in range(N):
        for k in range(start[n], start[n + 1]):
            largest_fields(WT, candidates, n, members, state[k], mean)
            q = fill(weight[k])
            for d in range(0, D, LANES):
                store(means, n * D + d, fma(q, load(mean, d), load(means, n * D + d)))
        for k in range(first[n], first[n + 1]):
            q = fill(single[k])
            for d in range(0, D, LANES):
                store(means, n * D + d, fma(q, load(WT, cause[k] * D + d), load(means, n * D + d)))


@kernel(
    "void(float64[:,::1], float64[:,::1], int32[:,::1], int32[:,::1], int64[::1], int32[::1], float64[::1], "
    "int64[::1], int32[::1], float64[::1], float64[::1])"
)
def expected_errors(Y, WT, candidates, members, start, state, weight, first, cause, single, errors):
    """errors[n] = <|y_n - max_{h in s} W_h|^2> under the weights of the states and of the single causes.

    Y (n, D), WT (H, D), candidates (n, H'), members (K, gamma); start, state, weight: the states that matter, row by
    row; first, cause, single: the single causes that do. Costs |s| D operations a state that matters.
    """
    N, D = Y.shape
    mean = scratch(D)
    for n in range(N):
        errors[n] = 0.0
        for k in range(start[n], start[n + 1]):
            largest_fields(WT, candidates, n, members, state[k], mean)
            errors[n] += weight[k] * error(Y, n * D, mean, 0, mean, 0, D)
        for k in range(first[n], first[n + 1]):
            errors[n] += single[k] * error(Y, n * D, WT, cause[k] * D, WT, cause[k] * D, D)
