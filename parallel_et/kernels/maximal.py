"""Posterior of models whose mean is the elementwise maximum of the active causes' fields."""

from math import log as log_of

import numpy as np

from parallel_et.kernels import VACANT, device_function, kernel, scratch
from parallel_et.kernels.counts import gain_of_state, gains_of_fields, gains_of_four, gains_of_two
from parallel_et.kernels.simd import LANES, exp, fill, fma, highest, load, maximum, store, total
from parallel_et.kernels.truncated import weigh_singletons


@device_function
def add_squared_gap(y, mean, field, so_far):
    """Add the squared distance of y from the larger of a mean and a field."""
    gap = y - maximum(mean, field)
    return fma(gap, gap, so_far)


@device_function
def squared_error(Y, y, means, mean, fields, field, D):
    """Return the squared distance of D numbers of Y from the larger of a mean and a field, all from flat indices on."""
    first, second = fill(0.0), fill(0.0)
    whole = D - D % (2 * LANES)
    for d in range(0, whole, 2 * LANES):
        e = d + LANES
        first = add_squared_gap(load(Y, y + d), load(means, mean + d), load(fields, field + d), first)
        second = add_squared_gap(load(Y, y + e), load(means, mean + e), load(fields, field + e), second)
    if whole < D:
        first = add_squared_gap(load(Y, y + whole), load(means, mean + whole), load(fields, field + whole), first)
    return total(first + second)


@device_function
def errors_of_four(Y, y, means, above, mean, fields, added, field, keep, D):
    """Return the squared errors of the maxima of a mean and each of four fields in a row; store the mean on demand."""
    a, b, c, e = fill(0.0), fill(0.0), fill(0.0), fill(0.0)
    for d in range(0, D, LANES):
        here, there = load(Y, y + d), maximum(load(means, above + d), load(fields, added + d))
        if keep:
            store(means, mean + d, there)
        a = add_squared_gap(here, there, load(fields, field + d), a)
        b = add_squared_gap(here, there, load(fields, field + D + d), b)
        c = add_squared_gap(here, there, load(fields, field + 2 * D + d), c)
        e = add_squared_gap(here, there, load(fields, field + 3 * D + d), e)
    return total(a), total(b), total(c), total(e)


@device_function
def errors_of_two(Y, y, means, above, mean, fields, added, field, keep, D):
    """Return the squared errors of the maxima of a mean and each of two fields in a row; store the mean on demand."""
    a, b = fill(0.0), fill(0.0)
    for d in range(0, D, LANES):
        here, there = load(Y, y + d), maximum(load(means, above + d), load(fields, added + d))
        if keep:
            store(means, mean + d, there)
        a = add_squared_gap(here, there, load(fields, field + d), a)
        b = add_squared_gap(here, there, load(fields, field + D + d), b)
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
    singletons,
    evidence,
    weights,
):
    """Compute the posterior weights of all states over each point's candidates (ET eq. 20) along the tree of states.

    log p(s, y) = level + sum_{h in s} odds_h - |y - m|^2 / (2 sigma^2), m = max_{h in s} W_h.
    For counts sum_d y_d log m_d - m_d replaces the last term.
    A child's mean is the maximum of its parent's mean and one field.

    Y, WT, factors : (n, D) points, (H, D) fields as rows, (H, D) log W for counts
    level, base, bias : (n,) above, (n,) and (H,) of the empty state and of singletons
    odds : (H,), or (1,) if all causes share one value
    precision, beta : 1 / sigma^2, or 1 for counts, and 1 / T
    candidates, size, inner : (n, H'), (K,) sizes and (M, 4) inner nodes of the tree of states
    singletons : (n, H) or (n, 0), factors_h . y of all causes in, weights of singletons out; 0 for candidates
    evidence, weights : (n,) out, F_n = log sum p^beta, and (n, K) out

    Costs 3 D operations and one exp per state.
    """
    N, D = Y.shape
    C, M, K, H = candidates.shape[1], inner.shape[0], size.shape[0], singletons.shape[1]
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
            logs[0] = squared_error(Y, n * D, means, 0, means, 0, D)
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
            while j < C:  # a last single field is paired with the empty field behind it
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
        peak, sum_singletons = highest(top), 0.0
        if H > 0:
            peak, sum_singletons = weigh_singletons(n, beta, precision, base[n], bias, candidates, peak, singletons)
        sum_q, shift = fill(0.0), fill(peak)
        for k in range(0, wide, LANES):
            q = exp(inverse_temperature * (load(logs, k) - shift))
            store(logs, k, q)
            sum_q = sum_q + q
        sum_all = total(sum_q) + sum_singletons
        evidence[n] = beta * peak + log_of(sum_all)
        normaliser = 1.0 / sum_all
        for k in range(K):
            weights[n, k] = logs[k] * normaliser
        for h in range(H):
            singletons[n, h] *= normaliser


@device_function
def maximum_of_fields(WT, candidates, n, members, state, mean):
    """Write the mean (D,) of a state over the candidates of point n: the elementwise maximum of its fields."""
    D = WT.shape[1]
    mean[:] = 0.0
    for a in range(members.shape[1]):
        i = members[state, a]
        if i < 0:
            break
        for d in range(0, D, LANES):
            store(mean, d, maximum(load(mean, d), load(WT, candidates[n, i] * D + d)))


@device_function
def error_of_state(Y, y, WT, state, size, mean):
    """Return the squared distance of Y, from a flat index on, from the maximum of the fields of a state."""
    D = WT.shape[1]
    if size == 0:
        mean[:] = 0.0
        return squared_error(Y, y, mean, 0, mean, 0, D)
    first, second = np.int64(state[0]) * D, np.int64(state[min(1, size - 1)]) * D
    if size <= 2:
        return squared_error(Y, y, WT, first, WT, second, D)
    for d in range(0, D, LANES):
        top = maximum(load(WT, first + d), load(WT, second + d))
        for i in range(2, size - 1):
            top = maximum(top, load(WT, np.int64(state[i]) * D + d))
        store(mean, d, top)
    return squared_error(Y, y, mean, 0, WT, np.int64(state[size - 1]) * D, D)


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], boolean, float64[::1], float64[::1], float64, "
    "int32[:,:,::1], float64[:,::1])"
)
def log_states(Y, WT, factors, counts, level, odds, precision, states, logs):
    """Compute the log joints of listed states; arguments as for ``posterior``.

    odds, states, logs : (H,) or (1,), (n, K, g) and (n, K) out; -inf for a vacant state

    Costs (|s| + 2) D operations per state, for counts 2 (|s| + 2) D.
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
    """Compute means[n] = <max_{h in s} W_h> under the weights of the states and of the singletons.

    means : (n, D) out; other arguments as for ``expected_errors``

    Costs |s| D operations per state.
    """
    N, D = means.shape
    mean = scratch(D)
    means[:] = 0.0
    for n in range(N):
        for k in range(start[n], start[n + 1]):
            maximum_of_fields(WT, candidates, n, members, state[k], mean)
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
    """Compute errors[n] = <|y_n - max_{h in s} W_h|^2> under the weights of the states and of the singletons.

    Y, WT, candidates, members : (n, D), (H, D), (n, H') and (K, gamma)
    start, state, weight : states with non-negligible weight, row by row
    first, cause, single : singletons with non-negligible weight, row by row
    errors : (n,) out

    Costs |s| D operations per state.
    """
    N, D = Y.shape
    mean = scratch(D)
    for n in range(N):
        errors[n] = 0.0
        for k in range(start[n], start[n + 1]):
            maximum_of_fields(WT, candidates, n, members, state[k], mean)
            errors[n] += weight[k] * squared_error(Y, n * D, mean, 0, mean, 0, D)
        for k in range(first[n], first[n + 1]):
            errors[n] += single[k] * squared_error(Y, n * D, WT, cause[k] * D, WT, cause[k] * D, D)
