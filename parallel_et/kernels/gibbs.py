"""Gibbs sampling of binary causes with mean W s: chains are the lanes, and only a flip costs H' operations."""

from math import log as log_of

import numpy as np

from parallel_et.kernels import device_function, kernel, scratch
from parallel_et.kernels.random import GOLDEN, mix
from parallel_et.kernels.simd import (
    LANES,
    bits_at_least,
    choose,
    count_bits,
    exp,
    fill,
    fma,
    load,
    lowest_bit,
    maximum,
    store,
    total,
    uniform,
)

LOWEST_LOG_ODDS = -700.0
"""Lower limit of the log odds: no number that is drawn is as small as exp of this."""
CERTAIN_LOG_ODDS = 38.0
"""Log odds from which a cause never flips, because the drawn numbers lie between 2^-53 and 1 - 2^-53."""
NO_CHAIN = 1e300
"""Minus the log odds in lanes without a chain."""
ALL_LANES = (1 << LANES) - 1


@device_function
def insert_mark(mark, slots, places, count):
    """Insert a mark into a hash table of ``count`` marks (0 is a free slot); return whether it is new."""
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
    """Draw states over each point's candidates from p(s, y)^beta by Gibbs sampling (TH ch. 3), in parallel chains.

    The log odds x_h of each cause, given all others, are stored. A flip of h subtracts G_ih / sigma^2 from the log odds
    of all i, or adds it, and changes the log joint by x_h. A chain begins with one random candidate.

    products, base, bias, gram, precision, candidates : as for ``linear.posterior``, with products (n, H')
    beta, betas : inverse temperature of the evidence, and of each sweep (sweeps,)
    key, first : key of the random numbers, and number of the first point
    order : (sweeps, H') order of the candidates in each sweep
    burn, chains : sweeps before the first draw, and number of chains
    evidence : (n,) out, log sum p^beta over the distinct states at the ends of all sweeps
    found : (n, H') out, the most probable of these states
    draws : (n, H', bytes) out, bits of each candidate; a sweep has ceil(chains / 8) bytes, padded with zeros

    Costs an exp, a random number and about ten operations per update of eight chains, and H' more if any of them flips.
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
    one, zero, lowest = fill(1.0), fill(0.0), fill(LOWEST_LOG_ODDS)
    for c in range(width):
        alive[c] = 1.0 if c < chains else 0.0
    for j in range(C):
        words[j] = mix(GOLDEN * np.uint64(j + 1))
    draws[:] = 0
    for n in range(N):
        seed = mix(key + GOLDEN * np.uint64(first + n))
        for j in range(C):
            h = candidates[n, j]
            start = fill(products[n, j] * precision + bias[h])
            for c in range(0, width, V):
                store(odds, j * width + c, choose(load(alive, c), zero, start, fill(-NO_CHAIN)))
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
                    if bits_at_least(fma(old, tempered, (old - one) * tempered), CERTAIN_LOG_ODDS) == ALL_LANES:
                        continue
                    u = uniform(seed, number)
                    against = exp(zero - maximum(tempered, lowest))
                    new = choose(load(alive, c), fma(u, against, u), one, zero)
                    change = new - old
                    flipped = bits_at_least(change * change, 0.5)
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
                if insert_mark(marks[c], slots, places, count):
                    logs[count] = energy[c]
                    count += 1
                    if energy[c] > top:
                        top = energy[c]
                        for i in range(C):
                            found[n, i] = active[i * width + c] > 0.5
            if t >= burn:
                for j in range(C):
                    for g in range(groups):
                        draws[n, j, (t - burn) * groups + g] = bits_at_least(load(active, j * width + g * V), 0.5)

        for c in range(count, count + V):
            logs[c] = -np.inf
        peak, sum_p, inverse_temperature = fill(top), zero, fill(beta)
        for c in range(0, count, V):
            sum_p = sum_p + exp(inverse_temperature * (load(logs, c) - peak))
        evidence[n] = beta * (base[n] + top) + log_of(total(sum_p))
        for c in range(count):
            slots[places[c]] = np.uint64(0)


@kernel("void(uint64[:,:,::1], float64, float64[:,::1])")
def moments_of_draws(draws, count, moments):
    """Compute moments[j (j + 1) / 2 + i, n] = <s_i s_j> of ``count`` draws, i <= j.

    draws, moments : (n, H', words) bits of each candidate, (H' (H' + 1) / 2, n) out

    Costs one count of bits for each word of a pair of candidates.
    """
    N, C, W = draws.shape
    for n in range(N):
        row = 0
        for j in range(C):
            for i in range(j + 1):
                together = 0
                for w in range(W):
                    together += count_bits(draws[n, i, w] & draws[n, j, w])
                moments[row, n] = together / count
                row += 1
