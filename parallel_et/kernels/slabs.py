"""Gibbs sampling of spike-and-slab causes under a maximum: what one is, given all others, is Gaussian in pieces."""

from math import exp as exp_of
from math import log as log_of
from math import sqrt

import numpy as np

from parallel_et.kernels import kernel, part, scratch
from parallel_et.kernels.random import HALF, WORD, philox
from parallel_et.kernels.simd import (
    LANES,
    MILLS,
    MILLS_AT,
    choose,
    equals,
    exp,
    fill,
    fma,
    highest,
    list_from,
    load,
    maximum,
    mills,
    root,
    store,
    total,
)

NATS = 40.0
"""Pieces whose density is so far below the highest are left out."""
FEW, SOME, BUCKETS = 12, 64, 128
"""Transition points are dealt into buckets before they are sorted, 16 for each of eight doublings; of ``SOME`` or less
four for each, of a few not at all."""
NEVER = -1e300
SQRT_TWO_PI = sqrt(2 * np.pi)
HALVES, ENOUGH = 60, 1e-6
"""Steps of the inversion at most, and the last one's size: as each cubes what is off, nothing is left to do."""
COEFFICIENTS = np.array(MILLS)


@part
def ratio(x):
    """The Mills ratio of a number from 0 on."""
    t = MILLS_AT / (MILLS_AT + x)
    z = 2.0 * t - 1.0
    square, odd, even = z * z, 0.0, 0.0
    for k in range(len(COEFFICIENTS) - 2, -1, -2):
        even = even * square + COEFFICIENTS[k]
        odd = odd * square + COEFFICIENTS[k + 1]
    return t * (odd * z + even)


@part
def lower_tail(x):
    """Integral of exp(-z^2 / 2) up to x."""
    tail = exp_of(-0.5 * x * x) * ratio(abs(x))
    return tail if x < 0 else SQRT_TWO_PI - tail


@part
def quantile(a, b, share):
    """Up to where between a and b so large a share of exp(-z^2 / 2) lies; Halley's method, kept within bounds."""
    flipped = a + b < 0
    if flipped:
        a, b, share = -b, -a, 1.0 - share
    width = b - a
    x = a + share * width
    if width * (1.0 + b) > ENOUGH:
        if a >= 0:
            begin = ratio(a)
            target = share * (begin - exp_of(-0.5 * width * (a + b)) * ratio(b))
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
        for _ in range(HALVES):
            if a >= 0:
                density = exp_of(-0.5 * (x - a) * (x + a))
                off = begin - density * ratio(x) - target
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
            done = abs(new - x) <= ENOUGH * min(1.0, width)
            x = new
            if done:
                break
    return -x if flipped else x


@part
def in_order(points, bits, largest, found, n, order, bucket, start):
    """Sort the numbers of n ``found`` points, none of them negative nor above ``largest``, into ``order``.

    bits : the same memory as points, as integers, by which they are ordered too
    """
    if n > FEW:
        points[len(points) - 1] = largest
        last, fine = (BUCKETS // 4 - 1, 50) if n <= SOME else (BUCKETS - 1, 48)
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


@part
def pieces_of(Y, at, W, inverse, field, rest, scale, odds, mu, psi, probe, room, ints):
    """The slab of one cause, given the maximum of all others: a Gaussian in pieces, between the transition points.

    With t = s - mu its log density, less that of the spike, is odds - log(2 pi psi) / 2 - t^2 / (2 psi) and, for all
    dimensions whose transition point (TH eq. 3.15) is below s, scale ((y - rest)^2 - (y - W s)^2). Y from ``at`` on is
    the point, W and inverse = 1 / W from ``field`` on the field, rest (D,) the maximum of all others and zero; probe:
    any value, the more probable the better. Returns how many pieces there are but one, the log of the highest density
    and how far from mu any are looked at; room has for each piece: its left edge, A, then the coefficients of t and 1,
    mean, precision, and the log of its highest density. Costs a sort of the points and some thirty operations a piece.
    """
    edges, A, B, C, mean, precision, _, points, peak, a, b, c = room
    found, order, bucket, start, bits = ints
    V, width = LANES, len(rest)
    zero, one, half = fill(0.0), fill(1.0), fill(0.5)
    v, squares = fill(probe), zero
    for d in range(0, width, V):
        gap = load(Y, at + d) - maximum(load(rest, d), v * load(W, field + d))
        squares = fma(gap, gap, squares)
    # no density is above that of points that are explained entirely, and the highest not below that of the probe
    reach = sqrt(2 * psi * (NATS + scale * total(squares)) + (probe - mu) ** 2)
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
        n += list_from(choose(high, point, one, zero) - below, 0.5, d, found, n)
    in_order(points, bits, mu + reach, found, n, order, bucket, start)

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
        A[k], B[k], C[k] = 0.0, 0.0, NEVER
        edges[k] = reach

    tops, twice_scale, by_slab = fill(NEVER), fill(2 * scale), fill(1 / psi)
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


@part
def masses(n, top, room):
    """The integrals of the densities of all pieces, in units of the highest density; returns their sum.

    Costs some hundred operations a piece, of those that matter.
    """
    edges, _, B, C, mean, precision, mass, _, peak, _, _, _ = room
    V, zero, one, half, sums = LANES, fill(0.0), fill(1.0), fill(0.5), fill(0.0)
    height, straight = fill(top), fill(SQRT_TWO_PI)
    for k in range(0, n + 1, V):
        log_peak = load(peak, k)
        if highest(log_peak) < top - NATS:
            store(mass, k, zero)
            continue
        tau, nu, kappa, place = load(precision, k), load(B, k), load(C, k) - height, load(mean, k)
        left, right, width_of = load(edges, k), load(edges, k + 1), root(tau)
        begin, end = (left - place) * width_of, (right - place) * width_of
        density = exp(fma(left, nu - half * tau * left, kappa))
        area = density * mills(maximum(begin, zero - begin))
        area = choose(zero, begin, zero - area, area)
        density = exp(fma(right, nu - half * tau * right, kappa))
        beyond = density * mills(maximum(end, zero - end))
        area = area - choose(zero, end, zero - beyond, beyond)
        inside = choose(zero, begin, choose(zero, end, zero, one), zero)
        if highest(inside) > 0:
            area = fma(inside * straight, exp(log_peak - height), area)
        area = maximum(area / width_of, zero)
        store(mass, k, area)
        sums = sums + area
    return total(sums)


@part
def drawn(u, n, top, reach, mu, room):
    """The value of a cause by a number u in [0, 1), 0 where it is inactive; the rest is as ``pieces_of`` has it."""
    edges, _, _, _, mean, precision, mass, _, _, _, _, _ = room
    if top + log_of(2.0 * reach) < log_of(max(u, 1e-300)):  # the chance is less than the odds, and these than that
        return 0.0
    whole = masses(n, top, room)
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


@part
def rooms(width):
    """Where ``pieces_of`` works: arrays of doubles, and of integers."""
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
    """Sweeps of Gibbs sampling over each point's candidates, each in turn by its exact conditional (TH eq. 3.13).

    Y (n, width); WT and inverse = 1 / W (H, width), which is infinite where rows are padded; precision = 1 / sigma^2;
    odds, mu, psi (H,); level: log joint of no cause and a point that it explains; candidates (n, C); order (sweeps, m):
    which of these are drawn in each sweep; betas (sweeps,); key, first: of the random numbers, unless ``uniforms``
    (n, chains sweeps m) has them; begin (n, chains, C): values, 0 for none. After ``burn`` sweeps the values at the end
    of each are drawn: draws (n, (sweeps - burn) chains, C) out, and joint (n,) out: the mean of their log p(s, y).
    Costs what ``pieces_of`` does for each candidate of a sweep and chain.
    """
    N, C = candidates.shape
    sweeps, chains, width, V = order.shape[0], begin.shape[1], Y.shape[1], LANES
    room, ints = rooms(width)
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
                    pieces, top, reach = pieces_of(
                        Y, n * width, WT, inverse, h * width, rest, scale, betas[t] * odds[h], mu[h], psi[h], probe,
                        room, ints,
                    )  # fmt: skip
                    s[j] = drawn(u, pieces, top, reach, mu[h], room)
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
def log_odds_of_singles(Y, WT, inverse, precision, odds, mu, psi, logs):
    """What each cause as the only one adds to the log joint of no cause, its value integrated out; (n, H) out."""
    N, width = Y.shape
    room, ints = rooms(width)
    rest = np.zeros(width)
    for n in range(N):
        for h in range(len(WT)):
            pieces, top, _ = pieces_of(
                Y, n * width, WT, inverse, h * width, rest, 0.5 * precision, odds[h], mu[h], psi[h], mu[h],
                room, ints,
            )  # fmt: skip
            logs[n, h] = top + log_of(max(masses(pieces, top, room), 1e-300))


@kernel(
    "void(float64[:,::1], float64[:,::1], int32[:,:,::1], float64[:,:,::1], float64[:,::1], boolean[::1], "
    "float64[:,::1], float64[:,::1])"
)
def sums_of_maxima(Y, WT, states, values, q, used, products, squares):
    """Sums over draws, by weight, of s y and s^2 for the cause that is the largest in a dimension (TH eq. 3.37).

    states, values (n, K, g), q (n, K), used (n,); products and squares (H, width) are added to.
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
