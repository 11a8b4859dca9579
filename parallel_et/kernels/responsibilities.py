"""Statistics of models whose mean is a maximum: responsibilities of causes for each dimension, and their sums."""

import numpy as np

from parallel_et.kernels import device_function, kernel, scratch
from parallel_et.kernels.simd import LANES, choose, equals, exp, fill, fma, load, log, maximum, store

LOG_ZERO = -1e4
"""Logarithm whose exp is zero."""
STEEP_RHO = 24.0
"""Value of rho from which responsibilities are computed from logarithms, as powers of small fields would underflow."""
HARD_RHO = 1e12
"""Value of rho from which the maximum is hard."""
STRIP_DIMENSIONS = 64
"""Dimensions of all candidates that are handled at a time, so that they stay in the fastest cache."""


@device_function
def weighted_powers(u, v, weight, other, curve):
    """Return weight u^-outer and other v^-outer for u, v >= 1 by ``falling_curve``; two at a time hide the latency."""
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


@device_function
def add_soft_responsibilities(D, soft, curve, q, causes, places, count, resp):
    """Add q A / W^(rho - 1) of one state to the responsibilities (H' D,) of its causes."""
    weight, size = fill(q), soft.shape[1] * soft.shape[2]
    for d in range(0, D, LANES):
        here = causes[0] + d
        sum_w, least, lower = load(soft, here), load(soft, 2 * size + here), load(soft, 3 * size + here)
        for a in range(1, count):
            here = causes[a] + d
            sum_w = sum_w + load(soft, here)
            least, lower = minimum(least, load(soft, 2 * size + here)), minimum(lower, load(soft, 3 * size + here))
        found, _ = weighted_powers(sum_w * least, sum_w * least, weight * lower, weight * lower, curve)
        for a in range(count):
            store(resp, places[a] + d, load(resp, places[a] + d) + found)


@device_function
def minimum(x, y):
    """Return the smaller of two vectors, lane by lane."""
    return choose(x, y, y, x)


@device_function
def add_means(q, inner, path, above, mean):
    """Add the weights of a table's states with more than ``above`` causes to the means (H',); return their sum."""
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


@device_function
def add_responsibilities_along_tree(soft, curve, q, shared, fields, inner, path, stack, resp):
    """Add q A / W^(rho - 1) of all states of a table along the tree, with two additions per state."""
    C, wide, size = len(fields), soft.shape[2], soft.shape[1] * soft.shape[2]
    deepest = np.max(inner[:, 1])
    depth, inverse, lower_inverse = len(path) * STRIP_DIMENSIONS, 2 * size, 3 * size
    for strip in range(0, wide, STRIP_DIMENSIONS):
        width = min(STRIP_DIMENSIONS, wide - strip)
        for node in range(1, len(inner)):
            g, i, child = inner[node, 1], inner[node, 2], inner[node, 3]
            if i == C - 1 or g >= shared:
                continue
            path[g - 1] = i
            mine, above = (g - 1) * STRIP_DIMENSIONS, (g - 2) * STRIP_DIMENSIONS
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
                    least_f, least_k = minimum(least_f, load(stack, up)), minimum(least_k, load(stack, on))
                    up, on = up + depth, on + depth
                    lower_f, lower_k = minimum(lower_f, load(stack, up)), minimum(lower_k, load(stack, on))
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
                    found_f, found_k = weighted_powers(
                        (sum_f + load(soft, f)) * minimum(least_f, load(soft, inverse + f)),
                        (sum_k + load(soft, k)) * minimum(least_k, load(soft, inverse + k)),
                        weight * minimum(lower_f, load(soft, lower_inverse + f)),
                        weight * minimum(lower_k, load(soft, lower_inverse + k)),
                        curve,
                    )
                    f, k = j * wide + strip + d, j * wide + strip + e
                    children_f, children_k = children_f + found_f, children_k + found_k
                    store(resp, f, load(resp, f) + found_f)
                    store(resp, k, load(resp, k) + found_k)
                for a in range(g):
                    f, k = path[a] * wide + strip + d, path[a] * wide + strip + e
                    store(resp, f, load(resp, f) + children_f)
                    store(resp, k, load(resp, k) + children_k)


@device_function
def add_steep_responsibilities(D, power, rho, outer, q, causes, places, count, resp):
    """Add q A of one state to the responsibilities (H' D,) of its causes, from logarithms of the fields."""
    weight, zero, steepness = fill(q), fill(0.0), fill(rho)
    for d in range(0, D, LANES):
        top = load(power, causes[0] + d)
        for a in range(1, count):
            top = maximum(top, load(power, causes[a] + d))
        sum_w = zero
        if rho >= HARD_RHO:
            for a in range(count):
                sum_w = sum_w + equals(load(power, causes[a] + d), top)
            sum_w = weight / sum_w
            for a in range(count):
                place = places[a] + d
                store(resp, place, fma(equals(load(power, causes[a] + d), top), sum_w, load(resp, place)))
        else:
            for a in range(count):
                sum_w = sum_w + exp(maximum(steepness * (load(power, causes[a] + d) - top), fill(LOG_ZERO)))
            sum_w = log(sum_w)
            for a in range(count):
                place = places[a] + d
                depth = maximum(steepness * (load(power, causes[a] + d) - top), fill(LOG_ZERO)) - sum_w
                store(resp, place, fma(weight, exp(fill(outer) * depth), load(resp, place)))


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
    self_only,
    active,
    many,
):
    """Add the sums over the used points of <A_dh> y_d and <A_dh> (ET eq. 30), with A^rho of ET eq. 36.

    A is 1 for a singleton. Active fields that are all zero share a dimension evenly.

    Y : (n, D)
    soft : (4, H, wide) W^rho, W^(rho - 1), relative to the largest field of a dimension, and their inverses; or
        (1, H, wide) log W if these would underflow. wide >= D is a multiple of 2 LANES
    curve, rho, outer : ``falling_curve``, the exponent, and (rho - 1) / rho
    shared : states with more causes count for ``active`` alone
    candidates, members : (n, H') and (K, gamma)
    inner : (M, 4) inner nodes of the tree of states, or (0, 4) if the states are no tree
    start, state, weight, used : states with non-negligible weight, row by row, and (n,) points to use
    numerator, denominator : (H, D) added to
    self_only, active : (H,) added to: the part of the denominator that is the same in all dimensions, and <s_h>
    many : (0,), or (H + 1,) to which <s_h> and the weight of the states with more causes than ``shared`` are added

    Costs D powers of about 25 operations per state of at least two causes, and |s| D operations.
    Along the tree, if most states have weight, it costs about 6 D operations per state instead of |s| D.
    """
    N, D = Y.shape
    C, K, gamma, wide = candidates.shape[1], members.shape[0], members.shape[1], soft.shape[2]
    lower, steep = soft.shape[1] * wide, len(soft) == 1
    resp, stack, dense = scratch(C * wide), scratch(3 * gamma * STRIP_DIMENSIONS), np.zeros(K if len(inner) > 0 else 0)
    resp[:] = 0.0
    self_weight, mean, many_means, fields = np.empty(C), np.empty(C), np.empty(C), np.empty(C, np.int64)
    causes, places, path = np.empty(gamma, np.int64), np.empty(gamma, np.int64), np.empty(gamma, np.int64)
    for n in range(N):
        if not used[n]:
            continue
        self_weight[:] = 0.0
        mean[:] = 0.0
        many_means[:] = 0.0
        many_weight = 0.0
        for i in range(C):
            fields[i] = np.int64(candidates[n, i]) * wide
        if not steep and len(inner) > 0 and 2 * (start[n + 1] - start[n]) > K:
            dense[:] = 0.0
            for k in range(start[n], start[n + 1]):
                dense[state[k]] = weight[k]
            add_means(dense, inner, path, 0, mean)
            for i in range(C):
                self_weight[i] = dense[inner[0, 3] + i]
            add_responsibilities_along_tree(soft, curve, dense, shared, fields, inner, path, stack, resp)
            if len(many) > 0:
                many_weight = add_means(dense, inner, path, shared, many_means)
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
                    self_weight[members[state[k], 0]] += weight[k]
                elif count > shared:
                    many_weight += weight[k]
                    for a in range(count):
                        many_means[members[state[k], a]] += weight[k]
                elif count > 1 and steep:
                    add_steep_responsibilities(D, soft, rho, outer, weight[k], causes, places, count, resp)
                elif count > 1:
                    add_soft_responsibilities(D, soft, curve, weight[k], causes, places, count, resp)
        if len(many) > 0:
            many[-1] += many_weight
            for i in range(C):
                many[candidates[n, i]] += many_means[i]
        for i in range(C):
            if mean[i] == 0.0:
                continue
            h = candidates[n, i]
            active[h] += mean[i]
            self_only[h] += self_weight[i]
            by_itself, zero = fill(self_weight[i]), fill(0.0)
            for d in range(0, D, LANES):
                here = h * D + d
                part_of = load(resp, i * wide + d)
                if not steep:
                    part_of = part_of * load(soft, lower + fields[i] + d)
                store(numerator, here, fma(part_of + by_itself, load(Y, n * D + d), load(numerator, here)))
                store(denominator, here, load(denominator, here) + part_of)
                store(resp, i * wide + d, zero)


@kernel(
    "void(float64[:,::1], int64[::1], int32[::1], float64[::1], boolean[::1], float64[:,::1], float64[::1], "
    "float64[::1])"
)
def sums_of_singletons(Y, first, cause, single, used, numerator, self_only, active):
    """Add the singletons outside the candidates to the sums of ``weighted_sums``.

    first, cause, single : singletons with non-negligible weight, row by row

    Costs D operations per singleton.
    """
    N, D = Y.shape
    for n in range(N):
        if not used[n]:
            continue
        for k in range(first[n], first[n + 1]):
            h = cause[k]
            active[h] += single[k]
            self_only[h] += single[k]
            by_itself = fill(single[k])
            for d in range(0, D, LANES):
                here = h * D + d
                store(numerator, here, fma(by_itself, load(Y, n * D + d), load(numerator, here)))


@kernel("void(int64[::1], int32[::1], float64[::1], boolean[::1], float64[:,::1])")
def table_of_singletons(first, cause, single, used, table):
    """Write the non-negligible weights of singletons of the used points to a table (n, H) of zeros otherwise.

    first, cause, single : singletons with non-negligible weight, row by row

    Costs one write per singleton, and n H to clear the table.
    """
    table[:] = 0.0
    for n in range(len(table)):
        if used[n]:
            for k in range(first[n], first[n + 1]):
                table[n, cause[k]] = single[k]
