"""Posterior and statistics of models whose mean is the elementwise maximum of the active causes' fields."""

from math import log as log_of

import numpy as np

from parallel_et.kernels import VACANT, kernel, part, scratch
from parallel_et.kernels.counts import gain_of_state, gains_of_fields, gains_of_four, gains_of_two
from parallel_et.kernels.simd import LANES, choose, equals, exp, fill, fma, highest, load, log, maximum, store, total
from parallel_et.kernels.truncated import weigh_singles

FAR = -1e4  # a logarithm whose exp is zero
STEEP = 24.0
"""From this rho on the powers of small fields would underflow, and shares are computed from logarithms."""
HARD = 1e12
"""From this rho on the maximum is a hard one."""
STRIP = 64
"""Dimensions of all candidates that are worked on at a time; they stay in the fastest cache."""


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


@part
def falling(u, v, weight, other, curve):
    """The weight times u^(-1 / T) and the other times v^(-1 / T), u, v >= 1; see ``falling_curve``.

    Two at a time, by which the processor has one to work on while it waits for the other.
    """
    bound, inverse, factor = fill(curve[0]), fill(curve[1]), fill(curve[2])
    weight, other = choose(u, bound, weight * factor, weight), choose(v, bound, other * factor, other)
    u, v = choose(u, bound, u * inverse, u), choose(v, bound, v * inverse, v)
    bound, inverse, factor = fill(curve[3]), fill(curve[4]), fill(curve[5])
    weight, other = choose(u, bound, weight * factor, weight), choose(v, bound, other * factor, other)
    u, v = choose(u, bound, u * inverse, u), choose(v, bound, v * inverse, v)
    slope, offset, i = fill(curve[6]), fill(curve[7]), len(curve) - 2
    x, y = fma(u, slope, offset), fma(v, slope, offset)
    xx, yy = x * x, y * y
    x_even, x_odd = fill(curve[i]), fill(curve[i + 1])
    y_even, y_odd = x_even, x_odd
    while i > 8:
        i -= 2
        even, odd = fill(curve[i]), fill(curve[i + 1])
        x_even, x_odd = fma(x_even, xx, even), fma(x_odd, xx, odd)
        y_even, y_odd = fma(y_even, yy, even), fma(y_odd, yy, odd)
    return fma(x_odd, x, x_even) * weight, fma(y_odd, y, y_even) * other


@part
def add_soft_shares(D, soft, curve, q, causes, places, count, share):
    """Add q A / W^(rho - 1) of one state to the shares (H' D,) at the places of its causes.

    soft (4, H, wide): the powers rho and rho - 1 of W, and their inverses.
    """
    weight, size = fill(q), soft.shape[1] * soft.shape[2]
    for d in range(0, D, LANES):
        here = causes[0] + d
        sum_w, least, lower = load(soft, here), load(soft, 2 * size + here), load(soft, 3 * size + here)
        for a in range(1, count):
            here = causes[a] + d
            sum_w = sum_w + load(soft, here)
            least, lower = smaller(least, load(soft, 2 * size + here)), smaller(lower, load(soft, 3 * size + here))
        found, _ = falling(sum_w * least, sum_w * least, weight * lower, weight * lower, curve)
        for a in range(count):
            store(share, places[a] + d, load(share, places[a] + d) + found)


@part
def smaller(x, y):
    """The smaller of two vectors, lane by lane."""
    return choose(x, y, y, x)


@part
def add_means(q, inner, path, lonely, mean):
    """Add the weights q (K,) of a table's states to the means (H',) of their causes, of single ones also to lonely."""
    C = len(mean)
    for node in range(len(inner)):
        g, i, child = inner[node, 1], inner[node, 2], inner[node, 3]
        children = 0.0
        for j in range(i + 1, C):
            mean[j] += q[child + j]
            children += q[child + j]
            if g == 0:
                lonely[j] = q[child + j]
        if g > 0:
            path[g - 1] = i
            for a in range(g):
                mean[path[a]] += children


@part
def add_along_tree(soft, curve, q, fields, inner, path, stack, share):
    """As ``add_soft_shares``, for the weights q (K,) of all states of a table over fields (H',), where these stand.

    What the causes of a state have in common with its parent is computed once, and what its children add to these is
    added up first: two additions a state, however many causes it has. path (gamma,) and stack (3 gamma STRIP,) are
    scratch; strips of dimensions stay in the fastest cache.
    """
    C, wide, size = len(fields), soft.shape[2], soft.shape[1] * soft.shape[2]
    deepest = np.max(inner[:, 1])
    depth, inverse, lower_inverse = len(path) * STRIP, 2 * size, 3 * size
    for strip in range(0, wide, STRIP):
        width = min(STRIP, wide - strip)
        for node in range(1, len(inner)):
            g, i, child = inner[node, 1], inner[node, 2], inner[node, 3]
            if i == C - 1:
                continue
            path[g - 1] = i
            mine, above = (g - 1) * STRIP, (g - 2) * STRIP
            for d in range(0, width, 2 * LANES):
                e = d + LANES
                f, k = fields[i] + strip + d, fields[i] + strip + e
                sum_f, sum_k = load(soft, f), load(soft, k)
                least_f, least_k = load(soft, inverse + f), load(soft, inverse + k)
                lower_f, lower_k = load(soft, lower_inverse + f), load(soft, lower_inverse + k)
                if g > 1:
                    up, on = above + d, above + e
                    sum_f, sum_k = sum_f + load(stack, up), sum_k + load(stack, on)
                    up, on = up + depth, on + depth
                    least_f, least_k = smaller(least_f, load(stack, up)), smaller(least_k, load(stack, on))
                    up, on = up + depth, on + depth
                    lower_f, lower_k = smaller(lower_f, load(stack, up)), smaller(lower_k, load(stack, on))
                if g < deepest:
                    store(stack, mine + d, sum_f)
                    store(stack, mine + e, sum_k)
                    store(stack, depth + mine + d, least_f)
                    store(stack, depth + mine + e, least_k)
                    store(stack, 2 * depth + mine + d, lower_f)
                    store(stack, 2 * depth + mine + e, lower_k)
                children_f, children_k = fill(0.0), fill(0.0)
                for j in range(i + 1, C):
                    weight, f, k = fill(q[child + j]), fields[j] + strip + d, fields[j] + strip + e
                    found_f, found_k = falling(
                        (sum_f + load(soft, f)) * smaller(least_f, load(soft, inverse + f)),
                        (sum_k + load(soft, k)) * smaller(least_k, load(soft, inverse + k)),
                        weight * smaller(lower_f, load(soft, lower_inverse + f)),
                        weight * smaller(lower_k, load(soft, lower_inverse + k)),
                        curve,
                    )
                    f, k = j * wide + strip + d, j * wide + strip + e
                    children_f, children_k = children_f + found_f, children_k + found_k
                    store(share, f, load(share, f) + found_f)
                    store(share, k, load(share, k) + found_k)
                for a in range(g):
                    f, k = path[a] * wide + strip + d, path[a] * wide + strip + e
                    store(share, f, load(share, f) + children_f)
                    store(share, k, load(share, k) + children_k)


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
    "void(float64[:,::1], float64[:,:,::1], float64[::1], float64, int32[:,::1], int32[:,::1], int32[:,::1], "
    "int64[::1], int32[::1], float64[::1], boolean[::1], float64[:,::1], float64[:,::1], float64[::1], float64[::1])"
)
def weighted_sums(
    Y,
    soft,
    curve,
    rho,
    candidates,
    members,
    inner,
    start,
    state,
    weight,
    used,
    numerator,
    denominator,
    alone,
    active,
):
    """Sums over the used points of <A_dh> y_d and <A_dh> (ET eq. 30), A^rho of eq. 36, which is 1 for a single cause.

    Y (n, D); soft (4, H, wide >= D), wide a multiple of 2 LANES: W^rho and W^(rho - 1), relative to the largest field
    of a dimension, and their inverses, or from rho = STEEP on (1, H, wide): log W; curve: ``falling_curve``; candidates
    (n, H'), members (K, gamma), inner (M, 4) of the tree of states, if they are one, else (0, 4); start, state, weight:
    the states that matter, row by row; used (n,). numerator and denominator (H, D), alone and active (H,) are added to;
    alone is the part of the denominator that is the same in all dimensions, active the sum of <s_h>. Active fields
    that are all zero share a dimension evenly. Costs D powers of some 25 operations a state of two and more causes
    that matters, and |s| D operations, or along the tree, where most states matter, half a dozen.
    """
    N, D = Y.shape
    C, K, gamma, wide = candidates.shape[1], members.shape[0], members.shape[1], soft.shape[2]
    lower, steep = soft.shape[1] * wide, rho >= STEEP
    share, stack, dense = scratch(C * wide), scratch(3 * gamma * STRIP), np.zeros(K if len(inner) > 0 else 0)
    share[:] = 0.0
    lonely, mean, fields = np.empty(C), np.empty(C), np.empty(C, np.int64)
    causes, places, path = np.empty(gamma, np.int64), np.empty(gamma, np.int64), np.empty(gamma, np.int64)
    outer = 1.0 if rho >= HARD else (rho - 1.0) / rho
    for n in range(N):
        if not used[n]:
            continue
        lonely[:] = 0.0
        mean[:] = 0.0
        for i in range(C):
            fields[i] = np.int64(candidates[n, i]) * wide
        if not steep and len(inner) > 0 and 2 * (start[n + 1] - start[n]) > K:
            dense[:] = 0.0
            for k in range(start[n], start[n + 1]):
                dense[state[k]] = weight[k]
            add_means(dense, inner, path, lonely, mean)
            add_along_tree(soft, curve, dense, fields, inner, path, stack, share)
        else:
            for k in range(start[n], start[n + 1]):
                count = 0
                for a in range(gamma):
                    i = members[state[k], a]
                    if i < 0:
                        break
                    mean[i] += weight[k]
                    causes[a], places[a] = fields[i], i * wide
                    count += 1
                if count == 1:
                    lonely[members[state[k], 0]] += weight[k]
                elif count > 1 and steep:
                    add_steep_shares(D, soft, rho, outer, weight[k], causes, places, count, share)
                elif count > 1:
                    add_soft_shares(D, soft, curve, weight[k], causes, places, count, share)
        for i in range(C):
            if mean[i] == 0.0:
                continue
            h = candidates[n, i]
            active[h] += mean[i]
            alone[h] += lonely[i]
            by_itself, zero = fill(lonely[i]), fill(0.0)
            for d in range(0, D, LANES):
                here = h * D + d
                part_of = load(share, i * wide + d)
                if not steep:
                    part_of = part_of * load(soft, lower + fields[i] + d)
                store(numerator, here, fma(part_of + by_itself, load(Y, n * D + d), load(numerator, here)))
                store(denominator, here, load(denominator, here) + part_of)
                store(share, i * wide + d, zero)


@kernel(
    "void(float64[:,::1], int64[::1], int32[::1], float64[::1], boolean[::1], float64[:,::1], float64[::1], "
    "float64[::1])"
)
def sums_of_singles(Y, first, cause, single, used, numerator, alone, active):
    """What the single causes that matter add to ``weighted_sums``; first, cause, single: they, row by row."""
    N, D = Y.shape
    for n in range(N):
        if not used[n]:
            continue
        for k in range(first[n], first[n + 1]):
            h = cause[k]
            active[h] += single[k]
            alone[h] += single[k]
            by_itself = fill(single[k])
            for d in range(0, D, LANES):
                here = h * D + d
                store(numerator, here, fma(by_itself, load(Y, n * D + d), load(numerator, here)))


@kernel("void(int64[::1], int32[::1], float64[::1], boolean[::1], float64[:,::1])")
def spread(first, cause, single, used, table):
    """The weights of the single causes that matter of the used points as a table (n, H) of zeros otherwise, out."""
    table[:] = 0.0
    for n in range(len(table)):
        if used[n]:
            for k in range(first[n], first[n + 1]):
                table[n, cause[k]] = single[k]
