"""Gibbs sampling of binary causes whose mean is W s: chains are the lanes, and only a flip costs H' operations."""

from math import log as log_of

import numpy as np

from parallel_et.kernels import kernel, part, scratch
from parallel_et.kernels.random import GOLDEN, mixed
from parallel_et.kernels.simd import (
    LANES,
    bits_from,
    choose,
    exp,
    fill,
    fma,
    load,
    lowest_bit,
    maximum,
    population_of,
    store,
    total,
    uniform,
)

LOWEST = -700.0
"""Log odds below this are taken as this: no number that is drawn is so small."""
SURE = 38.0
"""Log odds by which a cause stays as it is, whatever number is drawn: these are between 2^-53 and 1 - 2^-53."""
FAR = 1e300
"""Minus the log odds in lanes that have no chain."""
EVERY = (1 << LANES) - 1


@part
def enter(mark, slots, places, count):
    """Whether a mark is new to a table of ``count`` marks; it is then entered.

    slots (power of two,) uint64, 0 where there is none; places (m,): where the marks are, by which they are taken out.
    """
    mark, last = mark | np.uint64(1), np.uint64(len(slots) - 1)
    at = (mark * GOLDEN >> np.uint64(32)) & last
    while slots[at] != np.uint64(0):
        if slots[at] == mark:
            return False
        at = (at + np.uint64(1)) & last
    slots[at] = mark
    places[count] = at
    return True


@kernel(
    "void(float64[:,::1], float64[::1], float64[::1], float64[:,::1], float64, float64, int32[:,::1], uint64, int64, "
    "int32[:,::1], float64[::1], int64, int64, float64[::1], boolean[:,::1], uint8[:,:,::1])"
)
def sample(
    products,
    base,
    bias,
    gram,
    precision,
    beta,
    candidates,
    key,
    first,
    order,
    betas,
    burn,
    chains,
    evidence,
    found,
    draws,
):
    """Sweeps of Gibbs sampling over each point's candidates, p(s, y)^beta, in several chains at a time.

    The log odds x_h of each cause, given all others, are kept: a flip of h takes G_ih / sigma^2 from those of all i or
    gives it back, and adds x_h to the log joint or takes it. A chain begins with one candidate, by chance.

    products, base, bias, gram, precision, beta, candidates (n, H') as for ``linear.posterior``; key and first: of the
    random numbers and of the points; order (sweeps, H'): of the candidates in each sweep; betas (sweeps,): 1 / T of
    each; chains: how many. After ``burn`` sweeps the states at the end of each are drawn.
    evidence (n,) out: log sum p^beta over the distinct states at the ends of all sweeps; found (n, H') out: their best.
    draws (n, H', bytes) out: bits of each candidate, those of a sweep in ceil(chains / 8) bytes; zero where none is.
    Costs an exp, a random number and some ten operations an update, H' more where any of eight chains flips.
    """
    N, C = candidates.shape
    sweeps, V = order.shape[0], LANES
    groups = (chains + V - 1) // V
    width = groups * V
    most = chains * sweeps
    size = 64
    while size < 2 * most:
        size *= 2
    odds, pair, active = scratch(C * width), scratch(C * C), scratch(C * width)
    energy, alive, logs, drawn = scratch(width), scratch(width), scratch(most + V), scratch(width)
    slots, places, marks = np.zeros(size, np.uint64), np.empty(most, np.uint64), np.empty(width, np.uint64)
    words = np.empty(C, np.uint64)
    one, zero, lowest = fill(1.0), fill(0.0), fill(LOWEST)
    for c in range(width):
        alive[c] = 1.0 if c < chains else 0.0
    for j in range(C):
        words[j] = mixed(GOLDEN * np.uint64(j + 1))
    draws[:] = 0
    for n in range(N):
        seed = mixed(key + GOLDEN * np.uint64(first + n))
        for j in range(C):
            h = candidates[n, j]
            start = fill(products[n, j] * precision + bias[h])
            for c in range(0, width, V):
                store(odds, j * width + c, choose(load(alive, c), zero, start, fill(-FAR)))
                store(active, j * width + c, zero)
            pair[j * C + j] = 0.0
            for i in range(j):
                together = gram[h, candidates[n, i]] * precision
                pair[j * C + i], pair[i * C + j] = together, together

        counter, count, top = np.uint64(0), 0, -np.inf
        for c in range(0, width, V):
            store(drawn, c, uniform(seed, counter))
            counter += np.uint64(V)
        for c in range(width):
            j = int(drawn[c] * C)
            energy[c], marks[c] = odds[j * width + c], words[j]
            active[j * width + c] = alive[c]
            for i in range(C):
                odds[i * width + c] -= pair[j * C + i] * alive[c]

        for t in range(sweeps):
            inverse_temperature = fill(betas[t])
            for k in range(C):
                j = np.int64(order[t, k])
                for c in range(0, width, V):
                    x, old = load(odds, j * width + c), load(active, j * width + c)
                    number = counter
                    counter += np.uint64(V)
                    tempered = inverse_temperature * x
                    if bits_from(fma(old, tempered, (old - one) * tempered), SURE) == EVERY:
                        continue
                    u = uniform(seed, number)
                    against = exp(zero - maximum(tempered, lowest))
                    new = choose(load(alive, c), fma(u, against, u), one, zero)
                    change = new - old
                    flipped = bits_from(change * change, 0.5)
                    if flipped == 0:
                        continue
                    store(active, j * width + c, new)
                    store(energy, c, fma(change, x, load(energy, c)))
                    for i in range(C):
                        at = i * width + c
                        store(odds, at, load(odds, at) - change * fill(pair[j * C + i]))
                    while flipped != 0:
                        lane = c + lowest_bit(flipped)
                        flipped &= flipped - 1
                        marks[lane] ^= words[j]
            for c in range(chains):
                if enter(marks[c], slots, places, count):
                    logs[count] = energy[c]
                    count += 1
                    if energy[c] > top:
                        top = energy[c]
                        for i in range(C):
                            found[n, i] = active[i * width + c] > 0.5
            if t >= burn:
                for j in range(C):
                    for g in range(groups):
                        draws[n, j, (t - burn) * groups + g] = bits_from(load(active, j * width + g * V), 0.5)

        for c in range(count, count + V):
            logs[c] = -np.inf
        peak, sum_p, inverse_temperature = fill(top), zero, fill(beta)
        for c in range(0, count, V):
            sum_p = sum_p + exp(inverse_temperature * (load(logs, c) - peak))
        evidence[n] = beta * (base[n] + top) + log_of(total(sum_p))
        for c in range(count):
            slots[places[c]] = np.uint64(0)


@kernel("void(uint64[:,:,::1], float64, float64[:,::1])")
def moments_of(draws, count, moments):
    """Moments of ``count`` draws: <s_i s_j> at row j (j + 1) / 2 + i, i <= j, of moments (H' (H' + 1) / 2, n) out.

    draws (n, H', words): bits of each candidate. Costs one count of bits for each word of a pair of candidates.
    """
    N, C, W = draws.shape
    for n in range(N):
        row = 0
        for j in range(C):
            for i in range(j + 1):
                together = 0
                for w in range(W):
                    together += population_of(draws[n, i, w] & draws[n, j, w])
                moments[row, n] = together / count
                row += 1
