"""Gibbs sampling of spike-and-slab causes under a maximum; the conditional of a cause is Gaussian in pieces."""

from math import exp as exp_of
from math import log as log_of
from math import sqrt

import numpy as np

from parallel_et.kernels import device_function, kernel, scratch
from parallel_et.kernels.random import HALF, WORD, philox
from parallel_et.kernels.simd import (
    LANES,
    MILLS,
    MILLS_AT,
    append_at_least,
    choose,
    equals,
    exp,
    fill,
    fma,
    highest,
    load,
    maximum,
    mills_ratio,
    square_root,
    store,
    total,
)

NEGLIGIBLE_NATS = 40.0
"""Log density below the highest, in nats, at which pieces are discarded."""
INSERTION_SORT_POINTS = 12
"""Number of transition points up to which they are sorted by insertion alone."""
COARSE_BUCKET_POINTS = 64
"""Number of transition points up to which they are sorted with a quarter of the buckets."""
BUCKETS = 128
"""Buckets for sorting: 16 for each of eight doublings."""
LOG_ZERO = -1e300
SQRT_TWO_PI = sqrt(2 * np.pi)
MAX_STEPS = 60
"""Largest number of steps of the inversion."""
LAST_STEP = 1e-6
"""Size of the last step of the inversion; each step cubes the error."""
COEFFICIENTS = np.array(MILLS)


@device_function
def mills_of_number(x):
    """Return the Mills ratio of a number >= 0."""
    t = MILLS_AT / (MILLS_AT + x)
    z = 2.0 * t - 1.0
    square, odd, even = z * z, 0.0, 0.0
    for k in range(len(COEFFICIENTS) - 2, -1, -2):
        even = even * square + COEFFICIENTS[k]
        odd = odd * square + COEFFICIENTS[k + 1]
    return t * (odd * z + even)


@device_function
def lower_tail(x):
    """Return the integral of exp(-z^2 / 2) up to x."""
    tail = exp_of(-0.5 * x * x) * mills_of_number(abs(x))
    return tail if x < 0 else SQRT_TWO_PI - tail


@device_function
def quantile(a, b, share):
    """Return the point in [a, b] below which this share of exp(-z^2 / 2) lies, by Halley's method within bounds."""
    flipped = a + b < 0
    if flipped:
        a, b, share = -b, -a, 1.0 - share
    width = b - a
    x = a + share * width
    if width * (1.0 + b) > LAST_STEP:
        if a >= 0:
            begin = mills_of_number(a)
            target = share * (begin - exp_of(-0.5 * width * (a + b)) * mills_of_number(b))
        else:
            begin = lower_tail(a)
            target = share * (lower_tail(b) - begin)
        if a > 0.5:
            x = a - log_of(1.0 - share * (1.0 - exp_of(-a * width))) / a
        elif width > 1:
            below = (begin + target) / SQRT_TWO_PI if a < 0 else 1 - (begin - target) / SQRT_TWO_PI
            below = min(max(below, 1e-300), 1 - 1e-16)
            x = log_of(below / (1 - below)) / 1.702
        left, right = a, b
        x = min(max(x, a), b)
        for _ in range(MAX_STEPS):
            if a >= 0:
                density = exp_of(-0.5 * (x - a) * (x + a))
                off = begin - density * mills_of_number(x) - target
            else:
                density = exp_of(-0.5 * x * x)
                off = lower_tail(x) - begin - target
            if off > 0:
                right = x
            else:
                left = x
            step = off / density
            new = x - step / (1.0 + 0.5 * step * x)
            if not left <= new <= right:
                new = 0.5 * (left + right)
            done = abs(new - x) <= LAST_STEP * min(1.0, width)
            x = new
            if done:
                break
    return -x if flipped else x


@device_function
def sort_points(points, bits, largest, found, n, order, bucket, start):
    """Write the indices of n ``found`` points in [0, largest] to ``order``, sorted; ``bits`` are points as integers."""
    if n > INSERTION_SORT_POINTS:
        points[len(points) - 1] = largest
        last, fine = (BUCKETS // 4 - 1, 50) if n <= COARSE_BUCKET_POINTS else (BUCKETS - 1, 48)
        first = (bits[len(points) - 1] >> fine) - last
        for k in range(last + 2):
            start[k] = 0
        for i in range(n):
            k = min(max((bits[found[i]] >> fine) - first, 0), last)
            bucket[i] = k
            start[k + 1] += 1
        for k in range(last + 1):
            start[k + 1] += start[k]
        for i in range(n):
            k = bucket[i]
            order[start[k]] = found[i]
            start[k] += 1
    else:
        for i in range(n):
            order[i] = found[i]
    for i in range(1, n):
        d = order[i]
        x = points[d]
        k = i
        while k > 0 and points[order[k - 1]] > x:
            order[k] = order[k - 1]
            k -= 1
        order[k] = d


@device_function
def build_pieces(Y, at, W, inverse, field, rest, scale, odds, mu, psi, probe, buffers, integer_buffers):
    """Compute the conditional density of one cause's slab, given the maximum of all others, as Gaussian pieces.

    With t = s - mu, the log density relative to the spike is odds - log(2 pi psi) / 2 - t^2 / (2 psi) plus a sum.
    Each dimension with its transition point (TH eq. 3.15) below s adds scale ((y - rest)^2 - (y - W s)^2).

    Y, at : points, and start of the point
    W, inverse, field : fields and 1 / W, and start of the field
    rest : (D,) maximum of all other causes and zero
    probe : any value; a probable one saves time
    buffers : for each piece its left edge, A, the coefficients of t and 1, mean, precision and log of its peak

    Returns the number of pieces less one, the log of the highest density, and the largest |t| that is considered.
    Costs a sort of the points and about thirty operations per piece.
    """
    edges, A, B, C, mean, precision, _, points, peak, a, b, c = buffers
    found, order, bucket, start, bits = integer_buffers
    V, width = LANES, len(rest)
    zero, one, half = fill(0.0), fill(1.0), fill(0.5)
    v, squares = fill(probe), zero
    for d in range(0, width, V):
        gap = load(Y, at + d) - maximum(load(rest, d), v * load(W, field + d))
        squares = fma(gap, gap, squares)
    # the density at s is at most that of a point explained without error; the peak is at least that of the probe
    reach = sqrt(2 * psi * (NEGLIGIBLE_NATS + scale * total(squares)) + (probe - mu) ** 2)
    low, high = fill(mu - reach), fill(mu + reach)
    n, centre, twice = 0, fill(mu), fill(2.0)
    sum_a, sum_b, sum_c = zero, zero, zero
    for d in range(0, width, V):
        y, w, m = load(Y, at + d), load(W, field + d), load(rest, d)
        point = m * load(inverse, field + d)
        own = w * centre
        a_d, b_d, c_d = w * w, w * (y - own), (m - own) * (m + own - twice * y)
        store(points, d, point)
        store(a, d, a_d)
        store(b, d, b_d)
        store(c, d, c_d)
        below = choose(low, point, one, zero)
        sum_a, sum_b, sum_c = fma(below, a_d, sum_a), fma(below, b_d, sum_b), fma(below, c_d, sum_c)
        n += append_at_least(choose(high, point, one, zero) - below, 0.5, d, found, n)
    sort_points(points, bits, mu + reach, found, n, order, bucket, start)

    all_a, all_b, all_c = total(sum_a), total(sum_b), total(sum_c)
    edges[0] = -reach
    for k in range(n):
        d = order[k]
        A[k], B[k], C[k] = all_a, all_b, all_c
        edges[k + 1] = points[d] - mu
        all_a += a[d]
        all_b += b[d]
        all_c += c[d]
    A[n], B[n], C[n] = all_a, all_b, all_c
    for k in range(n + 1, n + 1 + V):
        A[k], B[k], C[k] = 0.0, 0.0, LOG_ZERO
        edges[k] = reach

    tops, twice_scale, by_slab = fill(LOG_ZERO), fill(2 * scale), fill(1 / psi)
    factor, level = fill(scale), fill(odds - 0.5 * log_of(2 * np.pi * psi))
    for k in range(0, n + 1, V):
        tau, nu = fma(twice_scale, load(A, k), by_slab), twice_scale * load(B, k)
        kappa, left, right = fma(factor, load(C, k), level), load(edges, k), load(edges, k + 1)
        place = nu / tau
        best = maximum(left, choose(place, right, right, place))
        log_peak = fma(best, nu - half * tau * best, kappa)
        store(precision, k, tau)
        store(B, k, nu)
        store(C, k, kappa)
        store(mean, k, place)
        store(peak, k, log_peak)
        tops = maximum(tops, log_peak)
    return n, highest(tops), reach


@device_function
def integrate_pieces(n, top, buffers):
    """Write the integrals of all pieces, in units of the highest density; return their sum.

    Costs about 100 operations per piece.
    """
    edges, _, B, C, mean, precision, mass, _, peak, _, _, _ = buffers
    V, zero, one, half, sums = LANES, fill(0.0), fill(1.0), fill(0.5), fill(0.0)
    height, straight = fill(top), fill(SQRT_TWO_PI)
    for k in range(0, n + 1, V):
        log_peak = load(peak, k)
        if highest(log_peak) < top - NEGLIGIBLE_NATS:
            store(mass, k, zero)
            continue
        tau, nu, kappa, place = load(precision, k), load(B, k), load(C, k) - height, load(mean, k)
        left, right, width_of = load(edges, k), load(edges, k + 1), square_root(tau)
        begin, end = (left - place) * width_of, (right - place) * width_of
        density = exp(fma(left, nu - half * tau * left, kappa))
        area = density * mills_ratio(maximum(begin, zero - begin))
        area = choose(zero, begin, zero - area, area)
        density = exp(fma(right, nu - half * tau * right, kappa))
        beyond = density * mills_ratio(maximum(end, zero - end))
        area = area - choose(zero, end, zero - beyond, beyond)
        inside = choose(zero, begin, choose(zero, end, zero, one), zero)
        if highest(inside) > 0:
            area = fma(inside * straight, exp(log_peak - height), area)
        area = maximum(area / width_of, zero)
        store(mass, k, area)
        sums = sums + area
    return total(sums)


@device_function
def draw_value(u, n, top, reach, mu, buffers):
    """Return the value of a cause by a uniform number u, 0 for an inactive cause; arguments as for ``build_pieces``."""
    edges, _, _, _, mean, precision, mass, _, _, _, _, _ = buffers
    if top + log_of(2.0 * reach) < log_of(max(u, 1e-300)):  # an upper bound of the odds is below u
        return 0.0
    whole = integrate_pieces(n, top, buffers)
    log_odds = top + log_of(max(whole, 1e-300))
    chance = 1.0 / (1.0 + exp_of(-log_odds)) if log_odds > -700 else 0.0
    if u >= chance:
        return 0.0
    left = u / chance * whole
    k, last = 0, 0
    while k <= n:
        if mass[k] > 0:
            last = k
            if left < mass[k]:
                break
            left -= mass[k]
        k += 1
    k = last
    by = sqrt(precision[k])
    begin, end = (edges[k] - mean[k]) * by, (edges[k + 1] - mean[k]) * by
    t = mean[k] + quantile(begin, end, min(left / mass[k], 1.0)) / by
    return mu + min(max(t, edges[k]), edges[k + 1])


@device_function
def new_buffers(width):
    """Return the arrays of ``build_pieces``: of doubles, and of integers."""
    size = width + 2 * LANES
    points = scratch(size)
    doubles = (
        scratch(size),
        scratch(size),
        scratch(size),
        scratch(size),
        scratch(size),
        scratch(size),
        scratch(size),
        points,
        scratch(size),
        scratch(width),
        scratch(width),
        scratch(width),
    )
    found, order, bucket = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    return doubles, (found, order, bucket, np.empty(BUCKETS + 1, np.int32), points.view(np.int64))


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], float64, float64[::1], float64[::1], float64[::1], "
    "float64, int32[:,::1], int32[:,::1], float64[::1], uint64, int64, float64[:,::1], float64[:,:,::1], int64, "
    "float64[::1], float64[:,:,::1])"
)
def sample(
    Y,
    WT,
    inverse,
    precision,
    odds,
    mu,
    psi,
    level,
    candidates,
    order,
    betas,
    key,
    first,
    uniforms,
    begin,
    burn,
    joint,
    draws,
):
    """Draw values of each point's candidates by Gibbs sampling, each from its exact conditional (TH eq. 3.13).

    Y, WT, inverse : (n, width), (H, width) and 1 / W, which is infinite in the padding
    precision, odds, mu, psi : 1 / sigma^2, and (H,)
    level : log joint of no cause and a point that is explained without error
    candidates, order : (n, C), and (sweeps, m) candidates to draw in each sweep
    betas, burn : (sweeps,) 1 / T, and number of sweeps before the first draw
    key, first, uniforms : key of the random numbers and first point, or (n, chains sweeps m) numbers
    begin : (n, chains, C) initial values, 0 for an inactive cause
    draws : (n, (sweeps - burn) chains, C) out, the values at the end of each sweep
    joint : (n,) out, mean of log p(s, y) over the draws

    Costs one ``build_pieces`` and ``integrate_pieces`` for each candidate of a sweep and chain.
    """
    N, C = candidates.shape
    sweeps, chains, width, V = order.shape[0], begin.shape[1], Y.shape[1], LANES
    buffers, integer_buffers = new_buffers(width)
    rest, s = scratch(width), np.empty(C)
    zero = fill(0.0)
    one, other = key & WORD, key >> HALF
    for n in range(N):
        point, number = np.uint64(first + n), 0
        joint[n] = 0.0
        for chain in range(chains):
            for j in range(C):
                s[j] = begin[n, chain, j]
            for t in range(sweeps):
                for i in range(order.shape[1]):
                    j = np.int64(order[t, i])
                    h = np.int64(candidates[n, j])
                    for d in range(0, width, V):
                        store(rest, d, zero)
                    for k in range(C):
                        if k != j and s[k] != 0:
                            v, field = fill(s[k]), np.int64(candidates[n, k]) * width
                            for d in range(0, width, V):
                                store(rest, d, maximum(load(rest, d), v * load(WT, field + d)))
                    if uniforms.shape[1]:
                        u = uniforms[n, number]
                    else:
                        x, y, _, _ = philox(np.uint64(number), np.uint64(0), point & WORD, point >> HALF, one, other)
                        u = ((x << HALF | y) >> np.uint64(11)) * 2.0**-53
                    number += 1
                    probe = s[j] if s[j] != 0 else mu[h]
                    scale = 0.5 * precision * betas[t]
                    pieces, top, reach = build_pieces(
                        Y, n * width, WT, inverse, h * width, rest, scale, betas[t] * odds[h], mu[h], psi[h], probe,
                        buffers, integer_buffers,
                    )  # fmt: skip
                    s[j] = draw_value(u, pieces, top, reach, mu[h], buffers)
                if t >= burn:
                    for d in range(0, width, V):
                        store(rest, d, zero)
                    log_prior = level
                    for k in range(C):
                        draws[n, (t - burn) * chains + chain, k] = s[k]
                        if s[k] != 0:
                            h = np.int64(candidates[n, k])
                            v, field = fill(s[k]), h * width
                            log_prior += odds[h] - 0.5 * (log_of(2 * np.pi * psi[h]) + (s[k] - mu[h]) ** 2 / psi[h])
                            for d in range(0, width, V):
                                store(rest, d, maximum(load(rest, d), v * load(WT, field + d)))
                    squares = zero
                    for d in range(0, width, V):
                        gap = load(Y, n * width + d) - load(rest, d)
                        squares = fma(gap, gap, squares)
                    joint[n] += log_prior - 0.5 * precision * total(squares)
        joint[n] /= (sweeps - burn) * chains


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], float64, float64[::1], float64[::1], float64[::1], "
    "float64[:,::1])"
)
def log_odds_of_singletons(Y, WT, inverse, precision, odds, mu, psi, logs):
    """Compute the gain of each singleton in the log joint over no cause, its value integrated out.

    Y, WT, inverse, precision, odds, mu, psi : as for ``sample``
    logs : (n, H) out

    Costs one ``build_pieces`` and ``integrate_pieces`` per point and cause.
    """
    N, width = Y.shape
    buffers, integer_buffers = new_buffers(width)
    rest = np.zeros(width)
    for n in range(N):
        for h in range(len(WT)):
            pieces, top, _ = build_pieces(
                Y, n * width, WT, inverse, h * width, rest, 0.5 * precision, odds[h], mu[h], psi[h], mu[h],
                buffers, integer_buffers,
            )  # fmt: skip
            logs[n, h] = top + log_of(max(integrate_pieces(pieces, top, buffers), 1e-300))


@kernel(
    "void(float64[:,::1], float64[:,::1], int32[:,:,::1], float64[:,:,::1], float64[:,::1], boolean[::1], "
    "float64[:,::1], float64[:,::1])"
)
def sums_of_maxima(Y, WT, states, values, q, used, products, squares):
    """Add the weighted sums over draws of s y and s^2 for the cause with the maximum in each dimension (TH eq. 3.37).

    Y, WT : (n, width) and (H, width)
    states, values : (n, K, g) causes and their values in each draw
    q, used : (n, K) weights and (n,) points to use
    products, squares : (H, width) added to

    Costs 4 |s| width operations per draw.
    """
    N, K, G = states.shape
    width, V = Y.shape[1], LANES
    rest = scratch(width)
    zero = fill(0.0)
    for n in range(N):
        if not used[n]:
            continue
        for k in range(K):
            if q[n, k] == 0:
                continue
            for d in range(0, width, V):
                store(rest, d, zero)
            for g in range(G):
                if states[n, k, g] >= 0 and values[n, k, g] > 0:
                    v, field = fill(values[n, k, g]), np.int64(states[n, k, g]) * width
                    for d in range(0, width, V):
                        store(rest, d, maximum(load(rest, d), v * load(WT, field + d)))
            for g in range(G):
                if states[n, k, g] >= 0 and values[n, k, g] > 0:
                    v, field = fill(values[n, k, g]), np.int64(states[n, k, g]) * width
                    first, second = fill(q[n, k] * values[n, k, g]), fill(q[n, k] * values[n, k, g] ** 2)
                    for d in range(0, width, V):
                        it = equals(v * load(WT, field + d), load(rest, d))
                        store(products, field + d, fma(it * first, load(Y, n * width + d), load(products, field + d)))
                        store(squares, field + d, fma(it, second, load(squares, field + d)))
