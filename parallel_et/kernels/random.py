"""Counter-based random numbers: Philox 4x32-10 (Salmon et al. 2011), and SplitMix64 where speed matters."""

import numpy as np

from parallel_et.kernels import device_function, kernel

MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
ROUNDS = 10
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@device_function
def philox(a, b, c, d, key, other):
    """Return four words of 32 bits, each in a uint64, from a counter of four words and a key of two."""
    for _ in range(ROUNDS):
        left, right = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b, c, d = (right >> HALF) ^ b ^ key, right & WORD, (left >> HALF) ^ d ^ other, left & WORD
        key, other = (key + WEYL[0]) & WORD, (other + WEYL[1]) & WORD
    return a, b, c, d


@device_function
def mix(z):
    """Return the finaliser of SplitMix64 (Steele et al. 2014): every bit depends on all bits of z."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel("void(uint64, int64, float64[:,::1])")
def uniforms(key, first, out):
    """Draw out[n, k] in [0, 1) from the key, the point first + n and k alone; out (n, m).

    Costs half a Philox block of ten rounds per number.
    """
    N, M = out.shape
    one, other = key & WORD, key >> HALF
    for n in range(N):
        point = np.uint64(first + n)
        for k in range(0, M, 2):
            a, b, c, d = philox(np.uint64(k // 2), np.uint64(0), point & WORD, point >> HALF, one, other)
            out[n, k] = ((a << HALF | b) >> np.uint64(11)) * 2.0**-53
            if k + 1 < M:
                out[n, k + 1] = ((c << HALF | d) >> np.uint64(11)) * 2.0**-53
