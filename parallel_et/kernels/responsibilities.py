"""Statistics of models whose mean is a maximum: which of the active causes a dimension belongs to, and sums of that."""

import numpy as np

from parallel_et.kernels import kernel, part, scratch
from parallel_et.kernels.simd import LANES, choose, equals, exp, fill, fma, load, log, maximum, store

FAR = -1e4  # a logarithm whose exp is zero
STEEP = 24.0
"""From this rho on the powers of small fields would underflow, and shares are computed from logarithms."""
HARD = 1e12
"""From this rho on the maximum is a hard one."""
STRIP = 64
"""Dimensions of all candidates that are worked on at a time; they stay in the fastest cache."""


@part
def falling(u, v, weight, other, curve):
    """The weight times u^-outer and the other times v^-outer, u, v >= 1; see ``falling_curve``.

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
def add_means(q, inner, path, above, mean):
    """Add the weights q (K,) of a table's states with more than ``above`` causes to the means (H',) of their causes.

    Returns the sum of these weights.
    """
    C, whole = len(mean), 0.0
    for node in range(len(inner)):
        g, i, child = inner[node, 1], inner[node, 2], inner[node, 3]
        if g > 0:
            path[g - 1] = i
        if g < above:
            continue
        children = 0.0
        for j in range(i + 1, C):
            mean[j] += q[child + j]
            children += q[child + j]
        for a in range(g):
            mean[path[a]] += children
        whole += children
    return whole


@part
def add_along_tree(soft, curve, q, shared, fields, inner, path, stack, share):
    """As ``add_soft_shares``, for the weights q (K,) of a table's states over fields (H',), where these stand.

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
            if i == C - 1 or g >= shared:
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
    "void(float64[:,::1], float64[:,:,::1], float64[::1], float64, float64, int64, int32[:,::1], int32[:,::1], "
    "int32[:,::1], int64[::1], int32[::1], float64[::1], boolean[::1], float64[:,::1], float64[:,::1], float64[::1], "
    "float64[::1], float64[::1])"
)
def weighted_sums(
    Y,
    soft,
    curve,
    rho,
    outer,
    shared,
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
    many,
):
    """Sums over the used points of <A_dh> y_d and <A_dh> (ET eq. 30), A^rho of eq. 36, which is 1 for a single cause.

    Y (n, D); soft (4, H, wide >= D), wide a multiple of 2 LANES: W^rho and W^(rho - 1), relative to the largest field
    of a dimension, and their inverses, or (1, H, wide): log W, by which A is made where these would underflow; curve:
    ``falling_curve``; outer = (rho - 1) / rho; shared: states with more causes count for ``active`` alone; candidates
    (n, H'), members (K, gamma), inner (M, 4) of the tree of states, if they are one, else (0, 4); start, state, weight:
    the states that matter, row by row; used (n,). numerator and denominator (H, D), alone and active (H,) are added to;
    alone is the part of the denominator that is the same in all dimensions, active the sum of <s_h>. many (0,), or
    (H + 1,) to which <s_h> and the weight of those states are added that have more causes than are shared. Active
    fields that are all zero share a dimension evenly. Costs D powers of some 25 operations a state of two and more
    causes that matters, and |s| D operations, or along the tree, where most states matter, half a dozen.
    """
    N, D = Y.shape
    C, K, gamma, wide = candidates.shape[1], members.shape[0], members.shape[1], soft.shape[2]
    lower, steep = soft.shape[1] * wide, len(soft) == 1
    share, stack, dense = scratch(C * wide), scratch(3 * gamma * STRIP), np.zeros(K if len(inner) > 0 else 0)
    share[:] = 0.0
    lonely, mean, crowd, fields = np.empty(C), np.empty(C), np.empty(C), np.empty(C, np.int64)
    causes, places, path = np.empty(gamma, np.int64), np.empty(gamma, np.int64), np.empty(gamma, np.int64)
    for n in range(N):
        if not used[n]:
            continue
        lonely[:] = 0.0
        mean[:] = 0.0
        crowd[:] = 0.0
        crowded = 0.0
        for i in range(C):
            fields[i] = np.int64(candidates[n, i]) * wide
        if not steep and len(inner) > 0 and 2 * (start[n + 1] - start[n]) > K:
            dense[:] = 0.0
            for k in range(start[n], start[n + 1]):
                dense[state[k]] = weight[k]
            add_means(dense, inner, path, 0, mean)
            for i in range(C):
                lonely[i] = dense[inner[0, 3] + i]
            add_along_tree(soft, curve, dense, shared, fields, inner, path, stack, share)
            if len(many) > 0:
                crowded = add_means(dense, inner, path, shared, crowd)
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
                elif count > shared:
                    crowded += weight[k]
                    for a in range(count):
                        crowd[members[state[k], a]] += weight[k]
                elif count > 1 and steep:
                    add_steep_shares(D, soft, rho, outer, weight[k], causes, places, count, share)
                elif count > 1:
                    add_soft_shares(D, soft, curve, weight[k], causes, places, count, share)
        if len(many) > 0:
            many[-1] += crowded
            for i in range(C):
                many[candidates[n, i]] += crowd[i]
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
