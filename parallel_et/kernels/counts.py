"""Poisson noise: log joints of states along a tree, preselection, and logarithms of factorials.

Means are at least ``LEAST_MEAN``. The gain of a mean m for a point y is y log m - m.
The rest of log p(y | m) depends on y alone.
"""

from math import log as log_of

from parallel_et.kernels import device_function, kernel, scratch
from parallel_et.kernels.select import TILE, write_scores
from parallel_et.kernels.simd import LANES, choose, fill, fma, load, log, maximum, store, total

LEAST_MEAN = 1e-300
"""Smallest mean of a count."""
LOG_LEAST_MEAN = log_of(LEAST_MEAN)
HALF_LOG_TWO_PI = 0.9189385332046727
STIRLING_FROM = 16.0
"""Argument from which Stirling's series is used directly, exact to 3e-16 with seven terms."""
STIRLING_SHIFT = 8.0
"""Shift of smaller arguments before the series is used."""


@device_function
def gains_of_four(tops, gains, above, mean, fields, field_gains, added, field, keep, D):
    """Return the gains of the maxima of a mean and each of four fields in a row; store the mean on demand."""
    a, b, c, e = fill(0.0), fill(0.0), fill(0.0), fill(0.0)
    for d in range(0, D, LANES):
        upper, other = load(tops, above + d), load(fields, added + d)
        top, gain = maximum(other, upper), choose(other, upper, load(field_gains, added + d), load(gains, above + d))
        if keep:
            store(tops, mean + d, top)
            store(gains, mean + d, gain)
        f = field + d
        a = a + choose(load(fields, f), top, load(field_gains, f), gain)
        b = b + choose(load(fields, f + D), top, load(field_gains, f + D), gain)
        c = c + choose(load(fields, f + 2 * D), top, load(field_gains, f + 2 * D), gain)
        e = e + choose(load(fields, f + 3 * D), top, load(field_gains, f + 3 * D), gain)
    return total(a), total(b), total(c), total(e)


@device_function
def gains_of_two(tops, gains, above, mean, fields, field_gains, added, field, keep, D):
    """Return the gains of the maxima of a mean and each of two fields in a row; store the mean on demand."""
    a, b = fill(0.0), fill(0.0)
    for d in range(0, D, LANES):
        upper, other = load(tops, above + d), load(fields, added + d)
        top, gain = maximum(other, upper), choose(other, upper, load(field_gains, added + d), load(gains, above + d))
        if keep:
            store(tops, mean + d, top)
            store(gains, mean + d, gain)
        f = field + d
        a = a + choose(load(fields, f), top, load(field_gains, f), gain)
        b = b + choose(load(fields, f + D), top, load(field_gains, f + D), gain)
    return total(a), total(b)


@device_function
def gains_of_fields(Y, n, WT, logs, candidates, field_gains):
    """Write the gain of each candidate's field in each dimension, and of the empty state last; ((H' + 1) D,)."""
    D, C = Y.shape[1], candidates.shape[1]
    for i in range(C):
        for d in range(0, D, LANES):
            here = candidates[n, i] * D + d
            store(field_gains, i * D + d, load(Y, n * D + d) * load(logs, here) - load(WT, here))
    for d in range(0, D, LANES):
        store(field_gains, C * D + d, load(Y, n * D + d) * fill(LOG_LEAST_MEAN))


@device_function
def gain_of_state(Y, y, WT, logs, state, size):
    """Return the gain of the maximum of the fields of a state for Y from a flat index on."""
    D, gain, loss = WT.shape[1], fill(0.0), fill(0.0)
    if size == 0:
        for d in range(0, D, LANES):
            gain = gain + load(Y, y + d)
        return LOG_LEAST_MEAN * total(gain)
    for d in range(0, D, LANES):
        here = state[0] * D + d
        top, exponent = load(WT, here), load(logs, here)
        for i in range(1, size):
            here = state[i] * D + d
            top, exponent = maximum(top, load(WT, here)), maximum(exponent, load(logs, here))
        gain, loss = fma(load(Y, y + d), exponent, gain), loss + top
    return total(gain - loss)


@kernel("void(float64[:,::1], float64[:,::1], int32[:,::1], float64[:,::1], float64[:,::1])")
def maxima_of_states(WT, logs, inner, tops, top_logs):
    """Compute the means of all states of a table over all causes, and their logarithms, along the tree.

    WT, logs : (H, D) fields of at least ``LEAST_MEAN``, and their logarithms
    inner : (M, 4) inner nodes of the tree of states
    tops, top_logs : (K, D) out

    Costs 2 D operations per state.
    """
    H, D = WT.shape
    for d in range(D):
        tops[0, d], top_logs[0, d] = LEAST_MEAN, LOG_LEAST_MEAN
    for node in range(len(inner)):
        parent, added, child = inner[node, 0] * D, inner[node, 2], inner[node, 3]
        for j in range(added + 1, H):
            here = (child + j) * D
            for d in range(0, D, LANES):
                store(tops, here + d, maximum(load(tops, parent + d), load(WT, j * D + d)))
                store(top_logs, here + d, maximum(load(top_logs, parent + d), load(logs, j * D + d)))


@device_function
def add_bound(y, log_y, w, log_w, so_far):
    """Add the gain of the maximum of y and w."""
    return fma(y, maximum(log_w, log_y), so_far) - maximum(w, y)


@kernel("void(float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1])")
def overshoot(Y, WT, logs, scores):
    """Compute the log of ET eq. 28 for Poisson noise: scores[n, h] = sum_d y log m - m with m = max(y_nd, W_dh).

    No state with cause h has a larger likelihood.

    Y, WT, logs, scores : (n, D) points, (H, D) fields of at least ``LEAST_MEAN``, their logarithms, (n, H) out

    Costs 4 D H operations and D logarithms per point. The sums of a tile of points and causes stay in registers.
    """
    N, D = Y.shape
    H = WT.shape[0]
    zero, least, log_y = fill(0.0), fill(LEAST_MEAN), scratch(TILE * D)
    for n in range(0, N, TILE):
        p0, p1, p2, p3 = n * D, min(n + 1, N - 1) * D, min(n + 2, N - 1) * D, min(n + 3, N - 1) * D
        for d in range(0, D, LANES):
            store(log_y, d, log(maximum(load(Y, p0 + d), least)))
            store(log_y, D + d, log(maximum(load(Y, p1 + d), least)))
            store(log_y, 2 * D + d, log(maximum(load(Y, p2 + d), least)))
            store(log_y, 3 * D + d, log(maximum(load(Y, p3 + d), least)))
        for h in range(0, H, TILE):
            f0, f1, f2, f3 = h * D, min(h + 1, H - 1) * D, min(h + 2, H - 1) * D, min(h + 3, H - 1) * D
            a0, a1, a2, a3 = zero, zero, zero, zero
            b0, b1, b2, b3 = zero, zero, zero, zero
            c0, c1, c2, c3 = zero, zero, zero, zero
            d0, d1, d2, d3 = zero, zero, zero, zero
            for d in range(0, D, LANES):
                w0, w1, w2, w3 = load(WT, f0 + d), load(WT, f1 + d), load(WT, f2 + d), load(WT, f3 + d)
                l0, l1, l2, l3 = load(logs, f0 + d), load(logs, f1 + d), load(logs, f2 + d), load(logs, f3 + d)
                y, own = load(Y, p0 + d), load(log_y, d)
                a0, a1 = add_bound(y, own, w0, l0, a0), add_bound(y, own, w1, l1, a1)
                a2, a3 = add_bound(y, own, w2, l2, a2), add_bound(y, own, w3, l3, a3)
                y, own = load(Y, p1 + d), load(log_y, D + d)
                b0, b1 = add_bound(y, own, w0, l0, b0), add_bound(y, own, w1, l1, b1)
                b2, b3 = add_bound(y, own, w2, l2, b2), add_bound(y, own, w3, l3, b3)
                y, own = load(Y, p2 + d), load(log_y, 2 * D + d)
                c0, c1 = add_bound(y, own, w0, l0, c0), add_bound(y, own, w1, l1, c1)
                c2, c3 = add_bound(y, own, w2, l2, c2), add_bound(y, own, w3, l3, c3)
                y, own = load(Y, p3 + d), load(log_y, 3 * D + d)
                d0, d1 = add_bound(y, own, w0, l0, d0), add_bound(y, own, w1, l1, d1)
                d2, d3 = add_bound(y, own, w2, l2, d2), add_bound(y, own, w3, l3, d3)
            write_scores(scores, n, h, zero - a0, zero - a1, zero - a2, zero - a3)
            write_scores(scores, min(n + 1, N - 1), h, zero - b0, zero - b1, zero - b2, zero - b3)
            write_scores(scores, min(n + 2, N - 1), h, zero - c0, zero - c1, zero - c2, zero - c3)
            write_scores(scores, min(n + 3, N - 1), h, zero - d0, zero - d1, zero - d2, zero - d3)


@device_function
def log_gamma(x):
    """Return log Gamma(x) for x >= 1 by Stirling's series, to 1e-14 absolute or 3e-16 relative."""
    one, near = fill(1.0), choose(x, fill(STIRLING_FROM), fill(STIRLING_FROM), x)
    rising = near
    for i in range(1, int(STIRLING_SHIFT)):
        rising = rising * (near + fill(float(i)))
    rising = choose(x, fill(STIRLING_FROM), one, rising)
    z = choose(x, fill(STIRLING_FROM), x, near + fill(STIRLING_SHIFT))
    inverse = one / z
    square = inverse * inverse
    series = fma(square, fill(1.0 / 156.0), fill(-691.0 / 360360.0))
    series = fma(square, series, fill(1.0 / 1188.0))
    series = fma(square, series, fill(-1.0 / 1680.0))
    series = fma(square, series, fill(1.0 / 1260.0))
    series = fma(square, series, fill(-1.0 / 360.0))
    series = fma(square, series, fill(1.0 / 12.0)) * inverse
    return fma(z - fill(0.5), log(z), series + fill(HALF_LOG_TWO_PI)) - z - log(rising)


@kernel("void(float64[:,::1], float64[::1])")
def log_factorials(Y, out):
    """Compute out[n] = sum_d log(y_nd!) as log Gamma(y_nd + 1); Y (n, D) >= 0, out (n,).

    Costs two logarithms and about 25 operations per value.
    """
    N, D = Y.shape
    for n in range(N):
        found = fill(0.0)
        for d in range(0, D, LANES):
            found = found + log_gamma(load(Y, n * D + d) + fill(1.0))
        out[n] = total(found)
