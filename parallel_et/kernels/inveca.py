"""Log joints and statistics of objects at positions: each pixel shows the nearest object that is opaque there.

Atom h + x H is object h with its upper left corner at pixel x; images are periodic.
A state lists its atoms from the farthest to the nearest.
A new object needs only the log density of each pixel of the image behind it, relative to the empty image.
A state therefore costs the pixels of one object, not of an image.
"""

import numpy as np

from parallel_et.kernels import VACANT, device_function, kernel, scratch
from parallel_et.kernels.simd import LANES, exp, fill, fma, load, log, maximum, store, total


@device_function
def write_object_pixels(x, height, width, size, pixels):
    """Write the pixels (size^2,) of an image that an object at pixel x covers, row by row."""
    top, left = x // width, x % width
    i = 0
    for a in range(size):
        row = (top + a) % height * width
        for b in range(size):
            pixels[i] = row + (left + b) % width
            i += 1


@device_function
def gather_values(Y, n, pixels, count, channels, wide, values):
    """Copy the values of point n in these pixels, one channel after the other: values (channels wide,)."""
    for i in range(count):
        here = pixels[i] * channels
        for c in range(channels):
            values[c * wide + i] = Y[n, here + c]


@device_function
def write_opaque_terms(values, features, opaque, h, channels, wide, half, shown):
    """Write shown (wide,) = log W + (|y|^2 - |y - T|^2) / (2 sigma^2), the term of an opaque pixel of object h."""
    two = fill(2.0)
    for d in range(0, wide, LANES):
        gap = fill(0.0)
        for c in range(channels):
            feature = load(features, (h * channels + c) * wide + d)
            gap = fma(feature, fma(two, load(values, c * wide + d), fill(0.0) - feature), gap)
        store(shown, d, fma(fill(half), gap, load(opaque, h * wide + d)))


@device_function
def composite_gain(shown, first, clear, h, wide, behind):
    """Return the sum over pixels of log(e^shown + (1 - W) e^behind) - behind, with one logarithm per lane."""
    zero, one, rise, product = fill(0.0), fill(1.0), fill(0.0), fill(1.0)
    for d in range(0, wide, LANES):
        before = load(behind, d)
        mine, rest = load(shown, first + d) - before, load(clear, h * wide + d)
        top = maximum(mine, rest)
        rise = rise + top
        product = product * (one + exp(zero - (top - mine) - (top - rest)))
    return total(rise) + total(log(product))


@device_function
def composite(shown, first, clear, h, wide, behind, after):
    """Write after (wide,) = log(e^shown + (1 - W) e^behind), and return the sum of after - behind."""
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
    """Compute log p(s, y) of all states of a table over each point's candidates.

    log p = base + sum_{h in s} odds_h - orders_|s| + sum_d log(p(y_d | s) / p(y_d | empty)).

    Y : (n, D) images with the channels of a pixel next to each other
    opaque, clear : (H, wide) log W and log(1 - W); wide is size^2, padded
    features : (H, channels, wide) T
    base, odds, orders, precision : (n,) of the empty state, (H,) or (1,), (gamma + 1,), 1 / sigma^2
    candidates, members, sizes : (n, H'), (K, gamma) and (K,)
    order : (K,) depth-first order: a state follows the one without its nearest atom
    logs : (n, K) out; -inf for states with an object at two positions

    Costs an exp per pixel of an object and per state, and also a logarithm if objects stand in front of it.
    """
    N, C, K, most = len(Y), candidates.shape[1], len(sizes), members.shape[1]
    H, wide, channels, count = len(opaque), opaque.shape[1], features.shape[1], size * size
    image, values, shown = np.zeros(height * width), scratch(channels * wide), scratch(C * wide)
    behind, after, saved = scratch(wide), scratch(wide), np.empty((most, count))
    pixels, cause = np.empty((C, count), np.int64), np.empty(C, np.int64)
    ancestors, stack = np.empty(most + 1, np.int64), np.empty(most, np.int64)
    values[:], behind[:] = 0.0, 0.0
    half = 0.5 * precision
    for n in range(N):
        for i in range(C):
            cause[i] = candidates[n, i] % H
            write_object_pixels(candidates[n, i] // H, height, width, size, pixels[i])
            gather_values(Y, n, pixels[i], count, channels, wide, values)
            write_opaque_terms(
                values, features, opaque, cause[i], channels, wide, half, shown[i * wide : (i + 1) * wide]
            )
        depth = 0
        for k in order:
            m = sizes[k]
            ancestors[m] = k
            if m == 0:
                logs[n, k] = 0.0
                continue
            while depth >= m:
                depth -= 1
                for i in range(count):
                    image[pixels[stack[depth], i]] = saved[depth, i]
            new = members[k, m - 1]
            h = cause[new]
            repeated = logs[n, ancestors[m - 1]] == -np.inf
            for a in range(m - 1):
                repeated |= cause[members[k, a]] == h
            stack[depth] = new
            for i in range(count):
                behind[i] = image[pixels[new, i]]
                saved[depth, i] = behind[i]
            depth += 1
            if repeated:
                logs[n, k] = -np.inf
            elif m == most:
                logs[n, k] = logs[n, ancestors[m - 1]] + composite_gain(shown, new * wide, clear, h, wide, behind)
            else:
                rise = composite(shown, new * wide, clear, h, wide, behind, after)
                logs[n, k] = logs[n, ancestors[m - 1]] + rise
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
    """Compute the log joints of listed states; arguments as for ``log_table``.

    states, logs : (n, K, g) and (n, K) out; -inf for a vacant state

    Costs an exp, a logarithm and 2 channels operations per pixel of each object of a state.
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
                write_object_pixels(states[n, k, m] // H, height, width, size, pixels[m])
                gather_values(Y, n, pixels[m], count, channels, wide, values)
                write_opaque_terms(values, features, opaque, h, channels, wide, half, shown)
                for i in range(count):
                    behind[i] = image[pixels[m, i]]
                value += composite(shown, 0, clear, h, wide, behind, after)
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
    """Add the statistics of pairs of a point and a state: which object is visible in which pixel, by weight.

    Y to precision : as for ``log_table``
    point, states, q : (m,) points, (m, g) states and (m,) weights
    shown : (H, wide) sums of probabilities that a pixel of an object is visible
    passed : (H, wide) sums of probabilities that it is transparent and the image behind it is visible
    numerator, active : (H, channels, wide) shown times y, and (H,) sums of weights

    Costs two exp and a logarithm per pixel of each object of a state.
    """
    M, most = states.shape
    H, wide, channels, count = len(opaque), opaque.shape[1], features.shape[1], size * size
    image, left = np.zeros(height * width), np.empty(height * width)
    values, front, after = scratch(most * channels * wide), scratch(most * wide), scratch(wide)
    behind, weights_here, pixels = scratch(most * wide), scratch(wide), np.empty((most, count), np.int64)
    values[:], behind[:], weights_here[:] = 0.0, 0.0, 0.0
    half, one, limit = 0.5 * precision, fill(1.0), fill(-700.0)
    zero = fill(0.0)
    for pair in range(M):
        n, m = point[pair], 0
        while m < most and states[pair, m] >= 0:
            h, first = states[pair, m] % H, m * wide
            active[h] += q[pair]
            write_object_pixels(states[pair, m] // H, height, width, size, pixels[m])
            here = values[first * channels : (first + wide) * channels]
            gather_values(Y, n, pixels[m], count, channels, wide, here)
            write_opaque_terms(here, features, opaque, h, channels, wide, half, front[first : first + wide])
            for i in range(count):
                behind[first + i] = image[pixels[m, i]]
                left[pixels[m, i]] = q[pair]
            composite(front, first, clear, h, wide, behind[first : first + wide], after)
            for i in range(count):
                image[pixels[m, i]] = after[i]
            m += 1
        for a in range(m):
            for i in range(count):
                image[pixels[a, i]] = 0.0
        for a in range(m - 1, -1, -1):
            h, first = states[pair, a] % H, a * wide
            for i in range(count):
                weights_here[i] = left[pixels[a, i]]
            for d in range(0, wide, LANES):
                odds = load(front, first + d) - load(clear, h * wide + d) - load(behind, first + d)
                weight = load(weights_here, d)
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
