"""Posterior and statistics of models whose mean is W s: nothing here costs D operations a state."""

from math import log as log_of

import numpy as np

from parallel_et.kernels import NEGLIGIBLE, VACANT, kernel, part, scratch
from parallel_et.kernels.fixed import LOW, add_one, note
from parallel_et.kernels.simd import LANES, add_fixed, exp, fill, fma, highest, list_from, load, maximum, store
from parallel_et.kernels.truncated import weigh_singles

STRIP = 8 * LANES
"""Dimensions whose sums are kept in registers."""


@part
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
    """The strips of D dimensions: the sums over y of each are a table (H, width) of its own, one after the other."""
    return [slice(begin, min(begin + STRIP, D)) for begin in range(0, D, STRIP)]


@part
def log_joints(first, width, products, bias, gram, pairs, precision, candidates, inner, left, pair, q):
    """Log joints of all states of the tree for the points first, ..., first + width - 1, which are the lanes of q.

    q (K V,) has that of the empty state already. left (depth H' V,) and pair ((H' + 1) H' V,) are scratch, the first
    H' V of pair zero. Returns the largest of each lane.
    """
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
def posterior(products, base, bias, gram, pairs, precision, beta, candidates, inner, K, singles, evidence, moments):
    """ET eq. 20 and the moments <s_i s_j> under it, for all states over each point's candidates; points are the lanes.

    log p(s, y) = base(y) + sum_{h in s} (b_h / sigma^2 + bias_h) - sum_{h < h' in s} G_hh' / sigma^2 with b = W^T y.
    On the way down the tree of states a child adds to its parent what is left of its cause's term, from which each
    cause above has taken its G. The moments are the derivatives of the log of the sum by these terms: the way back.

    products (n, H') = b of the candidates, base (n,), bias (H,), precision = 1 / sigma^2, beta = 1 / T, candidates
    (n, H'), inner (M, 4) and K of the tree. gram (H, H), of which the lower triangle is read, or pairs
    (n, H' (H' - 1) / 2): G of the candidates j and i < j at j (j - 1) / 2 + i.
    singles (n, H) or (n, 0): b of all causes, becomes the weights of the states with one cause; 0 for candidates.
    evidence (n,) out: F_n = log sum p^beta. moments (H' (H' + 1) / 2, n) out: <s_i s_j> at j (j + 1) / 2 + i, i <= j.
    Costs one exp and about eight additions a state.
    """
    N, C = candidates.shape
    M, H = inner.shape[0], singles.shape[1]
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
                peaks[lane], totals[lane] = weigh_singles(
                    first + lane, beta, precision, base[first + lane], bias, candidates, peaks[lane], singles
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
                singles[first + lane, h] *= 1.0 / totals[lane]

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
        share = fill(1.0) / sum_q
        row = 0
        for j in range(C):
            for i in range(j + 1):
                value = load(moment, ((i + 1) * C + j if i < j else j) * V) * share
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
    """The most probable state over each point's candidates, of equal ones the first; the arguments of ``posterior``.

    best (n,) out: its index in the table; gain (n,) out: its log joint above that of the empty state.
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
    """The posterior means that are not negligible, of the used points, sorted by cause, and those of a cause by block.

    candidates (n, H'), moments (H' (H' + 1) / 2, n); start (n + 1,), cause and weight: single causes besides;
    used (n,); size: points a block. Returns where each block of each cause starts (H blocks + 2,), and for each mean
    its point and its value.
    """
    N, C = candidates.shape
    blocks = max(1, (N + size - 1) // size)
    whole = N - N % LANES
    matter, counts = np.empty((C, N + LANES), np.int32), np.zeros(C, np.int64)
    for i in range(C):
        row = i * (i + 1) // 2 + i
        for n in range(0, whole, LANES):
            counts[i] += list_from(load(moments, row * N + n), NEGLIGIBLE, n, matter, i * (N + LANES) + counts[i])
        for n in range(whole, N):
            matter[i, counts[i]] = n
            counts[i] += moments[row, n] >= NEGLIGIBLE
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
def add_fields(Y, starts, points, values, blocks, scale, high, low, largest):
    """Add sum_n <s_h> y_n to the fixed-point sums high, low (D H,), which are in ``strips``.

    Y (n, D); starts, points, values of ``means_by_cause``, for so many blocks. Costs D operations a mean, and some D a
    block of a cause that has any: strip by strip of the dimensions, so that the points stay in the cache, and cause by
    cause, with the sums in registers.
    """
    N, D = Y.shape
    H = (starts.shape[0] - 2) // blocks
    unit, scales, zero = fill(LOW), fill(scale), fill(0.0)
    near, top = scratch(N * STRIP), zero
    for begin in range(0, D, STRIP):
        width = min(STRIP, D - begin)
        for n in range(N):
            for d in range(0, width, LANES):
                store(near, n * width + d, load(Y, n * D + begin + d))
        for b in range(H * blocks):
            if starts[b] == starts[b + 1]:
                continue
            here = begin * H + b // blocks * width
            if width == STRIP:
                sums = (zero, zero, zero, zero, zero, zero, zero, zero)
                for k in range(starts[b], starts[b + 1]):
                    sums = add_strip(sums, fill(values[k]), near, points[k] * STRIP)
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
    note(largest, highest(top))


@kernel("void(int64[::1], float64[::1], int64, float64, int64[::1], int64[::1], float64[::1])")
def add_means(starts, values, blocks, scale, high, low, largest):
    """Add sum_n <s_h> to the diagonal of the lower triangle of <s s^T>, row by row: high and low (H (H + 1) / 2,)."""
    for b in range(starts.shape[0] - 2):
        mean, h = 0.0, b // blocks
        for k in range(starts[b], starts[b + 1]):
            mean += values[k]
        add_one(high, low, h * (h + 1) // 2 + h, mean * scale)
        note(largest, mean * scale)


@kernel("void(int32[:,::1], float64[:,::1], boolean[::1], float64, int64[::1], int64[::1], float64[::1])")
def add_pairs(candidates, moments, used, scale, high, low, largest):
    """Add <s_h s_h'> of the used points, h' < h, to the fixed-point sums high, low (H (H + 1) / 2,).

    candidates (n, H') in rising order, moments (H' (H' + 1) / 2, n), used (n,). Costs H'^2 / 2 operations a point.
    """
    N, C = candidates.shape
    whole = N - N % LANES
    found, top = np.empty(N + LANES, np.int32), 0.0
    for j in range(C):
        for i in range(j):
            row, count = j * (j + 1) // 2 + i, 0
            for n in range(0, whole, LANES):
                count += list_from(load(moments, row * N + n), NEGLIGIBLE, n, found, count)
            for n in range(whole, N):
                found[count] = n
                count += moments[row, n] >= NEGLIGIBLE
            for k in range(count):
                n = found[k]
                h = np.int64(candidates[n, j])
                x = moments[row, n] * scale * used[n]
                add_one(high, low, h * (h + 1) // 2 + candidates[n, i], x)
                top = max(top, x)
    note(largest, top)


@kernel("void(float64[:,::1], float64[::1], float64[::1], float64[:,::1], float64, int32[:,:,::1], float64[:,::1])")
def log_states(products, base, bias, gram, precision, states, logs):
    """Log joints of states that are listed for each point, as ``posterior`` has them for those of a table.

    products (n, H) = W^T y, states (n, K, g), logs (n, K) out. Costs |s|^2 / 2 operations a state.
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
    """``means_by_cause`` for states (n, K, g) that are listed; start, state, weight: those that matter, row by row."""
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
    """``add_pairs`` for states (n, K, g) that are listed, their atoms in rising order. Costs |s|^2 / 2 a state."""
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
                    add_one(high, low, h * (h + 1) // 2 + states[n, state[k], j], x)
                    top = max(top, x)
    note(largest, top)


@kernel("void(float64[::1], float64[:,::1])")
def unpack(triangle, out):
    """The symmetric out (H, H) from its lower triangle, row by row."""
    k = 0
    for h in range(out.shape[0]):
        for i in range(h + 1):
            out[h, i] = triangle[k]
            out[i, h] = triangle[k]
            k += 1


@kernel("void(float64[::1], float64[:,::1], int64, int64)")
def upper_rows(triangle, out, first, last):
    """Rows [first, last), from the diagonal on, of the matrix with a lower triangle, in out, which may be larger."""
    H = int(np.sqrt(2.0 * triangle.shape[0]))
    for top in range(first, last, 64):
        for j in range(top, H):
            start = j * (j + 1) // 2
            for i in range(top, min(top + 64, last, j + 1)):
                out[i, j] = triangle[start + i]
