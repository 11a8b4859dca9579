"""Posterior and statistics of models whose mean is the elementwise maximum of the active causes' fields."""

from math import log as log_of

import numpy as np

from parallel_et.kernels import VACANT, kernel, part, scratch
from parallel_et.kernels.simd import LANES, choose, equals, exp, fill, fma, highest, load, log, maximum, store, total
from parallel_et.kernels.simd import power as power_of
from parallel_et.kernels.truncated import weigh_singles

TINY = 1e-300
FAR = -1e4  # a logarithm whose exp is zero
STEEP = 24.0
"""From this rho on the powers of small fields would underflow, and shares are computed from logarithms."""
HARD = 1e12
"""From this rho on the maximum is a hard one."""
BATCH = 2048
"""Numbers whose powers are taken in one go; they stay in the fastest cache."""


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
    "void(float64[:,::1], float64[:,::1], float64, float64[::1], float64[::1], float64[::1], float64, float64, "
    "int32[:,::1], int32[::1], int32[:,::1], float64[:,::1], float64[::1], float64[:,::1])"
)
def posterior(Y, WT, empty, base, bias, odds, precision, beta, candidates, size, inner, singles, evidence, weights):
    """ET eq. 20 for all states over each point's candidates: a child's mean is the max of its parent's and one field.

    log p(s, y) = empty + sum_{h in s} odds_h - |y - max_{h in s} W_h|^2 / (2 sigma^2).
    Y (n, D), WT (H, D) >= 0, base (n,) of the empty state, bias (H,) of single causes, odds (H,), or (1,) where all
    causes have the same, precision = 1 / sigma^2, beta = 1 / T, candidates (n, H'), size (K,) and inner (M, 4) of the
    tree of states.
    singles (n, H) or (n, 0): W_h . y of all causes, becomes the weights of the states with one cause; 0 for candidates.
    evidence (n,) out: F_n = log sum p^beta. weights (n, K) out. Costs 3 D operations and one exp a state.
    """
    N, D = Y.shape
    C, M, K, H = candidates.shape[1], inner.shape[0], size.shape[0], singles.shape[1]
    deepest = np.max(inner[:, 1])
    fields, means = scratch((C + 1) * D), scratch((deepest + 1) * D)
    fields[C * D :], means[:] = 0.0, 0.0
    wide = -(-K // LANES) * LANES
    logs, prior = scratch(wide), scratch(wide)
    logs[:], prior[:] = 0.0, -np.inf
    for k in range(K):
        prior[k] = odds[0] * size[k]
    inverse_temperature = fill(beta)
    for n in range(N):
        for i in range(C):
            for d in range(0, D, LANES):
                store(fields, i * D + d, load(WT, candidates[n, i] * D + d))
        if len(odds) > 1:
            for node in range(M):
                for j in range(inner[node, 2] + 1, C):
                    prior[inner[node, 3] + j] = prior[inner[node, 0]] + odds[candidates[n, j]]
        for node in range(M):
            g, i, child = inner[node, 1], inner[node, 2], inner[node, 3]
            above, mean, added = max(g - 1, 0) * D, g * D, (i if g > 0 else C) * D
            keep, j, k = 0 < g < deepest, i + 1, child + i + 1
            while j + 4 <= C:
                logs[k], logs[k + 1], logs[k + 2], logs[k + 3] = errors_of_four(
                    Y, n * D, means, above, mean, fields, added, j * D, keep, D
                )
                keep, j, k = False, j + 4, k + 4
            if j + 2 <= C:
                logs[k], logs[k + 1] = errors_of_two(Y, n * D, means, above, mean, fields, added, j * D, keep, D)
                keep, j, k = False, j + 2, k + 2
            if j < C:
                logs[k], _ = errors_of_two(Y, n * D, means, above, mean, fields, added, j * D, keep, D)
        logs[0] = error(Y, n * D, means, 0, means, 0, D)
        level, scale = fill(empty), fill(-0.5 * precision)
        for k in range(0, wide, LANES):
            store(logs, k, fma(scale, load(logs, k), level) + load(prior, k))
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


@kernel("void(float64[:,::1], float64[:,::1], float64, float64[::1], float64, int32[:,:,::1], float64[:,::1])")
def log_states(Y, WT, empty, odds, precision, states, logs):
    """Log joints of states (n, K, g) that are listed for each point, as ``posterior`` has them for those of a table.

    odds (H,) or (1,), logs (n, K) out. Costs (|s| + 2) D operations a state.
    """
    N, K, most = states.shape
    D = Y.shape[1]
    mean, same = scratch(D), len(odds) == 1
    for n in range(N):
        for k in range(K):
            if states[n, k, 0] == VACANT:
                logs[n, k] = -np.inf
                continue
            size, prior = 0, empty
            while size < most and states[n, k, size] >= 0:
                prior += odds[0 if same else states[n, k, size]]
                size += 1
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


@part
def add_soft_shares(D, power, lower, outer, q, evens, causes, places, counts, batch, sums, share):
    """Add q A of the first ``batch`` states of a batch to the shares (H' D,) at the places of their causes.

    The powers of all states are taken in one go, so that the processor always has some to work on.
    """
    down, tiny, zero = fill(-outer), fill(TINY), fill(0.0)
    for b in range(batch):
        for d in range(0, D, LANES):
            sum_w = load(power, causes[b, 0] + d)
            for a in range(1, counts[b]):
                sum_w = sum_w + load(power, causes[b, a] + d)
            store(sums, b * D + d, sum_w)
    for d in range(0, batch * D, LANES):
        sum_w = load(sums, d)
        store(sums, d, choose(sum_w, zero, power_of(maximum(sum_w, tiny), down), zero))
    for b in range(batch):
        weight, evenly = fill(q[b]), fill(q[b] * evens[counts[b]])
        for a in range(counts[b]):
            for d in range(0, D, LANES):
                factor, place = load(sums, b * D + d), places[b, a] + d
                tied = fma(evenly, equals(factor, zero), load(share, place))
                store(share, place, fma(load(lower, causes[b, a] + d), weight * factor, tied))


@part
def add_steep_shares(D, power, rho, outer, q, causes, places, count, share):
    """Add q A of one state to the shares (H' D,) at the places of its causes, from logarithms of the fields."""
    weight, zero, steepness = fill(q), fill(0.0), fill(rho)
    for d in range(0, D, LANES):
        top = load(power, causes[0] + d)
        for a in range(1, count):
            top = maximum(top, load(power, causes[a] + d))
        sum_w = zero
        if rho >= HARD:
            for a in range(count):
                sum_w = sum_w + equals(load(power, causes[a] + d), top)
            sum_w = weight / sum_w
            for a in range(count):
                place = places[a] + d
                store(share, place, fma(equals(load(power, causes[a] + d), top), sum_w, load(share, place)))
        else:
            for a in range(count):
                sum_w = sum_w + exp(maximum(steepness * (load(power, causes[a] + d) - top), fill(FAR)))
            sum_w = log(sum_w)
            for a in range(count):
                place = places[a] + d
                depth = maximum(steepness * (load(power, causes[a] + d) - top), fill(FAR)) - sum_w
                store(share, place, fma(weight, exp(fill(outer) * depth), load(share, place)))


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], float64, int32[:,::1], int32[:,::1], int64[::1], int32[::1], "
    "float64[::1], int64[::1], int32[::1], float64[::1], boolean[::1], float64[:,::1], float64[:,::1], float64[::1], "
    "float64[::1])"
)
def weighted_sums(
    Y,
    power,
    lower,
    rho,
    candidates,
    members,
    start,
    state,
    weight,
    first,
    cause,
    single,
    used,
    numerator,
    denominator,
    alone,
    active,
):
    """Sums over the used points of <A_dh> y_d and <A_dh> (ET eq. 30), A^rho of eq. 36, which is 1 for a single cause.

    Y (n, D); power and lower (H, D): W^rho and W^(rho - 1), relative to the largest field of a dimension, or from
    rho = STEEP on log W in both; candidates (n, H'), members (K, gamma); start, state, weight: the states that
    matter, row by row; first, cause, single: the single causes that do; used (n,). numerator and denominator (H, D),
    alone and active (H,) are added to; alone is the part of the denominator that is the same in all dimensions,
    active the sum of <s_h>. Active fields that are all zero share a dimension evenly.
    Costs |s| D operations and D powers a state of two and more causes that matters.
    """
    N, D = Y.shape
    C = candidates.shape[1]
    batch = max(1, BATCH // D)
    share, sums, q = scratch(C * D), scratch(batch * D), np.empty(batch)
    share[:] = 0.0
    lonely, mean = np.empty(C), np.empty(C)
    causes, places = np.empty((batch, members.shape[1]), np.int64), np.empty((batch, members.shape[1]), np.int64)
    counts = np.empty(batch, np.int64)
    outer = 1.0 if rho >= HARD else (rho - 1.0) / rho
    evens = np.arange(members.shape[1] + 1.0)
    evens[1:] **= -outer
    for n in range(N):
        if not used[n]:
            continue
        lonely[:] = 0.0
        mean[:] = 0.0
        b = 0
        for k in range(start[n], start[n + 1]):
            count = 0
            for a in range(members.shape[1]):
                i = members[state[k], a]
                if i < 0:
                    break
                mean[i] += weight[k]
                causes[b, a] = np.int64(candidates[n, i]) * D
                places[b, a] = i * D
                count += 1
            if count == 1:
                lonely[places[b, 0] // D] += weight[k]
            elif count > 1 and rho >= STEEP:
                add_steep_shares(D, power, rho, outer, weight[k], causes[b], places[b], count, share)
            elif count > 1:
                q[b], counts[b] = weight[k], count
                b += 1
                if b == batch:
                    add_soft_shares(D, power, lower, outer, q, evens, causes, places, counts, b, sums, share)
                    b = 0
        if b > 0:
            add_soft_shares(D, power, lower, outer, q, evens, causes, places, counts, b, sums, share)
        for i in range(C):
            if mean[i] == 0.0:
                continue
            h = candidates[n, i]
            active[h] += mean[i]
            alone[h] += lonely[i]
            by_itself, zero = fill(lonely[i]), fill(0.0)
            for d in range(0, D, LANES):
                part_of, here = load(share, i * D + d), h * D + d
                store(numerator, here, fma(part_of + by_itself, load(Y, n * D + d), load(numerator, here)))
                store(denominator, here, load(denominator, here) + part_of)
                store(share, i * D + d, zero)
        for k in range(first[n], first[n + 1]):
            h = cause[k]
            active[h] += single[k]
            alone[h] += single[k]
            by_itself = fill(single[k])
            for d in range(0, D, LANES):
                here = h * D + d
                store(numerator, here, fma(by_itself, load(Y, n * D + d), load(numerator, here)))


@part
def of_width(table, width):
    """A table with so many columns: the first of its own, or more that are zero."""
    other = np.zeros((len(table), width), np.int32)
    for n in range(len(table)):
        for i in range(min(width, table.shape[1])):
            other[n, i] = table[n, i]
    return other


@kernel("Tuple((int32[:,::1], int32[:,::1]))(int32[:,:,::1], int64[::1], int32[::1], int64)")
def over_candidates(states, start, state, H):
    """Listed states that matter as those of a table over candidates, which are the causes that they have.

    states (n, K, g); start (n + 1,), state: those that matter, row by row. Returns candidates (n, H'), as many as the
    point with most has, and members (m, g), one row for each that matters, padded with -1.
    """
    N, _, most = states.shape
    members, place = np.full((len(state), most), -1, np.int32), np.full(H, -1, np.int32)
    candidates, width = np.zeros((N, min(H, 16)), np.int32), 1
    for n in range(N):
        count = 0
        for k in range(start[n], start[n + 1]):
            for i in range(most):
                h = states[n, state[k], i]
                if h < 0:
                    break
                if place[h] < 0:
                    if count == candidates.shape[1]:
                        candidates = of_width(candidates, min(H, 2 * count))
                    candidates[n, count], place[h] = h, count
                    count += 1
                members[k, i] = place[h]
        for i in range(count):
            place[candidates[n, i]] = -1
        width = max(width, count)
    return of_width(candidates, width), members
