"""Random numbers from a counter, by point: Philox 4x32-10 (Salmon et al. 2011)."""

import numpy as np

from parallel_et.kernels import kernel, part

MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
ROUNDS = 10


@part
def philox(a, b, c, d, key, other):
    """Four words of 32 bits, each in a uint64, from a counter of four and a key of two."""
    for _ in range(ROUNDS):
        left, right = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b, c, d = (right >> HALF) ^ b ^ key, right & WORD, (left >> HALF) ^ d ^ other, left & WORD
        key, other = (key + WEYL[0]) & WORD, (other + WEYL[1]) & WORD
    return a, b, c, d


@kernel("void(uint64, int64, float64[:,::1])")
def uniforms(key, first, out):
    """out[n, k] in [0, 1), which depends on the key, the point first + n and k alone; out (n, m)."""
    N, M = out.shape
    one, other = key & WORD, key >> HALF
    for n in range(N):
        point = np.uint64(first + n)
        for k in range(0, M, 2):
            a, b, c, d = philox(np.uint64(k // 2), np.uint64(0), point & WORD, point >> HALF, one, other)
            out[n, k] = ((a << HALF | b) >> np.uint64(11)) * 2.0**-53
            if k + 1 < M:
                out[n, k + 1] = ((c << HALF | d) >> np.uint64(11)) * 2.0**-53
