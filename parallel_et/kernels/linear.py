"""Posterior and statistics of models with mean W s; the cost per state does not depend on D."""

from math import log as log_of

import numpy as np

from parallel_et.kernels import NEGLIGIBLE_WEIGHT, VACANT, device_function, kernel, scratch
from parallel_et.kernels.fixed import LOW, add_value, update_largest
from parallel_et.kernels.simd import LANES, add_fixed, append_at_least, exp, fill, fma, highest, load, maximum, store
from parallel_et.kernels.truncated import weigh_singletons

STRIP_DIMENSIONS = 8 * LANES
"""Dimensions whose sums stay in registers."""


@device_function
def add_strip(sums, weight, Y, y):
    """Add a weighted strip of Y, from a flat index on, to the sums."""
    a, b, c, d, e, f, g, h = sums
    return (
        fma(weight, load(Y, y), a),
        fma(weight, load(Y, y + LANES), b),
        fma(weight, load(Y, y + 2 * LANES), c),
        fma(weight, load(Y, y + 3 * LANES), d),
        fma(weight, load(Y, y + 4 * LANES), e),
        fma(weight, load(Y, y + 5 * LANES), f),
        fma(weight, load(Y, y + 6 * LANES), g),
        fma(weight, load(Y, y + 7 * LANES), h),
    )


def strips(D: int) -> list[slice]:
    """Return the strips of D dimensions; the sums over y of each strip are a table (H, width), one after the other."""
    return [slice(begin, min(begin + STRIP_DIMENSIONS, D)) for begin in range(0, D, STRIP_DIMENSIONS)]


@device_function
def log_joints(first, width, products, bias, gram, pairs, precision, candidates, inner, left, pair, q):
    """Write the log joints of all states for the points of the lanes to q (K V,); return the peak of each lane."""
    C, V = candidates.shape[1], LANES
    for lane in range(V):
        n = first + min(lane, width - 1)
        for j in range(C):
            h = candidates[n, j]
            left[j * V + lane] = products[n, j] * precision + bias[h]
            if pairs.shape[1] > 0:
                for i in range(j):
                    pair[((i + 1) * C + j) * V + lane] = pairs[n, j * (j - 1) // 2 + i] * precision
            else:
                for i in range(j):
                    pair[((i + 1) * C + j) * V + lane] = gram[h, candidates[n, i]] * precision
    peak = load(q, 0)
    for node in range(inner.shape[0]):
        g, i, child = inner[node, 1], inner[node, 2], inner[node, 3]
        above = max(g - 1, 0) * C
        energy = load(q, inner[node, 0] * V)
        for j in range(i + 1, C):
            term = load(left, (above + j) * V) - load(pair, ((i + 1) * C + j) * V)
            store(left, (g * C + j) * V, term)
            term = energy + term
            store(q, (child + j) * V, term)
            peak = maximum(peak, term)
    return peak


@kernel(
    "void(float64[:,::1], float64[::1], float64[::1], float64[:,::1], float64[:,::1], float64, float64, int32[:,::1], "
    "int32[:,::1], int64, float64[:,::1], float64[::1], float64[:,::1])"
)
def posterior(products, base, bias, gram, pairs, precision, beta, candidates, inner, K, singletons, evidence, moments):
    """Compute the posterior of all states over each point's candidates (ET eq. 20), and its moments <s_i s_j>.

    log p(s, y) = base(y) + sum_{h in s} (b_h / sigma^2 + bias_h) - sum_{h < h' in s} G_hh' / sigma^2 with b = W^T y.

    products : (n, H') b of the candidates
    base, bias : (n,) log joint of the empty state, (H,) as above
    gram, pairs : (H, H) G = W^T W; if it is not given, pairs (n, H' (H' - 1) / 2) of ``select.gram_of_candidates``
    precision, beta : 1 / sigma^2 and 1 / T
    candidates, inner, K : (n, H'), (M, 4) inner nodes of the tree of states, and number of states
    singletons : (n, H) or (n, 0), b of all causes in, weights of singletons out; 0 for candidates
    evidence : (n,) out, F_n = log sum p^beta
    moments : (H' (H' + 1) / 2, n) out, <s_i s_j> in row j (j + 1) / 2 + i, i <= j

    Costs one exp and about eight additions per state. Points are the lanes.
    """
    N, C = candidates.shape
    M, H = inner.shape[0], singletons.shape[1]
    V = LANES
    depth = np.max(inner[:, 1]) + 1
    left, pair, moment = scratch((depth + 1) * C * V), scratch((C + 1) * C * V), scratch((C + 1) * C * V)
    q, peaks, totals = scratch(K * V), scratch(V), scratch(V)
    pair[:] = 0.0
    zero, inverse_temperature = fill(0.0), fill(beta)
    for first in range(0, N, V):
        width = min(V, N - first)
        for lane in range(V):
            q[lane] = base[first + min(lane, width - 1)]
        peak = log_joints(first, width, products, bias, gram, pairs, precision, candidates, inner, left, pair, q)
        if H > 0:
            store(peaks, 0, peak)
            for lane in range(width):
                peaks[lane], totals[lane] = weigh_singletons(
                    first + lane, beta, precision, base[first + lane], bias, candidates, peaks[lane], singletons
                )
            for lane in range(width, V):
                totals[lane] = 0.0
            peak = load(peaks, 0)

        sum_q = zero
        for k in range(K):
            weight = exp(inverse_temperature * (load(q, k * V) - peak))
            store(q, k * V, weight)
            sum_q = sum_q + weight
        if H > 0:
            sum_q = sum_q + load(totals, 0)
        store(peaks, 0, peak)
        store(totals, 0, sum_q)
        for lane in range(width):
            evidence[first + lane] = beta * peaks[lane] + log_of(totals[lane])
            for h in range(H):
                singletons[first + lane, h] *= 1.0 / totals[lane]

        for p in range((C + 1) * C):
            store(moment, p * V, zero)
        for p in range((depth + 1) * C):
            store(left, p * V, zero)
        for node in range(M - 1, -1, -1):
            g, i, child = inner[node, 1], inner[node, 2], inner[node, 3]
            above = (g - 1 if g > 0 else depth) * C
            mass = load(q, inner[node, 0] * V)
            for j in range(i + 1, C):
                weight = load(q, (child + j) * V)
                mass = mass + weight
                weight = weight + load(left, (g * C + j) * V)
                store(left, (g * C + j) * V, zero)
                store(left, (above + j) * V, load(left, (above + j) * V) + weight)
                p = ((i + 1) * C + j) * V
                store(moment, p, load(moment, p) + weight)
            store(q, inner[node, 0] * V, mass)
        normaliser = fill(1.0) / sum_q
        row = 0
        for j in range(C):
            for i in range(j + 1):
                value = load(moment, ((i + 1) * C + j if i < j else j) * V) * normaliser
                if width == V:
                    store(moments, row * N + first, value)
                else:
                    store(peaks, 0, value)
                    for lane in range(width):
                        moments[row, first + lane] = peaks[lane]
                row += 1


@kernel(
    "void(float64[:,::1], float64[::1], float64[:,::1], float64[:,::1], float64, int32[:,::1], int32[:,::1], int64, "
    "int32[::1], float64[::1])"
)
def best_states(products, bias, gram, pairs, precision, candidates, inner, K, best, gain):
    """Find the most probable state over each point's candidates, the first in case of ties; as for ``posterior``.

    best, gain : (n,) out, index in the table, and log joint relative to the empty state

    Costs two additions and a comparison per state.
    """
    N, C = candidates.shape
    V = LANES
    left, pair = scratch((np.max(inner[:, 1]) + 1) * C * V), scratch((C + 1) * C * V)
    q, peaks = scratch(K * V), scratch(V)
    pair[:], q[:V] = 0.0, 0.0
    for first in range(0, N, V):
        width = min(V, N - first)
        store(
            peaks, 0, log_joints(first, width, products, bias, gram, pairs, precision, candidates, inner, left, pair, q)
        )
        for lane in range(width):
            k = 0
            while k < K - 1 and q[k * V + lane] != peaks[lane]:
                k += 1
            best[first + lane], gain[first + lane] = k, peaks[lane]


@kernel(
    "Tuple((int64[::1], int64[::1], float64[::1]))(int32[:,::1], float64[:,::1], int64[::1], int32[::1], "
    "float64[::1], boolean[::1], int64, int64)"
)
def means_by_cause(candidates, moments, start, cause, weight, used, H, size):
    """Return the non-negligible posterior means of the used points, sorted by cause and by block.

    candidates, moments : (n, H') and (H' (H' + 1) / 2, n) of ``posterior``
    start, cause, weight : singletons outside the candidates, row by row
    used, H, size : (n,) points to use, number of causes, and points per block

    Returns the start of each block of each cause (H blocks + 2,), and the points and values of the means.
    Costs a few operations per mean.
    """
    N, C = candidates.shape
    blocks = max(1, (N + size - 1) // size)
    whole = N - N % LANES
    matter, counts = np.empty((C, N + LANES), np.int32), np.zeros(C, np.int64)
    for i in range(C):
        row = i * (i + 1) // 2 + i
        for n in range(0, whole, LANES):
            counts[i] += append_at_least(
                load(moments, row * N + n), NEGLIGIBLE_WEIGHT, n, matter, i * (N + LANES) + counts[i]
            )
        for n in range(whole, N):
            matter[i, counts[i]] = n
            counts[i] += moments[row, n] >= NEGLIGIBLE_WEIGHT
    starts = np.zeros(H * blocks + 2, np.int64)
    for filling in range(2):
        if filling:
            for b in range(H * blocks):
                starts[b + 2] += starts[b + 1]
            points, values = np.empty(starts[H * blocks + 1], np.int64), np.empty(starts[H * blocks + 1])
        else:
            points, values = np.empty(0, np.int64), np.empty(0)
        for i in range(C):
            row = i * (i + 1) // 2 + i
            for k in range(counts[i]):
                n = matter[i, k]
                if used[n]:
                    place = candidates[n, i] * blocks + n // size + 2 - filling
                    if filling:
                        points[starts[place]] = n
                        values[starts[place]] = moments[row, n]
                    starts[place] += 1
        for n in range(N):
            if used[n]:
                for k in range(start[n], start[n + 1]):
                    place = cause[k] * blocks + n // size + 2 - filling
                    if filling:
                        points[starts[place]] = n
                        values[starts[place]] = weight[k]
                    starts[place] += 1
    return starts, points, values


@kernel(
    "void(float64[:,::1], int64[::1], int64[::1], float64[::1], int64, float64, int64[::1], int64[::1], float64[::1])"
)
def add_cross_moments(Y, starts, points, values, blocks, scale, high, low, largest):
    """Add sum_n <s_h> y_n to the fixed-point sums high, low (D H,), which are in ``strips``.

    Y : (n, D)
    starts, points, values, blocks : means of ``means_by_cause`` and its number of blocks
    scale, largest : unit of the sums, and (1,) largest magnitude

    Costs D operations per mean, and about D per block of a cause with means.
    Strips of the points stay in the cache, and the sums of a cause in registers.
    """
    N, D = Y.shape
    H = (starts.shape[0] - 2) // blocks
    unit, scales, zero = fill(LOW), fill(scale), fill(0.0)
    near, top = scratch(N * STRIP_DIMENSIONS), zero
    for begin in range(0, D, STRIP_DIMENSIONS):
        width = min(STRIP_DIMENSIONS, D - begin)
        for n in range(N):
            for d in range(0, width, LANES):
                store(near, n * width + d, load(Y, n * D + begin + d))
        for b in range(H * blocks):
            if starts[b] == starts[b + 1]:
                continue
            here = begin * H + b // blocks * width
            if width == STRIP_DIMENSIONS:
                sums = (zero, zero, zero, zero, zero, zero, zero, zero)
                for k in range(starts[b], starts[b + 1]):
                    sums = add_strip(sums, fill(values[k]), near, points[k] * STRIP_DIMENSIONS)
                for d, value in enumerate(sums):
                    value = value * scales
                    add_fixed(high, low, here + d * LANES, value, unit)
                    top = maximum(top, maximum(value, zero - value))
            else:
                for d in range(0, width, LANES):
                    value = zero
                    for k in range(starts[b], starts[b + 1]):
                        value = fma(fill(values[k]), load(near, points[k] * width + d), value)
                    value = value * scales
                    add_fixed(high, low, here + d, value, unit)
                    top = maximum(top, maximum(value, zero - value))
    update_largest(largest, highest(top))


@kernel("void(int64[::1], float64[::1], int64, float64, int64[::1], int64[::1], float64[::1])")
def add_means(starts, values, blocks, scale, high, low, largest):
    """Add sum_n <s_h> to the diagonal of the packed lower triangle of <s s^T>: high and low (H (H + 1) / 2,).

    starts, values, blocks : means of ``means_by_cause``

    Costs an addition per mean.
    """
    for b in range(starts.shape[0] - 2):
        mean, h = 0.0, b // blocks
        for k in range(starts[b], starts[b + 1]):
            mean += values[k]
        add_value(high, low, h * (h + 1) // 2 + h, mean * scale)
        update_largest(largest, mean * scale)


@kernel("void(int32[:,::1], float64[:,::1], boolean[::1], float64, int64[::1], int64[::1], float64[::1])")
def add_pairs(candidates, moments, used, scale, high, low, largest):
    """Add <s_h s_h'> of the used points, h' < h, to the fixed-point sums high, low (H (H + 1) / 2,).

    candidates, moments, used : (n, H') in ascending order, (H' (H' + 1) / 2, n) and (n,)

    Costs H'^2 / 2 operations per point.
    """
    N, C = candidates.shape
    whole = N - N % LANES
    found, top = np.empty(N + LANES, np.int32), 0.0
    for j in range(C):
        for i in range(j):
            row, count = j * (j + 1) // 2 + i, 0
            for n in range(0, whole, LANES):
                count += append_at_least(load(moments, row * N + n), NEGLIGIBLE_WEIGHT, n, found, count)
            for n in range(whole, N):
                found[count] = n
                count += moments[row, n] >= NEGLIGIBLE_WEIGHT
            for k in range(count):
                n = found[k]
                h = np.int64(candidates[n, j])
                x = moments[row, n] * scale * used[n]
                add_value(high, low, h * (h + 1) // 2 + candidates[n, i], x)
                top = max(top, x)
    update_largest(largest, top)


@kernel("void(float64[:,::1], float64[::1], float64[::1], float64[:,::1], float64, int32[:,:,::1], float64[:,::1])")
def log_states(products, base, bias, gram, precision, states, logs):
    """Compute the log joints of listed states; arguments as for ``posterior``.

    products, states, logs : (n, H) W^T y, (n, K, g) states, (n, K) out; -inf for a vacant state

    Costs |s|^2 / 2 operations per state.
    """
    N, K, most = states.shape
    left = np.empty(products.shape[1])
    for n in range(N):
        for h in range(len(left)):
            left[h] = products[n, h] * precision + bias[h]
        for k in range(K):
            if states[n, k, 0] == VACANT:
                logs[n, k] = -np.inf
                continue
            term, shared = 0.0, 0.0
            for i in range(most):
                h = states[n, k, i]
                if h < 0:
                    break
                term += left[h]
                for j in range(i):
                    shared += gram[h, states[n, k, j]]
            logs[n, k] = base[n] + term - precision * shared


@kernel(
    "Tuple((int64[::1], int64[::1], float64[::1]))(int32[:,:,::1], int64[::1], int32[::1], float64[::1], boolean[::1], "
    "int64)"
)
def means_of_states(states, start, state, weight, used, H):
    """Return the posterior means of listed states by cause, as ``means_by_cause`` does for a table.

    states : (n, K, g) listed states
    start, state, weight : states with non-negligible weight, row by row
    used, H : (n,) points to use, and number of causes

    Costs |s| additions per state.
    """
    N, _, most = states.shape
    mean, touched = np.zeros(H), np.empty(H, np.int32)
    point, cause, value = np.empty(16 * N, np.int64), np.empty(16 * N, np.int32), np.empty(16 * N)
    starts, found = np.zeros(H + 2, np.int64), 0
    for n in range(N):
        if not used[n]:
            continue
        count = 0
        for k in range(start[n], start[n + 1]):
            for i in range(most):
                h = states[n, state[k], i]
                if h < 0:
                    break
                if mean[h] == 0.0:
                    touched[count] = h
                    count += 1
                mean[h] += weight[k]
        while found + count > len(point):
            point = np.append(point, np.empty(len(point), np.int64))
            cause, value = np.append(cause, np.empty(len(cause), np.int32)), np.append(value, np.empty(len(value)))
        for c in range(count):
            h = touched[c]
            point[found], cause[found], value[found] = n, h, mean[h]
            starts[h + 2] += 1
            mean[h] = 0.0
            found += 1
    for h in range(H):
        starts[h + 2] += starts[h + 1]
    points, values = np.empty(found, np.int64), np.empty(found)
    for c in range(found):
        place = starts[cause[c] + 1]
        points[place], values[place] = point[c], value[c]
        starts[cause[c] + 1] += 1
    return starts, points, values


@kernel(
    "void(int32[:,:,::1], int64[::1], int32[::1], float64[::1], boolean[::1], float64, int64[::1], int64[::1], "
    "float64[::1])"
)
def add_pairs_of_states(states, start, state, weight, used, scale, high, low, largest):
    """Add <s_h s_h'> of listed states as ``add_pairs`` does for a table.

    states : (n, K, g) listed states, each with its causes in ascending order
    start, state, weight, used : as for ``means_of_states``

    Costs |s|^2 / 2 operations per state.
    """
    N, _, most = states.shape
    top = 0.0
    for n in range(N):
        if not used[n]:
            continue
        for k in range(start[n], start[n + 1]):
            x = weight[k] * scale
            for i in range(most):
                h = np.int64(states[n, state[k], i])
                if h < 0:
                    break
                for j in range(i):
                    add_value(high, low, h * (h + 1) // 2 + states[n, state[k], j], x)
                    top = max(top, x)
    update_largest(largest, top)


@kernel("void(float64[::1], float64[:,::1])")
def unpack_triangle(triangle, out):
    """Write the symmetric matrix out (H, H) of a packed lower triangle (H (H + 1) / 2,). Costs H^2 writes."""
    k = 0
    for h in range(out.shape[0]):
        for i in range(h + 1):
            out[h, i] = triangle[k]
            out[i, h] = triangle[k]
            k += 1


@kernel("void(float64[::1], float64[:,::1], int64, int64)")
def unpack_upper_rows(triangle, out, first, last):
    """Write the rows [first, last) of the upper triangle of a symmetric matrix to out, which may be larger.

    triangle : (H (H + 1) / 2,) packed lower triangle

    Costs a write per element.
    """
    H = int(np.sqrt(2.0 * triangle.shape[0]))
    for top in range(first, last, 64):
        for j in range(top, H):
            start = j * (j + 1) // 2
            for i in range(top, min(top + 64, last, j + 1)):
                out[i, j] = triangle[start + i]
