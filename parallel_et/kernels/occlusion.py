"""Posterior and statistics of models in which the nearest active cause occludes the causes behind it, pixel by pixel.

A state lists its causes from the farthest to the nearest. The cause of depth rank j = 0 to m - 1 has
the proximity 1 + j / (m - 1). A pixel shows the cause with the largest proximity times |mask|; ties: the nearer cause.
The states of a table come in runs that differ only in the nearest cause, and a run shares the computation of the rest.
The gap of a cause in pixel d is |y_d - W_dh T_h|^2 - |y_d|^2.
"""

from math import log as log_of

import numpy as np

from parallel_et.kernels import VACANT, device_function, kernel, scratch
from parallel_et.kernels.simd import LANES, choose, equals, exp, fill, fma, highest, load, maximum, store, total
from parallel_et.kernels.truncated import weigh_singletons

STRIP_PIXELS = 128
"""Pixels of all candidates that are handled at a time, so that they stay in the fastest cache."""


@device_function
def proximity(place, size):
    """Return the proximity of the cause at a depth rank of a state."""
    return 1.0 + place / (size - 1.0) if size > 1 else 1.5


@device_function
def split_channels(Y, n, pixels, channels, planes):
    """Copy the values of point n, one channel after the other, to planes (channels wide,), with zero padding."""
    wide = len(planes) // channels
    for c in range(channels):
        for d in range(pixels):
            planes[c * wide + d] = Y[n, d * channels + c]


@device_function
def gap_of_cause(planes, masks, features, h, gaps, place):
    """Write gaps[place:] = |y_d - W_dh T_h|^2 - |y_d|^2 of all pixels d."""
    channels, wide = features.shape[1], masks.shape[1]
    length = 0.0
    for c in range(channels):
        length += features[h, c] * features[h, c]
    square, minus_two = fill(length), fill(-2.0)
    for d in range(0, wide, LANES):
        along, mask = fill(0.0), load(masks, h * wide + d)
        for c in range(channels):
            along = fma(fill(features[h, c]), load(planes, c * wide + d), along)
        store(gaps, place + d, mask * fma(mask, square, minus_two * along))


@device_function
def same_run(members, k, other, size):
    """Return whether two states of one size differ only in their nearest cause."""
    same = True
    for a in range(size - 1):
        same &= members[k, a] == members[other, a]
    return same


@device_function
def write_background(heights, gaps, fields, places, size, first, width, tops, under):
    """Write the largest proximity times |mask| among the causes of a state but the nearest, and its gap."""
    for d in range(0, width, LANES):
        top = fill(proximity(0, size)) * load(heights, fields[0] + first + d)
        gap = load(gaps, places[0] + first + d)
        for a in range(1, size - 1):
            here = fill(proximity(a, size)) * load(heights, fields[a] + first + d)
            gap = choose(top, here, gap, load(gaps, places[a] + first + d))
            top = maximum(top, here)
        store(tops, d, top)
        store(under, d, gap)


@device_function
def gap_of_one(heights, gaps, field, place, width, tops, under):
    """Return the sum of the gaps of all pixels with a nearest cause in front of the others."""
    two, sum_a = fill(2.0), fill(0.0)
    for d in range(0, width, LANES):
        sum_a = sum_a + choose(load(tops, d), two * load(heights, field + d), load(under, d), load(gaps, place + d))
    return total(sum_a)


@device_function
def gaps_of_two(heights, gaps, field, place, other, other_place, width, tops, under):
    """Return the sums of the gaps of all pixels for two nearest causes in turn."""
    two, sum_a, sum_b = fill(2.0), fill(0.0), fill(0.0)
    for d in range(0, width, LANES):
        top, gap = load(tops, d), load(under, d)
        sum_a = sum_a + choose(top, two * load(heights, field + d), gap, load(gaps, place + d))
        sum_b = sum_b + choose(top, two * load(heights, other + d), gap, load(gaps, other_place + d))
    return total(sum_a), total(sum_b)


@device_function
def run_starts(members, size):
    """Return the starts of the runs of states with at least two causes, and the end of the last run; (runs + 1,)."""
    K = len(size)
    begin, count, k = np.empty(K + 1, np.int64), 0, 0
    while k < K and size[k] < 2:
        k += 1
    while k < K:
        begin[count] = k
        count += 1
        last = k
        while k < K and size[k] == size[last] and same_run(members, k, last, size[last]):
            k += 1
    begin[count] = K
    return begin[: count + 1]


@kernel(
    "void(float64[:,::1], int64, float64[:,::1], float64[:,::1], float64[:,::1], float64[::1], float64[::1], "
    "float64[::1], float64[::1], float64, float64, int32[:,::1], int32[:,::1], int32[::1], float64[:,::1], "
    "float64[::1], float64[:,::1])"
)
def posterior(
    Y,
    pixels,
    masks,
    heights,
    features,
    base,
    bias,
    odds,
    orders,
    precision,
    beta,
    candidates,
    members,
    size,
    singletons,
    evidence,
    weights,
):
    """Compute the posterior weights of all ordered states over each point's candidates (OCA eq. 16).

    log p(s, y) = base + sum_{h in s} odds_h - orders_|s| - (|y - m(s)|^2 - |y|^2) / (2 sigma^2), m of OCA eq. 3.

    Y : (n, D) with the channels of a pixel next to each other; D >= pixels channels
    masks, heights, features : (H, wide) W, (H, wide) |W| and (H, channels) T; wide is pixels, padded
    base, bias : (n,) of the empty state, (H,) of singletons
    odds, orders : (H,) or (1,), and (gamma + 1,)
    precision, beta : 1 / sigma^2 and 1 / T
    candidates, members, size : (n, H'), (K, gamma) and (K,)
    singletons : (n, H) or (n, 0), products of y with the picture of each cause in, weights out; 0 for candidates
    evidence, weights : (n,) out, F_n = log sum p^beta, and (n, K) out

    Costs 5 operations per pixel and state for any number of channels, and one exp per state.
    """
    N, wide, channels = len(Y), masks.shape[1], features.shape[1]
    C, K, H, gamma = candidates.shape[1], len(size), singletons.shape[1], members.shape[1]
    planes, gaps, tops, under = (
        scratch(channels * wide),
        scratch(C * wide),
        scratch(STRIP_PIXELS),
        scratch(STRIP_PIXELS),
    )
    planes[:] = 0.0
    fields, places, begin = np.empty(gamma, np.int64), np.empty(gamma, np.int64), run_starts(members, size)
    padded = -(-K // LANES) * LANES
    logs, prior = scratch(padded), scratch(padded)
    prior[:] = -np.inf
    for k in range(K):
        prior[k] = odds[0] * size[k] - orders[size[k]]
    inverse_temperature, scale = fill(beta), fill(-0.5 * precision)
    for n in range(N):
        split_channels(Y, n, pixels, channels, planes)
        for i in range(C):
            gap_of_cause(planes, masks, features, candidates[n, i], gaps, i * wide)
        logs[:] = 0.0
        for k in range(K):
            if size[k] == 1:
                i, sum_gap = members[k, 0], fill(0.0)
                for d in range(0, wide, LANES):
                    sum_gap = sum_gap + load(gaps, i * wide + d)
                logs[k] = total(sum_gap)
            if len(odds) > 1:
                prior[k] = -orders[size[k]]
                for a in range(size[k]):
                    prior[k] += odds[candidates[n, members[k, a]]]
        for strip in range(0, wide, STRIP_PIXELS):
            width = min(STRIP_PIXELS, wide - strip)
            for run in range(len(begin) - 1):
                k, end = begin[run], begin[run + 1]
                m = size[k]
                for a in range(m - 1):
                    fields[a], places[a] = np.int64(candidates[n, members[k, a]]) * wide, members[k, a] * wide
                write_background(heights, gaps, fields, places, m, strip, width, tops, under)
                while k + 2 <= end:
                    i, j = members[k, m - 1], members[k + 1, m - 1]
                    field, other = np.int64(candidates[n, i]) * wide + strip, np.int64(candidates[n, j]) * wide + strip
                    one, two = gaps_of_two(
                        heights, gaps, field, i * wide + strip, other, j * wide + strip, width, tops, under
                    )
                    logs[k] += one
                    logs[k + 1] += two
                    k += 2
                if k < end:
                    i = members[k, m - 1]
                    field = np.int64(candidates[n, i]) * wide + strip
                    logs[k] += gap_of_one(heights, gaps, field, i * wide + strip, width, tops, under)
        here = fill(base[n])
        for k in range(0, padded, LANES):
            store(logs, k, fma(scale, load(logs, k), here) + load(prior, k))
        top = load(logs, 0)
        for k in range(LANES, padded, LANES):
            top = maximum(top, load(logs, k))
        peak, sum_singletons = highest(top), 0.0
        if H > 0:
            peak, sum_singletons = weigh_singletons(n, beta, precision, base[n], bias, candidates, peak, singletons)
        sum_q, shift = fill(0.0), fill(peak)
        for k in range(0, padded, LANES):
            q = exp(inverse_temperature * (load(logs, k) - shift))
            store(logs, k, q)
            sum_q = sum_q + q
        sum_all = total(sum_q) + sum_singletons
        evidence[n] = beta * peak + log_of(sum_all)
        normaliser = 1.0 / sum_all
        for k in range(K):
            weights[n, k] = logs[k] * normaliser
        for h in range(H):
            singletons[n, h] *= normaliser


@device_function
def sum_of_odds(odds, states, n, k, size):
    """Return the log odds of a state, added in ascending order, so that orders with one picture have equal joints."""
    so_far, last = 0.0, -1
    for _ in range(size):
        least = len(odds)
        for a in range(size):
            if last < states[n, k, a] < least:
                least = states[n, k, a]
        so_far += odds[least]
        last = least
    return so_far


@kernel(
    "void(float64[:,::1], int64, float64[:,::1], float64[:,::1], float64[:,::1], float64[::1], float64[::1], "
    "float64[::1], float64, int32[:,:,::1], float64[:,::1])"
)
def log_states(Y, pixels, masks, heights, features, base, odds, orders, precision, states, logs):
    """Compute the log joints of listed states; arguments as for ``posterior``.

    states, logs : (n, K, g) and (n, K) out; -inf for a vacant state

    Costs 4 |s| operations per pixel and state, and those of ``gap_of_cause`` for each cause of a point's states.
    """
    N, K, most = states.shape
    H, wide, channels = len(masks), masks.shape[1], features.shape[1]
    planes, gaps = scratch(channels * wide), scratch(min(H, K * most) * wide)
    planes[:] = 0.0
    place, same = np.full(H, -1, np.int64), len(odds) == 1
    computed = np.empty(min(H, K * most), np.int64)
    for n in range(N):
        split_channels(Y, n, pixels, channels, planes)
        count = 0
        for k in range(K):
            if states[n, k, 0] == VACANT:
                logs[n, k] = -np.inf
                continue
            size = 0
            while size < most and states[n, k, size] >= 0:
                h = states[n, k, size]
                if place[h] < 0:
                    gap_of_cause(planes, masks, features, h, gaps, count * wide)
                    place[h], computed[count] = count * wide, h
                    count += 1
                size += 1
            prior = base[n] + (odds[0] * size if same else sum_of_odds(odds, states, n, k, size))
            sum_gap = fill(0.0)
            for d in range(0, wide if size > 0 else 0, LANES):
                h = states[n, k, 0]
                top = fill(proximity(0, size)) * load(heights, np.int64(h) * wide + d)
                gap = load(gaps, place[h] + d)
                for a in range(1, size):
                    h = states[n, k, a]
                    here = fill(proximity(a, size)) * load(heights, np.int64(h) * wide + d)
                    gap = choose(top, here, gap, load(gaps, place[h] + d))
                    top = maximum(top, here)
                sum_gap = sum_gap + gap
            logs[n, k] = prior - orders[size] - 0.5 * precision * total(sum_gap)
        for i in range(count):
            place[computed[i]] = -1


@device_function
def add_soft_responsibilities(powers, kappa, q, begin, end, state, members, size, rows, strip, width, resp, work):
    """Add q A^rho (OCA eq. 9) of a run of states to the responsibilities (H' wide,) of their causes."""
    wide, first = powers.shape[1], state[begin]
    last = size - 1
    for d in range(0, width, LANES):
        common = fill(0.0)
        for a in range(last):
            i = members[first, a]
            common = fma(fill(kappa[size, a]), load(powers, rows[i] + strip + d), common)
        store(work, d, common)
        store(work, STRIP_PIXELS + d, fill(0.0))
    nearest = fill(kappa[size, last])
    for k in range(begin, end):
        i, weight = members[state[k], last], fill(q[k])
        for d in range(0, width, LANES):
            mine, place = nearest * load(powers, rows[i] + strip + d), i * wide + strip + d
            found = weight / (mine + load(work, d))
            store(resp, place, fma(mine, found, load(resp, place)))
            store(work, STRIP_PIXELS + d, load(work, STRIP_PIXELS + d) + found)
    for a in range(last):
        i, factor = members[first, a], fill(kappa[size, a])
        for d in range(0, width, LANES):
            place = i * wide + strip + d
            mine = factor * load(powers, rows[i] + strip + d)
            store(resp, place, fma(mine, load(work, STRIP_PIXELS + d), load(resp, place)))


@device_function
def add_hard_responsibilities(heights, q, state, members, size, rows, strip, width, resp):
    """Add q to the responsibility of the cause of a state that is visible, pixel by pixel."""
    wide, weight = heights.shape[1], fill(q)
    for d in range(0, width, LANES):
        top, shown = fill(-1.0), fill(-1.0)
        for a in range(size):
            here = fill(proximity(a, size)) * load(heights, rows[members[state, a]] + strip + d)
            shown = choose(top, here, shown, fill(1.0 * a))
            top = maximum(top, here)
        for a in range(size):
            place = members[state, a] * wide + strip + d
            store(resp, place, fma(weight, equals(shown, fill(1.0 * a)), load(resp, place)))


@kernel(
    "void(float64[:,::1], int64, float64[:,::1], float64[:,::1], boolean, int32[:,::1], int32[:,::1], int64[::1], "
    "int32[::1], float64[::1], int64[::1], int32[::1], float64[::1], boolean[::1], float64[::1], float64[::1], "
    "float64, float64[:,:,::1], float64[:,::1], float64[::1], float64[::1], float64[::1])"
)
def weighted_sums(
    Y,
    pixels,
    powers,
    kappa,
    hard,
    candidates,
    members,
    start,
    state,
    weight,
    first,
    cause,
    single,
    used,
    odds,
    orders,
    temperature,
    numerator,
    denominator,
    self_only,
    active,
    inner,
):
    """Add the sums over the used points of <A_dh> y_d and <A_dh> (OCA eq. 21); A^rho is 1 for a singleton.

    Y, candidates, members, odds, orders : as for ``posterior``
    powers, hard : (H, wide) |W|^rho, or |W| if ``hard``: the visible cause then has all the responsibility
    kappa : (gamma + 1, gamma) proximity^rho
    start, state, weight : states with non-negligible weight, row by row
    first, cause, single : singletons outside the candidates with non-negligible weight, row by row
    used, temperature : (n,) points to use, and T
    numerator, denominator : (H, channels, wide) and (H, wide), added to
    self_only, active : (H,) added to: the part of the denominator that is the same in all pixels, and <s_h>
    inner : (n,) out, T <log q> less the log prior, up to its constant

    Costs a division and 8 operations per pixel and state.
    """
    N, wide, channels = len(Y), powers.shape[1], numerator.shape[1]
    C, most, same = candidates.shape[1], members.shape[1], len(odds) == 1
    planes, resp, work = scratch(channels * wide), scratch(C * wide), scratch(2 * STRIP_PIXELS)
    planes[:], resp[:] = 0.0, 0.0
    self_weight, mean, rows = np.empty(C), np.empty(C), np.empty(C, np.int64)
    size = np.empty(0, np.int64)
    for n in range(N):
        inner[n] = 0.0
        if not used[n]:
            continue
        split_channels(Y, n, pixels, channels, planes)
        self_weight[:], mean[:] = 0.0, 0.0
        for i in range(C):
            rows[i] = np.int64(candidates[n, i]) * wide
        if len(size) < start[n + 1] - start[n]:
            size = np.empty(2 * (start[n + 1] - start[n]), np.int64)
        for k in range(start[n], start[n + 1]):
            m, prior = 0, 0.0
            while m < most and members[state[k], m] >= 0:
                i = members[state[k], m]
                mean[i] += weight[k]
                prior += odds[0 if same else candidates[n, i]]
                m += 1
            size[k - start[n]] = m
            inner[n] += weight[k] * (temperature * log_of(weight[k]) - prior + orders[m])
            if m == 1:
                self_weight[members[state[k], 0]] += weight[k]
        for k in range(first[n], first[n + 1]):
            h = cause[k]
            active[h] += single[k]
            self_only[h] += single[k]
            inner[n] += single[k] * (temperature * log_of(single[k]) - odds[0 if same else h])
            by_itself = fill(single[k])
            for c in range(channels):
                for d in range(0, wide, LANES):
                    here = (np.int64(h) * channels + c) * wide + d
                    store(numerator, here, fma(by_itself, load(planes, c * wide + d), load(numerator, here)))
        for strip in range(0, wide, STRIP_PIXELS):
            width = min(STRIP_PIXELS, wide - strip)
            k = start[n]
            while k < start[n + 1]:
                m, begin = size[k - start[n]], k
                k += 1
                if m < 2:
                    continue
                if hard:
                    add_hard_responsibilities(powers, weight[begin], state[begin], members, m, rows, strip, width, resp)
                    continue
                while k < start[n + 1] and size[k - start[n]] == m and same_run(members, state[k], state[begin], m):
                    k += 1
                add_soft_responsibilities(
                    powers, kappa, weight, begin, k, state, members, m, rows, strip, width, resp, work
                )
        for i in range(C):
            if mean[i] == 0.0:
                continue
            h = np.int64(candidates[n, i])
            active[h] += mean[i]
            self_only[h] += self_weight[i]
            by_itself, zero = fill(self_weight[i]), fill(0.0)
            for d in range(0, wide, LANES):
                part_of = load(resp, i * wide + d)
                store(denominator, h * wide + d, load(denominator, h * wide + d) + part_of)
                for c in range(channels):
                    here = (h * channels + c) * wide + d
                    store(numerator, here, fma(part_of + by_itself, load(planes, c * wide + d), load(numerator, here)))
                store(resp, i * wide + d, zero)
