"""Mixtures: the joint of a point and a cluster, the best clusters of a point, and sums cluster by cluster."""

import numpy as np

from parallel_et.kernels import kernel, part, scratch
from parallel_et.kernels.fixed import LOW, add_one, note
from parallel_et.kernels.select import keep_best, list_few, product, shortlist
from parallel_et.kernels.simd import LANES, add_fixed, fill, fma, highest, load, maximum, store, total

LINEAR, ROUND, ALONG = 0, 1, 2
"""Forms of a log joint: bias_c + y . w_c, bias_c - scale_c |y - w_c|^2, and bias_c - sum_d scale_cd (y_d - w_cd)^2."""
BELOW = 1e-6
"""What a limit is lowered by, relatively, when it is rounded to single precision."""


@part
def distance(X, x, Y, y, D):
    """Squared distance of D numbers of X and Y from flat indices x and y on."""
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


@part
def distance_along(X, x, Y, y, scale, D):
    """The same, each dimension with a factor of its own, from the flat index y of ``scale`` on."""
    sofar = fill(0.0)
    for d in range(0, D, LANES):
        gap = load(X, x + d) - load(Y, y + d)
        sofar = fma(gap * gap, load(scale, y + d), sofar)
    return total(sofar)


@part
def joints_of(form, Y, first, last, WT, scale, bias, clusters, count, logs):
    """Log joints of the points [first, last), each with ``count`` of the listed clusters; -inf for negative ones."""
    D = Y.shape[1]
    if form == ROUND:  # outside of the loops, as arrays that branches share are counted by slow calls
        for n in range(first, last):
            for k in range((n - first) * count, (n - first + 1) * count):
                c = np.int64(clusters[k])
                logs[k] = -np.inf if c < 0 else bias[c] - scale[c] * distance(Y, n * D, WT, c * D, D)
    elif form == ALONG:
        for n in range(first, last):
            for k in range((n - first) * count, (n - first + 1) * count):
                c = np.int64(clusters[k])
                logs[k] = -np.inf if c < 0 else bias[c] - distance_along(Y, n * D, WT, c * D, scale, D)
    else:
        for n in range(first, last):
            for k in range((n - first) * count, (n - first + 1) * count):
                c = np.int64(clusters[k])
                logs[k] = -np.inf if c < 0 else bias[c] + product(Y, n * D, WT, c * D, D)


@kernel("void(int64, float64[:,::1], float64[:,::1], float64[::1], float64[::1], int32[:,::1], float64[:,::1])")
def joints(form, Y, WT, scale, bias, clusters, logs):
    """logs[n, k] = log joint of point n and cluster clusters[n, k], -inf where that is negative.

    Y (n, D), WT (C, D), scale (C,) or (C D,) as the form has it, bias (C,), clusters (n, K), logs (n, K) out.
    Costs 3 D operations a cluster.
    """
    joints_of(form, Y, 0, len(Y), WT, scale, bias, clusters.reshape(-1), clusters.shape[1], logs.reshape(-1))


@kernel("void(float32[:,::1], int64, float64[:,::1], float64[:,::1], float64[::1], float64[::1], int32[:,::1], int64)")
def nearest(upper, form, Y, WT, scale, bias, candidates, first):
    """The clusters of largest joint (TV Alg. 2), in rising order; of equal ones those with the lower index.

    upper (m, C): upper bounds of the log joints, in single precision, of the points from ``first`` on; all else as in
    ``joints``; candidates (n, C') out. The joints of the C' largest bounds tell which others are in doubt; where there
    are any, their joints are computed as well: the result is exact. About C operations and 3 D C' a point.
    """
    C, H, lanes = candidates.shape[1], upper.shape[1], 2 * LANES
    tops = np.empty(-(-2 * C // lanes) * lanes, np.float32)
    found, short, exact = np.empty(H + lanes, np.int32), np.empty(H + lanes, np.float32), np.empty(H)
    for m in range(len(upper)):
        n = first + m
        count, limit = shortlist(upper, m, C, lanes, np.float32(0.0), tops, found, short), np.inf
        joints_of(form, Y, n, n + 1, WT, scale, bias, found, count, exact)
        for k in range(count):
            limit = min(limit, exact[k])
        count = list_few(upper, m, np.float32(limit - BELOW * abs(limit)), lanes, found)
        if count > C:
            joints_of(form, Y, n, n + 1, WT, scale, bias, found, count, exact)
            keep_best(exact, C, found, count)
        for i in range(C):
            candidates[n, i] = found[i]


@kernel(
    "Tuple((int64[::1], int64[::1], float64[::1]))(int32[:,::1], int64[::1], int32[::1], float64[::1], boolean[::1], "
    "int64)"
)
def by_cluster(clusters, start, column, value, used, C):
    """The weights of the used points (n,) sorted by cluster.

    clusters (n, K); start (n + 1,), column and value: the weights that matter, row by row. Returns where each cluster
    starts (C + 2,), and for each weight its point and its value.
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


@part
def add_gaps(sums, weight, Y, y, W, w):
    """Add the gap between two vectors of Y and of W, times a weight, and its square, to the sums of both."""
    first, more, second, squares = sums
    gap = load(Y, y) - load(W, w)
    part = weight * gap
    other = load(Y, y + LANES) - load(W, w + LANES)
    rest = weight * other
    return first + part, more + rest, fma(part, gap, second), fma(rest, other, squares)


@kernel(
    "void(float64[:,::1], float64[:,::1], int64[::1], int64[::1], float64[::1], float64, int64[::1], int64[::1], "
    "float64[::1], float64[::1], int64[::1], int64[::1], float64[::1], float64[::1], int64[::1], int64[::1], "
    "float64[::1])"
)
def add_clusters(
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
    """Add sum_n q_nc to the fixed-point sums high, low (C,), and sum_n q_nc (y_n - w_c) to gap_high, gap_low (C D,).

    Their squares are added to square_high, square_low: (C D,) for those of each dimension, (C,) for those of all
    together, (0,) for none. gap_scale and square_scale have a scale for each element. Y (n, D), WT (C, D); starts,
    points, values of ``by_cluster``. Costs 4 D operations a weight and some D a cluster that has any.
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
        add_one(high, low, c, weight * scale)
        note(largest, weight * scale)
        for d in range(0, D, 2 * LANES):
            sums, here = (zero, zero, zero, zero), c * D + d
            if d + LANES < D:
                for k in range(starts[c], starts[c + 1]):
                    sums = add_gaps(sums, fill(values[k]), Y, points[k] * D + d, WT, here)
            else:
                first, second, center = zero, zero, load(WT, here)
                for k in range(starts[c], starts[c + 1]):
                    gap = load(Y, points[k] * D + d) - center
                    part = fill(values[k]) * gap
                    first = first + part
                    second = fma(part, gap, second)
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
            add_one(square_high, square_low, c, value_of_all)
            note(square_largest, value_of_all)
    note(gap_largest, highest(top))
    if each:
        note(square_largest, highest(top_square))


@kernel("void(float64[:,::1], float64[:,::1], float64[::1])")
def nearer(Y, centre, gaps):
    """gaps[n] = min(gaps[n], |y_n - centre|^2); Y (n, D), centre (1, D), gaps (n,)."""
    N, D = Y.shape
    for n in range(N):
        gaps[n] = min(gaps[n], distance(Y, n * D, centre, 0, D))
