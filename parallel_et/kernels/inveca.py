"""Log joints and statistics of objects at places: each pixel shows the nearest object that is opaque there.

Atom h + x H is object h with its upper left corner at pixel x, from where it goes round the edges of the image. A state
lists its atoms from the farthest to the nearest. Of the objects behind the one that is added only the log density of
each pixel, relative to that of an empty image, is needed; so a state costs the pixels of one object, not of an image.
"""

import numpy as np

from parallel_et.kernels import VACANT, kernel, part, scratch
from parallel_et.kernels.simd import LANES, exp, fill, fma, load, log, maximum, store, total


@part
def put_at(x, height, width, size, pixels):
    """The pixels (size^2,) of an image that an object at pixel x covers, row by row."""
    top, left = x // width, x % width
    i = 0
    for a in range(size):
        row = (top + a) % height * width
        for b in range(size):
            pixels[i] = row + (left + b) % width
            i += 1


@part
def cut_out(Y, n, pixels, count, channels, wide, values):
    """The values of point n in these pixels, of one channel after the other: values (channels wide,)."""
    for i in range(count):
        here = pixels[i] * channels
        for c in range(channels):
            values[c * wide + i] = Y[n, here + c]


@part
def show(values, features, opaque, h, channels, wide, half, shown):
    """shown (wide,) = log W + (|y|^2 - |y - T|^2) / (2 sigma^2), what an opaque pixel of object h has."""
    two = fill(2.0)
    for d in range(0, wide, LANES):
        gap = fill(0.0)
        for c in range(channels):
            feature = load(features, (h * channels + c) * wide + d)
            gap = fma(feature, fma(two, load(values, c * wide + d), fill(0.0) - feature), gap)
        store(shown, d, fma(fill(half), gap, load(opaque, h * wide + d)))


@part
def rise_of(shown, first, clear, h, wide, behind):
    """The sum over pixels of log(e^shown + (1 - W) e^behind) - behind: one logarithm for all of a lane."""
    zero, one, rise, product = fill(0.0), fill(1.0), fill(0.0), fill(1.0)
    for d in range(0, wide, LANES):
        before = load(behind, d)
        mine, rest = load(shown, first + d) - before, load(clear, h * wide + d)
        top = maximum(mine, rest)
        rise = rise + top
        product = product * (one + exp(zero - (top - mine) - (top - rest)))
    return total(rise) + total(log(product))


@part
def put_before(shown, first, clear, h, wide, behind, after):
    """after (wide,) = log(e^shown + (1 - W) e^behind); returns the sum of after - behind."""
    zero, one, rise = fill(0.0), fill(1.0), fill(0.0)
    for d in range(0, wide, LANES):
        before = load(behind, d)
        mine, rest = load(shown, first + d), load(clear, h * wide + d) + before
        top = maximum(mine, rest)
        value = top + log(one + exp(zero - (top - mine) - (top - rest)))
        store(after, d, value)
        rise = rise + (value - before)
    return total(rise)


@kernel(
    "void(float64[:,::1], int64, int64, int64, float64[:,::1], float64[:,::1], float64[:,:,::1], float64[::1], "
    "float64[::1], float64[::1], float64, int32[:,::1], int32[:,::1], int32[::1], int64[::1], float64[:,::1])"
)
def log_table(
    Y,
    height,
    width,
    size,
    opaque,
    clear,
    features,
    base,
    odds,
    orders,
    precision,
    candidates,
    members,
    sizes,
    order,
    logs,
):
    """log p(s, y) of all states of a table over each point's candidates.

    log p = base + sum_{h in s} odds_h - orders_|s| + sum_d log(p(y_d | s) / p(y_d | nothing)). Y (n, D), the channels
    of a pixel side by side; opaque, clear (H, wide): log W and log(1 - W); features (H, channels, wide); base (n,) of
    the empty state, odds (H,) or (1,), orders (gamma + 1,), precision = 1 / sigma^2; candidates (n, H'), members
    (K, gamma), sizes (K,); order (K,): the states such that each comes behind the one without its nearest atom, with
    none but its own followers between. logs (n, K) out, -inf for states with an object at two places. Costs
    an exp a pixel of an object and state, and also a logarithm if others stand before it.
    """
    N, C, K, most = len(Y), candidates.shape[1], len(sizes), members.shape[1]
    H, wide, channels, count = len(opaque), opaque.shape[1], features.shape[1], size * size
    image, values, shown = np.zeros(height * width), scratch(channels * wide), scratch(C * wide)
    behind, after, saved = scratch(wide), scratch(wide), np.empty((most, count))
    pixels, cause = np.empty((C, count), np.int64), np.empty(C, np.int64)
    line, stack = np.empty(most + 1, np.int64), np.empty(most, np.int64)
    values[:], behind[:] = 0.0, 0.0
    half = 0.5 * precision
    for n in range(N):
        for i in range(C):
            cause[i] = candidates[n, i] % H
            put_at(candidates[n, i] // H, height, width, size, pixels[i])
            cut_out(Y, n, pixels[i], count, channels, wide, values)
            show(values, features, opaque, cause[i], channels, wide, half, shown[i * wide : (i + 1) * wide])
        depth = 0
        for k in order:
            m = sizes[k]
            line[m] = k
            if m == 0:
                logs[n, k] = 0.0
                continue
            while depth >= m:
                depth -= 1
                for i in range(count):
                    image[pixels[stack[depth], i]] = saved[depth, i]
            new = members[k, m - 1]
            h = cause[new]
            twice = logs[n, line[m - 1]] == -np.inf
            for a in range(m - 1):
                twice |= cause[members[k, a]] == h
            stack[depth] = new
            for i in range(count):
                behind[i] = image[pixels[new, i]]
                saved[depth, i] = behind[i]
            depth += 1
            if twice:
                logs[n, k] = -np.inf
            elif m == most:
                logs[n, k] = logs[n, line[m - 1]] + rise_of(shown, new * wide, clear, h, wide, behind)
            else:
                rise = put_before(shown, new * wide, clear, h, wide, behind, after)
                logs[n, k] = logs[n, line[m - 1]] + rise
                for i in range(count):
                    image[pixels[new, i]] = after[i]
        while depth > 0:
            depth -= 1
            for i in range(count):
                image[pixels[stack[depth], i]] = saved[depth, i]
        for k in range(K):
            prior = base[n] - orders[sizes[k]]
            for a in range(sizes[k]):
                prior += odds[0 if len(odds) == 1 else cause[members[k, a]]]
            logs[n, k] += prior


@kernel(
    "void(float64[:,::1], int64, int64, int64, float64[:,::1], float64[:,::1], float64[:,:,::1], float64[::1], "
    "float64[::1], float64[::1], float64, int32[:,:,::1], float64[:,::1])"
)
def log_states(Y, height, width, size, opaque, clear, features, base, odds, orders, precision, states, logs):
    """Log joints of states (n, K, g) that are listed for each point, as ``log_table`` has them; logs (n, K) out.

    -inf for vacant places. Costs an exp, a logarithm and 2 channels operations a pixel of each object of a state.
    """
    N, K, most = states.shape
    H, wide, channels, count = len(opaque), opaque.shape[1], features.shape[1], size * size
    image, values, shown = np.zeros(height * width), scratch(channels * wide), scratch(wide)
    behind, after, pixels = scratch(wide), scratch(wide), np.empty((most, count), np.int64)
    values[:], behind[:] = 0.0, 0.0
    half = 0.5 * precision
    for n in range(N):
        for k in range(K):
            if states[n, k, 0] == VACANT:
                logs[n, k] = -np.inf
                continue
            m, value = 0, base[n]
            while m < most and states[n, k, m] >= 0:
                h = states[n, k, m] % H
                put_at(states[n, k, m] // H, height, width, size, pixels[m])
                cut_out(Y, n, pixels[m], count, channels, wide, values)
                show(values, features, opaque, h, channels, wide, half, shown)
                for i in range(count):
                    behind[i] = image[pixels[m, i]]
                value += put_before(shown, 0, clear, h, wide, behind, after)
                value += odds[0 if len(odds) == 1 else h]
                for i in range(count):
                    image[pixels[m, i]] = after[i]
                m += 1
            logs[n, k] = value - orders[m]
            for a in range(m):
                for i in range(count):
                    image[pixels[a, i]] = 0.0


@kernel(
    "void(float64[:,::1], int64, int64, int64, float64[:,::1], float64[:,::1], float64[:,:,::1], float64, int64[::1], "
    "int32[:,::1], float64[::1], float64[:,:,::1], float64[:,::1], float64[:,::1], float64[::1])"
)
def weighted_sums(
    Y, height, width, size, opaque, clear, features, precision, point, states, q, numerator, shown, passed, active
):
    """Sums over pairs of a point (m,) and a state (m, g), of the weights q (m,), of who is shown in which pixel.

    Y to precision as in ``log_table``. Added to are: shown (H, wide), how often a pixel of an object is what is seen,
    passed (H, wide), how often one sees through it what is behind, numerator (H, channels, wide), shown times y, and
    active (H,). Costs two exp and a logarithm a pixel of each object of a state.
    """
    M, most = states.shape
    H, wide, channels, count = len(opaque), opaque.shape[1], features.shape[1], size * size
    image, left = np.zeros(height * width), np.empty(height * width)
    values, front, after = scratch(most * channels * wide), scratch(most * wide), scratch(wide)
    behind, room, pixels = scratch(most * wide), scratch(wide), np.empty((most, count), np.int64)
    values[:], behind[:], room[:] = 0.0, 0.0, 0.0
    half, one, limit = 0.5 * precision, fill(1.0), fill(-700.0)
    zero = fill(0.0)
    for pair in range(M):
        n, m = point[pair], 0
        while m < most and states[pair, m] >= 0:
            h, first = states[pair, m] % H, m * wide
            active[h] += q[pair]
            put_at(states[pair, m] // H, height, width, size, pixels[m])
            here = values[first * channels : (first + wide) * channels]
            cut_out(Y, n, pixels[m], count, channels, wide, here)
            show(here, features, opaque, h, channels, wide, half, front[first : first + wide])
            for i in range(count):
                behind[first + i] = image[pixels[m, i]]
                left[pixels[m, i]] = q[pair]
            put_before(front, first, clear, h, wide, behind[first : first + wide], after)
            for i in range(count):
                image[pixels[m, i]] = after[i]
            m += 1
        for a in range(m):
            for i in range(count):
                image[pixels[a, i]] = 0.0
        for a in range(m - 1, -1, -1):
            h, first = states[pair, a] % H, a * wide
            for i in range(count):
                room[i] = left[pixels[a, i]]
            for d in range(0, wide, LANES):
                odds = load(front, first + d) - load(clear, h * wide + d) - load(behind, first + d)
                weight = load(room, d)
                mine = weight / (one + exp(zero - maximum(odds, limit)))
                rest, here = weight - mine, h * wide + d
                store(after, d, rest)
                store(shown, here, load(shown, here) + mine)
                store(passed, here, load(passed, here) + rest)
                for c in range(channels):
                    at = (h * channels + c) * wide + d
                    store(numerator, at, fma(mine, load(values, (a * channels + c) * wide + d), load(numerator, at)))
            for i in range(count):
                left[pixels[a, i]] = after[i]
