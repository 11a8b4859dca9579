"""Posterior and statistics of linear models whose active causes have Gaussian values; no cost per support grows with D.

Causes join a support one after the other. A cause h outside has t = w_h^T C^-1 (y - mean) and k = w_h^T C^-1 w_h, where
mean and C are the mean and covariance of y given the support. Integrated over its value, N(mu, psi), it adds

    log odds - log(e) / 2 + (t (psi t / 2 + mu) - k mu^2 / 2) / e,    e = 1 + psi k >= 1,

to the log joint. Given the causes before it, its value has the mean x = (psi t + mu) / e and the variance r = psi / e.
The precision matrix of all values is G / sigma^2 + 1 / psi. Its inverse has an LDL^T form with unit triangular rows u.
The values then have the means sum_a x_a u_a and the covariance sum_a r_a u_a u_a^T.
Everything is well defined for psi = 0, where the causes are binary.
"""

from math import log as log_of

import numpy as np

from parallel_et.kernels import NEGLIGIBLE_WEIGHT, VACANT, device_function, kernel, scratch
from parallel_et.kernels.fixed import add_value, update_largest
from parallel_et.kernels.simd import LANES, choose, exp, fill, fma, highest, load, log, maximum, store
from parallel_et.kernels.truncated import weigh_singletons

T, K, PSI, MU, ODDS = range(5)
"""Rows of the table of each candidate."""


@device_function
def terms_given_path(g, j, C, path, pair, own, rows, x, r, overlap):
    """Return t and k of candidate j given the g candidates of a path; write its overlap with each, (G V,)."""
    V, G = LANES, len(x) // LANES
    t, k = load(own, (T * C + j) * V), load(own, (K * C + j) * V)
    for a in range(g):
        shared = load(pair, (path[a] * C + j) * V)
        for b in range(a):
            shared = fma(load(rows, (a * G + b) * V), load(pair, (path[b] * C + j) * V), shared)
        store(overlap, a * V, shared)
        t = t - shared * load(x, a * V)
        k = k - shared * shared * load(r, a * V)
    return t, maximum(k, fill(0.0))


@device_function
def write_path_entry(g, at, psi, mu, t, k, rows, x, r, overlap):
    """Write mean, variance and row of the cause that extends a path of g causes, from index ``at`` of rows on."""
    V, G = LANES, len(x) // LANES
    inverse = fill(1.0) / fma(psi, k, fill(1.0))
    store(x, g * V, fma(psi, t, mu) * inverse)
    store(r, g * V, psi * inverse)
    for b in range(g):
        store(overlap, b * V, load(overlap, b * V) * load(r, b * V))
    for b in range(g):
        value = load(overlap, b * V)
        for a in range(b + 1, g):
            value = fma(load(overlap, a * V), load(rows, (a * G + b) * V), value)
        store(rows, at + b * V, fill(0.0) - value)


@device_function
def extend_path(g, i, C, path, pair, own, rows, x, r, overlap):
    """Extend a path of g causes by candidate i."""
    V, G = LANES, len(x) // LANES
    path[g] = i
    t, k = terms_given_path(g, i, C, path, pair, own, rows, x, r, overlap)
    write_path_entry(g, g * G * V, load(own, (PSI * C + i) * V), load(own, (MU * C + i) * V), t, k, rows, x, r, overlap)


@device_function
def write_lanes(out, row, N, first, width, value, lanes):
    """Write a vector for points first, ... to a row of out (m, N)."""
    if width == LANES:
        store(out, row * N + first, value)
    else:
        store(lanes, 0, value)
        for lane in range(width):
            out[row, first + lane] = lanes[lane]


@kernel(
    "void(float64[:,::1], float64[::1], float64[:,::1], float64[:,::1], float64, float64, int32[:,::1], int32[:,::1], "
    "int64, float64[:,::1], float64[::1], float64[:,::1], float64[:,::1], float64[:,::1], int32[::1], float64[::1])"
)
def posterior(
    products, base, slab, gram, precision, beta, candidates, inner, K_all, singletons, evidence, active, values,
    moments, best, top,
):  # fmt: skip
    """Compute q ~ p(b, y)^beta of all supports b over each point's candidates, and the moments of s = b z under q.

    products, base : (n, H') W^T y of the candidates, (n,) log joint of the empty support
    slab : (3, H) psi, mu and log odds
    gram, precision, beta : (H, H) W^T W, 1 / sigma^2 and 1 / T
    candidates, inner, K_all : (n, H'), (M, 4) inner nodes of the tree of states, and number of states
    singletons : (n, H) or (n, 0), log joints relative to the empty support in, weights outside the candidates out
    evidence : (n,) out, F_n = log sum p^beta
    active, values : (H', n) out, <b_i> and <s_i>
    moments : (H' (H' + 1) / 2, n) out, <s_i s_j> in row j (j + 1) / 2 + i, i <= j
    best, top : (n,) out, index and weight of the most probable support

    Costs about g^2 operations, a logarithm, an exponential and two divisions per support of g causes.
    Points are the lanes.
    """
    N, C = candidates.shape
    M, H = inner.shape[0], singletons.shape[1]
    V, G = LANES, np.max(inner[:, 1]) + 1
    pair, own = scratch(C * C * V), scratch(5 * C * V)
    rows, x, r, overlap, u, m = (
        scratch((G + 1) * G * V),
        scratch(G * V),
        scratch(G * V),
        scratch(G * V),
        scratch(G * V),
        scratch(G * V),
    )
    mean = scratch((G + 1) * G * V)
    q, mass, lanes, totals = scratch(K_all * V), scratch(K_all * V), scratch(V), scratch(V)
    sums = scratch((2 * C + C * (C + 1) // 2) * V)
    path = np.empty(G + 1, np.int64)
    flat, none = np.zeros(H), fill(0.0)
    half, one, inverse_temperature = fill(0.5), fill(1.0), fill(beta)
    for first in range(0, N, V):
        width = min(V, N - first)
        for lane in range(V):
            n = first + min(lane, width - 1)
            q[lane] = base[n]
            for j in range(C):
                h = candidates[n, j]
                own[(T * C + j) * V + lane] = products[n, j] * precision
                own[(K * C + j) * V + lane] = gram[h, h] * precision
                own[(PSI * C + j) * V + lane] = slab[0, h]
                own[(MU * C + j) * V + lane] = slab[1, h]
                own[(ODDS * C + j) * V + lane] = slab[2, h]
                for i in range(j):
                    pair[(i * C + j) * V + lane] = gram[h, candidates[n, i]] * precision

        peak, found = load(q, 0), none
        for node in range(M):
            g, i, child = inner[node, 1], inner[node, 2], inner[node, 3]
            if g > 0:
                extend_path(g - 1, i, C, path, pair, own, rows, x, r, overlap)
            energy = load(q, inner[node, 0] * V)
            for j in range(i + 1, C):
                t, k = terms_given_path(g, j, C, path, pair, own, rows, x, r, overlap)
                psi, mu = load(own, (PSI * C + j) * V), load(own, (MU * C + j) * V)
                wide = fma(psi, k, one)
                gain = (t * fma(half * psi, t, mu) - half * k * mu * mu) / wide
                term = energy + (load(own, (ODDS * C + j) * V) + gain - half * log(wide))
                store(q, (child + j) * V, term)
                found = choose(term, peak, fill(float(child + j)), found)
                peak = maximum(peak, term)
        store(lanes, 0, found)
        for lane in range(width):
            best[first + lane] = np.int32(lanes[lane])
        inside = peak
        if H > 0:
            store(lanes, 0, peak)
            for lane in range(width):
                n = first + lane
                lanes[lane], totals[lane] = weigh_singletons(
                    n, beta, 1.0, base[n], flat, candidates, lanes[lane], singletons
                )
            for lane in range(width, V):
                totals[lane] = 0.0
            peak = load(lanes, 0)

        sum_q = load(totals, 0) if H > 0 else none
        for s in range(K_all):
            weight = exp(inverse_temperature * (load(q, s * V) - peak))
            store(q, s * V, weight)
            sum_q = sum_q + weight
        inverse = one / sum_q
        store(lanes, 0, peak)
        store(totals, 0, sum_q)
        for lane in range(width):
            evidence[first + lane] = beta * lanes[lane] + log_of(totals[lane])
            for h in range(H):
                singletons[first + lane, h] *= 1.0 / totals[lane]
        store(lanes, 0, exp(inverse_temperature * (inside - peak)) * inverse)
        for lane in range(width):
            top[first + lane] = lanes[lane]

        least = fill(NEGLIGIBLE_WEIGHT)
        for s in range(K_all):
            weight = load(q, s * V) * inverse
            weight = choose(weight, least, weight, none)
            store(q, s * V, weight)
            store(mass, s * V, weight)
        for node in range(M - 1, -1, -1):
            weight = load(mass, inner[node, 0] * V)
            for j in range(inner[node, 2] + 1, C):
                weight = weight + load(mass, (inner[node, 3] + j) * V)
            store(mass, inner[node, 0] * V, weight)

        for p in range(2 * C + C * (C + 1) // 2):
            store(sums, p * V, none)
        for node in range(M):
            g, i, child = inner[node, 1], inner[node, 2], inner[node, 3]
            if highest(load(mass, inner[node, 0] * V)) == 0.0:
                continue
            if g > 0:
                extend_path(g - 1, i, C, path, pair, own, rows, x, r, overlap)
                value = load(x, (g - 1) * V)
                for b in range(g - 1):
                    row = load(rows, ((g - 1) * G + b) * V)
                    store(mean, (g * G + b) * V, fma(row, value, load(mean, ((g - 1) * G + b) * V)))
                store(mean, (g * G + g - 1) * V, value)
            for j in range(i + 1, C):
                weight, below = load(q, (child + j) * V), load(mass, (child + j) * V)
                if highest(below) == 0.0:
                    continue
                t, k = terms_given_path(g, j, C, path, pair, own, rows, x, r, overlap)
                psi = load(own, (PSI * C + j) * V)
                inverse = one / fma(psi, k, one)
                value = fma(psi, t, load(own, (MU * C + j) * V)) * inverse
                spread = below * psi * inverse
                for b in range(g):
                    store(overlap, b * V, load(overlap, b * V) * load(r, b * V))
                for b in range(g):
                    row = load(overlap, b * V)
                    for a in range(b + 1, g):
                        row = fma(load(overlap, a * V), load(rows, (a * G + b) * V), row)
                    row = none - row
                    store(u, b * V, row)
                    store(m, b * V, fma(row, value, load(mean, (g * G + b) * V)))
                store(sums, j * V, load(sums, j * V) + below)
                at = (2 * C + j * (j + 1) // 2) * V
                weighted = weight * value
                store(sums, (C + j) * V, load(sums, (C + j) * V) + weighted)
                store(sums, at + j * V, load(sums, at + j * V) + fma(weighted, value, spread))
                for b in range(g):
                    here = at + path[b] * V
                    row, own_mean = load(u, b * V), load(m, b * V)
                    store(sums, here, load(sums, here) + fma(spread, row, weighted * own_mean))
                    spreads, means = spread * row, weight * own_mean
                    store(sums, (C + path[b]) * V, load(sums, (C + path[b]) * V) + means)
                    for a in range(b + 1):
                        here = (2 * C + path[b] * (path[b] + 1) // 2 + path[a]) * V
                        store(sums, here, fma(spreads, load(u, a * V), fma(means, load(m, a * V), load(sums, here))))
        for j in range(C):
            write_lanes(active, j, N, first, width, load(sums, j * V), lanes)
            write_lanes(values, j, N, first, width, load(sums, (C + j) * V), lanes)
        for p in range(C * (C + 1) // 2):
            write_lanes(moments, p, N, first, width, load(sums, (2 * C + p) * V), lanes)


@device_function
def extend_path_of_point(g, h, path, products, n, slab, gram, precision, rows, x, r, overlap):
    """Extend the path of g causes of a single point n by cause h; return the gain in the log joint."""
    t, k = products[n, h] * precision, gram[h, h] * precision
    for a in range(g):
        overlap[a] = gram[h, path[a]] * precision
        for b in range(a):
            overlap[a] += rows[a, b] * gram[h, path[b]] * precision
        t -= overlap[a] * x[a]
        k -= overlap[a] * overlap[a] * r[a]
    k = max(k, 0.0)
    psi, mu = slab[0, h], slab[1, h]
    e = 1.0 + psi * k
    path[g], x[g], r[g] = h, (psi * t + mu) / e, psi / e
    for b in range(g):
        rows[g, b] = -overlap[b] * r[b]
        for a in range(b + 1, g):
            rows[g, b] -= overlap[a] * r[a] * rows[a, b]
    return slab[2, h] + (t * (0.5 * psi * t + mu) - 0.5 * k * mu * mu) / e - 0.5 * log_of(e)


@kernel("void(float64[:,::1], float64[::1], float64[:,::1], float64[:,::1], float64, int32[:,:,::1], float64[:,::1])")
def log_states(products, base, slab, gram, precision, states, logs):
    """Compute the log joints of listed supports; arguments as for ``posterior``.

    products, states, logs : (n, H) W^T y, (n, K, g) supports, (n, K) out; -inf for a vacant state

    Costs about |s|^3 / 3 operations per support. The causes that it shares with the support before it are not repeated.
    """
    N, count, most = states.shape
    rows, x, r, overlap = np.empty((most, most)), np.empty(most), np.empty(most), np.empty(most)
    path, so_far = np.empty(most, np.int64), np.empty(most + 1)
    for n in range(N):
        so_far[0], reusable = base[n], 0
        for k in range(count):
            if states[n, k, 0] == VACANT:
                logs[n, k] = -np.inf
                continue
            g = 0
            while g < most and states[n, k, g] >= 0:
                if g >= reusable or path[g] != states[n, k, g]:
                    gain = extend_path_of_point(
                        g, states[n, k, g], path, products, n, slab, gram, precision, rows, x, r, overlap
                    )
                    so_far[g + 1], reusable = so_far[g] + gain, g + 1
                g += 1
            logs[n, k] = so_far[g]


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], float64, int32[:,:,::1], int32[:,::1], int32[:,::1], "
    "int64[::1], int32[::1], float64[::1], float64[:,::1], float64[:,::1], float64[:,::1])"
)
def moments_of_states(
    products, slab, gram, precision, states, candidates, members, start, state, weight, active, values, moments
):
    """Compute the moments of ``posterior`` for listed supports, over the causes of each point.

    products, states : (n, H) W^T y and (n, K, g) supports
    candidates, members : (n, H') and (m, g) of ``listed_states.candidates_and_members``
    start, state, weight : supports with non-negligible weight, row by row
    active, values, moments : out, as for ``posterior``

    Costs about |s|^3 / 3 operations per support.
    """
    N, _, most = states.shape
    rows, x, r, overlap = np.zeros((most, most)), np.empty(most), np.empty(most), np.empty(most)
    path, mean = np.empty(most, np.int64), np.empty(most)
    active[:], values[:], moments[:] = 0.0, 0.0, 0.0
    for n in range(N):
        for s in range(start[n], start[n + 1]):
            g = 0
            while g < most and states[n, state[s], g] >= 0:
                extend_path_of_point(
                    g, states[n, state[s], g], path, products, n, slab, gram, precision, rows, x, r, overlap
                )
                rows[g, g] = 1.0
                g += 1
            for b in range(g):
                mean[b] = 0.0
                for a in range(b, g):
                    mean[b] += rows[a, b] * x[a]
            for b in range(g):
                i = members[s, b]
                active[i, n] += weight[s]
                values[i, n] += weight[s] * mean[b]
                for c in range(b + 1):
                    j = members[s, c]
                    second = mean[b] * mean[c]
                    for a in range(b, g):
                        second += r[a] * rows[a, b] * rows[a, c]
                    p = max(i, j) * (max(i, j) + 1) // 2 + min(i, j)
                    moments[p, n] += weight[s] * second


@kernel(
    "Tuple((int64[::1], int64[::1], float64[::1]))(int32[:,::1], float64[:,::1], int64[::1], int32[::1], "
    "float64[::1], boolean[::1], int64)"
)
def means_by_cause(candidates, values, start, cause, single, used, H):
    """Return the nonzero posterior means of the used points by cause, as ``linear.add_cross_moments`` takes them.

    candidates, values : (n, H') and (H', n) of ``posterior``
    start, cause, single : means of causes outside the candidates, row by row
    used, H : (n,) points to use, and number of causes

    Costs a few operations per mean.
    """
    N, C = candidates.shape
    starts = np.zeros(H + 2, np.int64)
    for n in range(N):
        if used[n]:
            for i in range(C):
                starts[candidates[n, i] + 2] += values[i, n] != 0.0
            for k in range(start[n], start[n + 1]):
                starts[cause[k] + 2] += single[k] != 0.0
    for h in range(H):
        starts[h + 2] += starts[h + 1]
    points, found = np.empty(starts[H + 1], np.int64), np.empty(starts[H + 1])
    for n in range(N):
        if used[n]:
            for i in range(C):
                if values[i, n] != 0.0:
                    place = starts[candidates[n, i] + 1]
                    points[place], found[place] = n, values[i, n]
                    starts[candidates[n, i] + 1] += 1
            for k in range(start[n], start[n + 1]):
                if single[k] != 0.0:
                    points[starts[cause[k] + 1]], found[starts[cause[k] + 1]] = n, single[k]
                    starts[cause[k] + 1] += 1
    return starts, points, found


@kernel(
    "void(int32[:,::1], float64[:,::1], int64[::1], int32[::1], float64[::1], boolean[::1], float64, int64[::1], "
    "int64[::1], float64[::1])"
)
def add_pairs(candidates, moments, start, cause, square, used, scale, high, low, largest):
    """Add <s_h s_h'> of the used points, h' <= h, to the fixed-point sums high, low (H (H + 1) / 2,).

    candidates, moments : (n, H') in any order, (H' (H' + 1) / 2, n) of ``posterior``
    start, cause, square : <s^2> of causes outside the candidates, row by row
    used, scale, largest : (n,) points to use, unit of the sums, and (1,) largest magnitude

    Costs H'^2 / 2 operations per point.
    """
    N, C = candidates.shape
    top = 0.0
    for n in range(N):
        if not used[n]:
            continue
        for j in range(C):
            for i in range(j + 1):
                x = moments[j * (j + 1) // 2 + i, n] * scale
                if x != 0.0:
                    one, other = np.int64(candidates[n, i]), np.int64(candidates[n, j])
                    h = max(one, other)
                    add_value(high, low, h * (h + 1) // 2 + min(one, other), x)
                    top = max(top, abs(x))
        for k in range(start[n], start[n + 1]):
            h = np.int64(cause[k])
            add_value(high, low, h * (h + 1) // 2 + h, square[k] * scale)
            top = max(top, square[k] * scale)
    update_largest(largest, top)
