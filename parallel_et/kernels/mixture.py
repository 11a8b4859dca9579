"""Mixtures: the log joint of a point and a cluster, the best clusters of a point, and sums by cluster."""

import numpy as np

from parallel_et.kernels import device_function, kernel, scratch
from parallel_et.kernels.fixed import LOW, add_value, update_largest
from parallel_et.kernels.select import dot, keep_best, list_at_least, shortlist
from parallel_et.kernels.simd import LANES, add_fixed, fill, fma, highest, load, maximum, store, total

LINEAR, SPHERICAL, DIAGONAL = 0, 1, 2
"""Forms of a log joint: bias_c + y . w_c, bias_c - scale_c |y - w_c|^2, and bias_c - sum_d scale_cd (y_d - w_cd)^2."""
ROUNDING_MARGIN = 1e-6
"""Relative decrease of a limit that is rounded to single precision."""


@device_function
def squared_distance(X, x, Y, y, D):
    """Return the squared distance of D numbers of X and Y from flat indices x and y on."""
    a, b = fill(0.0), fill(0.0)
    whole = D - D % (2 * LANES)
    for d in range(0, whole, 2 * LANES):
        gap = load(X, x + d) - load(Y, y + d)
        a = fma(gap, gap, a)
        gap = load(X, x + d + LANES) - load(Y, y + d + LANES)
        b = fma(gap, gap, b)
    for d in range(whole, D, LANES):
        gap = load(X, x + d) - load(Y, y + d)
        a = fma(gap, gap, a)
    return total(a + b)


@device_function
def weighted_squared_distance(X, x, Y, y, scale, D):
    """Return the squared distance with a factor for each dimension, from the flat index y of ``scale`` on."""
    so_far = fill(0.0)
    for d in range(0, D, LANES):
        gap = load(X, x + d) - load(Y, y + d)
        so_far = fma(gap * gap, load(scale, y + d), so_far)
    return total(so_far)


@device_function
def joints_of_points(form, Y, first, last, WT, scale, bias, clusters, count, logs):
    """Write the log joints of the points [first, last) with ``count`` listed clusters each; -inf for negative ones."""
    D = Y.shape[1]
    if form == SPHERICAL:  # outside the loops: Numba counts references of arrays that branches share, which is slow
        for n in range(first, last):
            for k in range((n - first) * count, (n - first + 1) * count):
                c = np.int64(clusters[k])
                logs[k] = -np.inf if c < 0 else bias[c] - scale[c] * squared_distance(Y, n * D, WT, c * D, D)
    elif form == DIAGONAL:
        for n in range(first, last):
            for k in range((n - first) * count, (n - first + 1) * count):
                c = np.int64(clusters[k])
                logs[k] = -np.inf if c < 0 else bias[c] - weighted_squared_distance(Y, n * D, WT, c * D, scale, D)
    else:
        for n in range(first, last):
            for k in range((n - first) * count, (n - first + 1) * count):
                c = np.int64(clusters[k])
                logs[k] = -np.inf if c < 0 else bias[c] + dot(Y, n * D, WT, c * D, D)


@kernel("void(int64, float64[:,::1], float64[:,::1], float64[::1], float64[::1], int32[:,::1], float64[:,::1])")
def joints(form, Y, WT, scale, bias, clusters, logs):
    """Compute logs[n, k] = log joint of point n and cluster clusters[n, k], -inf for negative clusters.

    form : one of ``LINEAR``, ``SPHERICAL``, ``DIAGONAL``
    Y, WT, bias : (n, D), (C, D) and (C,)
    scale : (C,) or (C D,), by form
    clusters, logs : (n, K), and (n, K) out

    Costs 3 D operations per cluster.
    """
    joints_of_points(form, Y, 0, len(Y), WT, scale, bias, clusters.reshape(-1), clusters.shape[1], logs.reshape(-1))


@kernel("void(float32[:,::1], int64, float64[:,::1], float64[:,::1], float64[::1], float64[::1], int32[:,::1], int64)")
def best_clusters(upper, form, Y, WT, scale, bias, candidates, first):
    """Select the clusters with the largest joints (TV Alg. 2), in ascending order; in case of ties the lower index.

    upper : (m, C) upper bounds of the log joints in single precision, of the points from ``first`` on
    candidates : (n, C') out; other arguments as for ``joints``

    The joints of the C' largest bounds give a limit. The joints of all clusters with larger bounds are computed too, so
    the result is exact. Costs about C operations and 3 D C' a point.
    """
    C, H, lanes = candidates.shape[1], upper.shape[1], 2 * LANES
    tops = np.empty(-(-2 * C // lanes) * lanes, np.float32)
    found, short, exact = np.empty(H + lanes, np.int32), np.empty(H + lanes, np.float32), np.empty(H)
    for m in range(len(upper)):
        n = first + m
        count, limit = shortlist(upper, m, C, lanes, np.float32(0.0), tops, found, short), np.inf
        joints_of_points(form, Y, n, n + 1, WT, scale, bias, found, count, exact)
        for k in range(count):
            limit = min(limit, exact[k])
        count = list_at_least(upper, m, np.float32(limit - ROUNDING_MARGIN * abs(limit)), lanes, found)
        if count > C:
            joints_of_points(form, Y, n, n + 1, WT, scale, bias, found, count, exact)
            keep_best(exact, C, found, count)
        for i in range(C):
            candidates[n, i] = found[i]


@kernel(
    "Tuple((int64[::1], int64[::1], float64[::1]))(int32[:,::1], int64[::1], int32[::1], float64[::1], boolean[::1], "
    "int64)"
)
def weights_by_cluster(clusters, start, column, value, used, C):
    """Return the weights of the used points sorted by cluster.

    clusters, used : (n, K) and (n,)
    start, column, value : non-negligible weights, row by row

    Returns the start of each cluster (C + 2,), and the points and values of the weights.
    Costs a few operations per weight.
    """
    starts = np.zeros(C + 2, np.int64)
    for n in range(len(clusters)):
        if used[n]:
            for k in range(start[n], start[n + 1]):
                starts[clusters[n, column[k]] + 2] += 1
    for c in range(C):
        starts[c + 2] += starts[c + 1]
    points, values = np.empty(starts[C + 1], np.int64), np.empty(starts[C + 1])
    for n in range(len(clusters)):
        if used[n]:
            for k in range(start[n], start[n + 1]):
                place = clusters[n, column[k]] + 1
                points[starts[place]] = n
                values[starts[place]] = value[k]
                starts[place] += 1
    return starts, points, values


@device_function
def add_differences(sums, weight, Y, y, W, w):
    """Add the weighted difference of two vectors of Y and of W, and of its square, to the sums of both."""
    first, more, second, squares = sums
    gap = load(Y, y) - load(W, w)
    weighted = weight * gap
    other = load(Y, y + LANES) - load(W, w + LANES)
    rest = weight * other
    return first + weighted, more + rest, fma(weighted, gap, second), fma(rest, other, squares)


@kernel(
    "void(float64[:,::1], float64[:,::1], int64[::1], int64[::1], float64[::1], float64, int64[::1], int64[::1], "
    "float64[::1], float64[::1], int64[::1], int64[::1], float64[::1], float64[::1], int64[::1], int64[::1], "
    "float64[::1])"
)
def add_moments(
    Y,
    WT,
    starts,
    points,
    values,
    scale,
    high,
    low,
    largest,
    gap_scale,
    gap_high,
    gap_low,
    gap_largest,
    square_scale,
    square_high,
    square_low,
    square_largest,
):
    """Add sum_n q_nc, sum_n q_nc (y_n - w_c), and sums of squares of the differences, to fixed-point sums.

    Y, WT : (n, D) and (C, D)
    starts, points, values : of ``weights_by_cluster``
    high, low, gap_high, gap_low : (C,) and (C D,) words of the first two sums
    square_high, square_low : (C D,) by dimension, (C,) over all dimensions, or (0,) for none
    scale, gap_scale, square_scale : units; the last two have one for each element

    Costs 4 D operations per weight and about D per cluster with weights.
    """
    C, D = WT.shape
    each, altogether = len(square_high) == C * D, len(square_high) == C
    unit, zero = fill(LOW), fill(0.0)
    top, top_square, sums_of_squares = zero, zero, scratch(D)
    for c in range(C):
        if starts[c] == starts[c + 1]:
            continue
        weight, squared = 0.0, zero
        for k in range(starts[c], starts[c + 1]):
            weight += values[k]
        add_value(high, low, c, weight * scale)
        update_largest(largest, weight * scale)
        for d in range(0, D, 2 * LANES):
            sums, here = (zero, zero, zero, zero), c * D + d
            if d + LANES < D:
                for k in range(starts[c], starts[c + 1]):
                    sums = add_differences(sums, fill(values[k]), Y, points[k] * D + d, WT, here)
            else:
                first, second, center = zero, zero, load(WT, here)
                for k in range(starts[c], starts[c + 1]):
                    gap = load(Y, points[k] * D + d) - center
                    weighted = fill(values[k]) * gap
                    first = first + weighted
                    second = fma(weighted, gap, second)
                sums = (first, zero, second, zero)
            first, more, second, squares = sums
            value = first * load(gap_scale, here)
            add_fixed(gap_high, gap_low, here, value, unit)
            top = maximum(top, maximum(value, zero - value))
            store(sums_of_squares, d, second)
            if d + LANES < D:
                value = more * load(gap_scale, here + LANES)
                add_fixed(gap_high, gap_low, here + LANES, value, unit)
                top = maximum(top, maximum(value, zero - value))
                store(sums_of_squares, d + LANES, squares)
            squared = squared + (second + squares)
        if each:
            for d in range(0, D, LANES):
                value = load(sums_of_squares, d) * load(square_scale, c * D + d)
                add_fixed(square_high, square_low, c * D + d, value, unit)
                top_square = maximum(top_square, value)
        elif altogether:
            value_of_all = total(squared) * square_scale[c]
            add_value(square_high, square_low, c, value_of_all)
            update_largest(square_largest, value_of_all)
    update_largest(gap_largest, highest(top))
    if each:
        update_largest(square_largest, highest(top_square))


@kernel("void(float64[:,::1], float64[:,::1], float64[::1])")
def update_distances(Y, centre, gaps):
    """Compute gaps[n] = min(gaps[n], |y_n - centre|^2); Y (n, D), centre (1, D), gaps (n,).

    Costs 3 D operations per point.
    """
    N, D = Y.shape
    for n in range(N):
        gaps[n] = min(gaps[n], squared_distance(Y, n * D, centre, 0, D))
