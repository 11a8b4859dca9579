"""Preselection (ET sec. 4): scores of all causes for a block of points, and the best causes."""

import numpy as np

from parallel_et.kernels import device_function, kernel
from parallel_et.kernels.simd import (
    LANES,
    bits_at_least,
    count_at_least,
    fill,
    fma,
    load,
    lowest_bit,
    maximum,
    store,
    total,
)

PAIRWISE_SCORES = 128
"""Number of scores up to which comparing all pairs finds a threshold faster than sorting."""
STRIP_DIMENSIONS = 256
"""Dimensions of the points of a block that fit into the cache."""
PAIR_STRIP_DIMENSIONS = 128
"""Dimensions of the fields that fit into the cache."""
TILE = 4
"""Points, and causes, of a tile whose sums stay in registers."""


@device_function
def dot(X, x, Y, y, D):
    """Return the inner product of D numbers of X and Y from flat indices x and y on."""
    a, b, c, e = fill(0.0), fill(0.0), fill(0.0), fill(0.0)
    whole = D - D % (4 * LANES)
    for d in range(0, whole, 4 * LANES):
        a = fma(load(X, x + d), load(Y, y + d), a)
        b = fma(load(X, x + d + LANES), load(Y, y + d + LANES), b)
        c = fma(load(X, x + d + 2 * LANES), load(Y, y + d + 2 * LANES), c)
        e = fma(load(X, x + d + 3 * LANES), load(Y, y + d + 3 * LANES), e)
    for d in range(whole, D, LANES):
        a = fma(load(X, x + d), load(Y, y + d), a)
    return total((a + b) + (c + e))


@device_function
def excess(w, y, so_far):
    """Return a sum plus the squared part of w above y."""
    more = maximum(w - y, fill(0.0))
    return fma(more, more, so_far)


@device_function
def write_scores(scores, n, h, s0, s1, s2, s3):
    """Write four negated sums as scores of point n, as far as there are causes."""
    H = scores.shape[1]
    scores[n, h] = -total(s0)
    if h + 1 < H:
        scores[n, h + 1] = -total(s1)
    if h + 2 < H:
        scores[n, h + 2] = -total(s2)
    if h + 3 < H:
        scores[n, h + 3] = -total(s3)


@device_function
def kth_largest(scores, count, size, lanes):
    """Return the count-th largest of ``size`` scores, which are padded with -inf to a multiple of ``lanes``."""
    best = lowest = scores.dtype.type(-np.inf)
    for k in range(size):
        above = 0
        for start in range(0, size, lanes):
            above += count_at_least(load(scores, start), scores[k])
        best = max(best, scores[k] if above >= count else lowest)
    return best


@device_function
def list_at_least(scores, row, limit, lanes, found):
    """Write the causes of a row with scores from a limit on to ``found``, in ascending order; return their number."""
    H, count = scores.shape[1], 0
    first, whole = row * H, H - H % lanes
    for start in range(0, whole, lanes):
        bits = bits_at_least(load(scores, first + start), limit)
        while bits:
            found[count] = start + lowest_bit(bits)
            bits &= bits - 1
            count += 1
    for h in range(whole, H):
        found[count] = h
        count += scores[row, h] >= limit
    return count


@device_function
def shortlist(scores, row, count, lanes, slack, tops, found, short):
    """Write the causes within ``slack`` of the ``count`` largest scores of a row to ``found``; return their number."""
    H, slots = scores.shape[1], len(tops)
    first, kept = row * H, 0
    if 2 * slots < H:
        for slot in range(0, slots, lanes):
            store(tops, slot, load(scores, first + slot))
        for start in range(slots, H - slots + 1, slots):
            for slot in range(0, slots, lanes):
                store(tops, slot, maximum(load(tops, slot), load(scores, first + start + slot)))
        kept = list_at_least(scores, row, kth_largest(tops, count, slots, lanes) - slack, lanes, found)
        for k in range(kept):
            short[k] = scores[row, found[k]]
    else:
        kept = H
        for h in range(H):
            found[h] = h
            short[h] = scores[row, h]
    for k in range(kept, -(-kept // lanes) * lanes):
        short[k] = -np.inf
    limit = kth_largest(short, count, kept, lanes) if kept <= PAIRWISE_SCORES else np.sort(short[:kept])[kept - count]
    limit -= slack
    final = 0
    for k in range(kept):
        found[final] = found[k]
        final += short[k] >= limit
    return final


@device_function
def keep_best(scores, wanted, found, count):
    """Keep the ``wanted`` causes in ``found`` (count,) with the largest scores (count,), the first in case of ties."""
    limit = np.sort(scores[:count])[count - wanted]
    equal = wanted
    for k in range(count):
        equal -= scores[k] > limit
    kept = 0
    for k in range(count):
        take = scores[k] > limit or (scores[k] == limit and equal > 0)
        equal -= scores[k] == limit
        found[kept] = found[k]
        kept += take


@kernel("void(float64[:,::1], float64[::1])")
def square_norms(Y, norms):
    """Compute norms[n] = |y_n|^2 of Y (n, D). Costs D operations per point."""
    N, D = Y.shape
    for n in range(N):
        norms[n] = dot(Y, n * D, Y, n * D, D)


@kernel("void(float64[:,::1], float64[::1], float32[:,::1])")
def unit_rows(Y, norms, units):
    """Compute the rows of Y at length 1 in single precision, and their squared lengths.

    Y, norms, units : (n, D) in, (n,) and (n, D) out

    Costs 2 D operations per point.
    """
    N, D = Y.shape
    for n in range(N):
        norms[n] = dot(Y, n * D, Y, n * D, D)
        scale = 1.0 / np.sqrt(norms[n]) if norms[n] > 0.0 else 0.0
        for d in range(D):
            units[n, d] = Y[n, d] * scale


@kernel("void(float64[:,::1], float64[:,::1], float64[:,::1])")
def overshoot(Y, WT, scores):
    """Compute the log of ET eq. 28 up to a factor: scores[n, h] = -sum_d max(0, W_dh - y_nd)^2.

    Y, WT, scores : (n, D) points, (H, D) fields as rows, (n, H) out

    Costs 3 D H operations per point, on tiles of points and causes whose sums stay in registers.
    """
    N, D = Y.shape
    H = WT.shape[0]
    zero = fill(0.0)
    for n in range(0, N, TILE):
        p0, p1, p2, p3 = n * D, min(n + 1, N - 1) * D, min(n + 2, N - 1) * D, min(n + 3, N - 1) * D
        for h in range(0, H, TILE):
            f0, f1, f2, f3 = h * D, min(h + 1, H - 1) * D, min(h + 2, H - 1) * D, min(h + 3, H - 1) * D
            a0, a1, a2, a3 = zero, zero, zero, zero
            b0, b1, b2, b3 = zero, zero, zero, zero
            c0, c1, c2, c3 = zero, zero, zero, zero
            d0, d1, d2, d3 = zero, zero, zero, zero
            for d in range(0, D, LANES):
                w0, w1, w2, w3 = load(WT, f0 + d), load(WT, f1 + d), load(WT, f2 + d), load(WT, f3 + d)
                y = load(Y, p0 + d)
                a0, a1, a2, a3 = excess(w0, y, a0), excess(w1, y, a1), excess(w2, y, a2), excess(w3, y, a3)
                y = load(Y, p1 + d)
                b0, b1, b2, b3 = excess(w0, y, b0), excess(w1, y, b1), excess(w2, y, b2), excess(w3, y, b3)
                y = load(Y, p2 + d)
                c0, c1, c2, c3 = excess(w0, y, c0), excess(w1, y, c1), excess(w2, y, c2), excess(w3, y, c3)
                y = load(Y, p3 + d)
                d0, d1, d2, d3 = excess(w0, y, d0), excess(w1, y, d1), excess(w2, y, d2), excess(w3, y, d3)
            write_scores(scores, n, h, a0, a1, a2, a3)
            write_scores(scores, min(n + 1, N - 1), h, b0, b1, b2, b3)
            write_scores(scores, min(n + 2, N - 1), h, c0, c1, c2, c3)
            write_scores(scores, min(n + 3, N - 1), h, d0, d1, d2, d3)


@kernel("void(float64[:,::1], int32[:,::1])")
def largest(scores, candidates):
    """Select the causes with the largest scores, in ascending order; in case of ties the lower index wins.

    scores, candidates : (n, H) in, (n, H') out

    Costs about H operations per point.
    """
    N, H = scores.shape
    C = candidates.shape[1]
    tops = np.empty(-(-2 * C // LANES) * LANES)
    found, short = np.empty(H + LANES, np.int32), np.empty(H + LANES)
    for n in range(N):
        count = shortlist(scores, n, C, LANES, 0.0, tops, found, short)
        if count > C:
            for k in range(count):
                short[k] = scores[n, found[k]]
            keep_best(short, C, found, count)
        for i in range(C):
            candidates[n, i] = found[i]


@kernel("void(float64[:,::1], float64[:,::1], float64[:,::1], float64, float64[::1], int32[:,::1])")
def largest_by_joint(scores, Y, factors, precision, bias, candidates):
    """Select the causes with the largest scores, in ascending order; in case of ties the larger singleton joint wins.

    The log joint of a singleton is precision * factors_h . y_n + bias_h, up to a constant of the point.
    Causes that tie in both are equal to the model, and the lower index wins.

    scores, candidates : (n, H) in, (n, H') out
    Y, factors, bias : (n, D) points, (H, D) and (H,)

    Costs about H operations per point, and D for each cause that ties for the last places.
    """
    N, D = Y.shape
    H, C = scores.shape[1], candidates.shape[1]
    tops = np.empty(-(-2 * C // LANES) * LANES)
    found, short = np.empty(H + LANES, np.int32), np.empty(H + LANES)
    for n in range(N):
        count = shortlist(scores, n, C, LANES, 0.0, tops, found, short)
        if count > C:
            last = np.inf
            for k in range(count):
                last = min(last, scores[n, found[k]])
            for k in range(count):
                h = found[k]
                tied = scores[n, h] == last
                short[k] = precision * dot(Y, n * D, factors, h * D, D) + bias[h] if tied else np.inf
            keep_best(short, C, found, count)
        for i in range(C):
            candidates[n, i] = found[i]


@kernel("void(float32[:,::1], float32, float64[::1], float64[:,::1], float64[:,::1], float64[::1], int32[:,::1])")
def largest_projections(cosines, slack, norms, Y, WT, scale, candidates):
    """Select the causes with the largest scale_h W_h . y_n (ET eq. 33), in ascending order; ties as in ``largest``.

    cosines : (n, H) products of points at length 1 in single precision, each with an error below slack / 2
    norms, Y, WT, scale : (n,), (n, D), (H, D) and (H,)
    candidates : (n, H') out

    Causes within the rounding error are compared by products in double precision, so the result is exact.
    Costs about H operations per point, and D for each cause within the rounding error.
    """
    N, D = Y.shape
    C, H, lanes = candidates.shape[1], WT.shape[0], 2 * LANES
    tops = np.empty(-(-2 * C // lanes) * lanes, np.float32)
    found, short, exact = np.empty(H + lanes, np.int32), np.empty(H + lanes, np.float32), np.empty(H)
    for n in range(N):
        if norms[n] == 0.0:
            for i in range(C):
                candidates[n, i] = i
            continue
        count = shortlist(cosines, n, C, lanes, slack, tops, found, short)
        if count > C:
            for k in range(count):
                exact[k] = scale[found[k]] * dot(Y, n * D, WT, found[k] * D, D)
            keep_best(exact, C, found, count)
        for i in range(C):
            candidates[n, i] = found[i]


@kernel("void(float64[:,::1], float64[:,::1], int32[:,::1], float64[:,::1])")
def products(Y, WT, candidates, out):
    """Compute out[n, i] = y_n . W_h of the candidates h = candidates[n, i].

    Y, WT : (n, D) points and (H, D) fields as rows
    candidates, out : (n, H')

    Costs D H' operations per point. Many dimensions are handled strip by strip and cause by cause.
    The points then stay in the cache, and each field is loaded once.
    """
    (N, D), C, H = Y.shape, candidates.shape[1], WT.shape[0]
    if D <= STRIP_DIMENSIONS:
        for n in range(N):
            for i in range(C):
                out[n, i] = dot(Y, n * D, WT, candidates[n, i] * D, D)
        return
    starts, points, places = np.zeros(H + 2, np.int64), np.empty(N * C, np.int64), np.empty(N * C, np.int64)
    flat = out.reshape(-1)
    for n in range(N):
        for i in range(C):
            starts[candidates[n, i] + 2] += 1
            out[n, i] = 0.0
    for h in range(H):
        starts[h + 2] += starts[h + 1]
    for n in range(N):
        for i in range(C):
            h = candidates[n, i]
            points[starts[h + 1]], places[starts[h + 1]] = n * D, n * C + i
            starts[h + 1] += 1
    for begin in range(0, D, STRIP_DIMENSIONS):
        width = min(STRIP_DIMENSIONS, D - begin)
        for h in range(H):
            for k in range(starts[h], starts[h + 1]):
                flat[places[k]] += dot(Y, points[k] + begin, WT, h * D + begin, width)


@device_function
def add_products(sums, a, b0, b1, b2, b3):
    """Add the products of a vector with four others to their sums."""
    return fma(a, b0, sums[0]), fma(a, b1, sums[1]), fma(a, b2, sums[2]), fma(a, b3, sums[3])


@kernel("void(float64[:,::1], int32[:,::1], float64[:,::1])")
def gram_of_candidates(WT, candidates, out):
    """Compute out[n, j (j - 1) / 2 + i] = W_h . W_h' of the candidates h and h' in the columns j and i < j.

    WT, candidates, out : (H, D), (n, H') and (n, H' (H' - 1) / 2)

    Costs D H'^2 / 2 operations per point. Strips of fields stay in the cache, and sums of 4 x 4 pairs in registers.
    """
    (N, C), D = candidates.shape, WT.shape[1]
    zero, sums = fill(0.0), np.empty((TILE, TILE))
    at = np.empty(-(-C // TILE) * TILE, np.int64)
    out[:] = 0.0
    for begin in range(0, D, PAIR_STRIP_DIMENSIONS):
        end = min(begin + PAIR_STRIP_DIMENSIONS, D)
        for n in range(N):
            for i in range(len(at)):
                at[i] = candidates[n, min(i, C - 1)] * D
            for j in range(0, C, TILE):
                for i in range(0, j + 1, TILE):
                    s0 = s1 = s2 = s3 = (zero, zero, zero, zero)
                    for d in range(begin, end, LANES):
                        b0, b1 = load(WT, at[i] + d), load(WT, at[i + 1] + d)
                        b2, b3 = load(WT, at[i + 2] + d), load(WT, at[i + 3] + d)
                        s0 = add_products(s0, load(WT, at[j] + d), b0, b1, b2, b3)
                        s1 = add_products(s1, load(WT, at[j + 1] + d), b0, b1, b2, b3)
                        s2 = add_products(s2, load(WT, at[j + 2] + d), b0, b1, b2, b3)
                        s3 = add_products(s3, load(WT, at[j + 3] + d), b0, b1, b2, b3)
                    for b in range(TILE):
                        sums[0, b], sums[1, b] = total(s0[b]), total(s1[b])
                        sums[2, b], sums[3, b] = total(s2[b]), total(s3[b])
                    for a in range(min(TILE, C - j)):
                        row = (j + a) * (j + a - 1) // 2 + i
                        for b in range(min(TILE, j + a - i)):
                            out[n, row + b] += sums[a, b]


@kernel("void(float64[:,::1], int32[:,::1], float64[:,::1])")
def pick(table, candidates, out):
    """Return out[n, i] = table[n, h] of the candidates h = candidates[n, i].

    table, candidates, out : (n, H), (n, H') and (n, H')

    Costs one read per candidate.
    """
    for n in range(candidates.shape[0]):
        for i in range(candidates.shape[1]):
            out[n, i] = table[n, candidates[n, i]]


@kernel("void(float64[:,::1], int64, int32[:,::1])")
def add_random(uniforms, atoms, candidates):
    """Draw random candidates in addition to the given ones, without repetition; the order stays ascending.

    uniforms : (n, r) in [0, 1), one number for each drawn candidate
    atoms : number of causes to draw from
    candidates : (n, H'); the first H' - r are given, the last r are filled

    Costs at most H' operations a drawn candidate.
    """
    N, C = candidates.shape
    R = uniforms.shape[1]
    for n in range(N):
        for r in range(R):
            count = C - R + r
            atom, place = np.int32(uniforms[n, r] * (atoms - count)), 0
            while place < count and candidates[n, place] <= atom:
                atom += 1
                place += 1
            for i in range(count, place, -1):
                candidates[n, i] = candidates[n, i - 1]
            candidates[n, place] = atom
