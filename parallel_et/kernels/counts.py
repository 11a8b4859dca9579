"""Poisson noise: the joint of states along a tree, preselection, and logarithms of factorials.

Means are never below ``LEAST``. Of a point y, a mean m gains y log m - m: the rest of log p(y | m) is that of y alone.
"""

from math import log as log_of

from parallel_et.kernels import kernel, part, scratch
from parallel_et.kernels.select import TILE, write
from parallel_et.kernels.simd import LANES, choose, fill, fma, load, log, maximum, store, total

LEAST = 1e-300
"""Least mean of a count."""
LOG_LEAST = log_of(LEAST)
HALF_LOG_TWO_PI = 0.9189385332046727
FAR, SHIFT = 16.0, 8.0
"""Stirling's series is taken at x + SHIFT, from FAR on at x itself; there its seven terms are exact to 3e-16."""


@part
def gains_of_four(tops, gains, above, mean, fields, field_gains, added, field, keep, D):
    """What the larger of a mean and each of four fields that stand one after the other gains.

    The mean (tops) and its gain in each dimension are the larger of the one above and of the field that is added, and
    are kept at ``mean`` if asked for. The gain of a larger value is looked up, not computed.
    """
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


@part
def gains_of_two(tops, gains, above, mean, fields, field_gains, added, field, keep, D):
    """As ``gains_of_four``, for two fields."""
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


@part
def gains_of_fields(Y, n, WT, logs, candidates, field_gains):
    """What each candidate's field alone gains of point n in each dimension, and behind them no field; ((H' + 1) D,)."""
    D, C = Y.shape[1], candidates.shape[1]
    for i in range(C):
        for d in range(0, D, LANES):
            here = candidates[n, i] * D + d
            store(field_gains, i * D + d, load(Y, n * D + d) * load(logs, here) - load(WT, here))
    for d in range(0, D, LANES):
        store(field_gains, C * D + d, load(Y, n * D + d) * fill(LOG_LEAST))


@part
def gain_of_state(Y, y, WT, logs, state, size):
    """What the largest of the fields of a state gains of Y from a flat index on."""
    D, gain, loss = WT.shape[1], fill(0.0), fill(0.0)
    if size == 0:
        for d in range(0, D, LANES):
            gain = gain + load(Y, y + d)
        return LOG_LEAST * total(gain)
    for d in range(0, D, LANES):
        here = state[0] * D + d
        top, exponent = load(WT, here), load(logs, here)
        for i in range(1, size):
            here = state[i] * D + d
            top, exponent = maximum(top, load(WT, here)), maximum(exponent, load(logs, here))
        gain, loss = fma(load(Y, y + d), exponent, gain), loss + top
    return total(gain - loss)


@kernel("void(float64[:,::1], float64[:,::1], int32[:,::1], float64[:,::1], float64[:,::1])")
def fields_of_states(WT, logs, inner, tops, top_logs):
    """The means of all states of a table over all causes, and their logarithms: the larger of a parent's and a field.

    WT (H, D) >= LEAST and its logarithm, inner (M, 4) of the tree of states; tops and top_logs (K, D) out.
    """
    H, D = WT.shape
    for d in range(D):
        tops[0, d], top_logs[0, d] = LEAST, LOG_LEAST
    for node in range(len(inner)):
        parent, added, child = inner[node, 0] * D, inner[node, 2], inner[node, 3]
        for j in range(added + 1, H):
            here = (child + j) * D
            for d in range(0, D, LANES):
                store(tops, here + d, maximum(load(tops, parent + d), load(WT, j * D + d)))
                store(top_logs, here + d, maximum(load(top_logs, parent + d), load(logs, j * D + d)))


@part
def bound(y, log_y, w, log_w, sofar):
    """Add what the larger of y itself and w gains."""
    return fma(y, maximum(log_w, log_y), sofar) - maximum(w, y)


@kernel("void(float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1])")
def overshoot(Y, WT, logs, scores):
    """Log of ET eq. 28 for Poisson noise: scores[n, h] = sum_d log p(y_nd | max(y_nd, W_dh)), up to what is y's alone.

    No state with cause h has a larger likelihood. Y (n, D), WT (H, D) >= LEAST and its logarithm, scores (n, H) out.
    Costs 4 D H operations a point, on tiles of points and causes whose sums stay in registers, and D logarithms.
    """
    N, D = Y.shape
    H = WT.shape[0]
    zero, least, log_y = fill(0.0), fill(LEAST), scratch(TILE * D)
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
                a0, a1 = bound(y, own, w0, l0, a0), bound(y, own, w1, l1, a1)
                a2, a3 = bound(y, own, w2, l2, a2), bound(y, own, w3, l3, a3)
                y, own = load(Y, p1 + d), load(log_y, D + d)
                b0, b1 = bound(y, own, w0, l0, b0), bound(y, own, w1, l1, b1)
                b2, b3 = bound(y, own, w2, l2, b2), bound(y, own, w3, l3, b3)
                y, own = load(Y, p2 + d), load(log_y, 2 * D + d)
                c0, c1 = bound(y, own, w0, l0, c0), bound(y, own, w1, l1, c1)
                c2, c3 = bound(y, own, w2, l2, c2), bound(y, own, w3, l3, c3)
                y, own = load(Y, p3 + d), load(log_y, 3 * D + d)
                d0, d1 = bound(y, own, w0, l0, d0), bound(y, own, w1, l1, d1)
                d2, d3 = bound(y, own, w2, l2, d2), bound(y, own, w3, l3, d3)
            write(scores, n, h, zero - a0, zero - a1, zero - a2, zero - a3)
            write(scores, min(n + 1, N - 1), h, zero - b0, zero - b1, zero - b2, zero - b3)
            write(scores, min(n + 2, N - 1), h, zero - c0, zero - c1, zero - c2, zero - c3)
            write(scores, min(n + 3, N - 1), h, zero - d0, zero - d1, zero - d2, zero - d3)


@part
def log_gamma(x):
    """The logarithm of the gamma function of numbers from 1 on, to 1e-14 or 3e-16 of itself: Stirling's series."""
    one, near = fill(1.0), choose(x, fill(FAR), fill(FAR), x)
    rising = near
    for i in range(1, int(SHIFT)):
        rising = rising * (near + fill(float(i)))
    rising = choose(x, fill(FAR), one, rising)
    z = choose(x, fill(FAR), x, near + fill(SHIFT))
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
    """out[n] = sum_d log(y_nd!) of Y (n, D) >= 0, which is log Gamma(y + 1) for what is no count; out (n,)."""
    N, D = Y.shape
    for n in range(N):
        found = fill(0.0)
        for d in range(0, D, LANES):
            found = found + log_gamma(load(Y, n * D + d) + fill(1.0))
        out[n] = total(found)
