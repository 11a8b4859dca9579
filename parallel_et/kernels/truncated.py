"""The truncated posterior of a block, from the log joints of its states."""

import numpy as np

from parallel_et.kernels import LANES, kernel
from parallel_et.kernels.math import exp, log


@kernel("void(float64, float64[:,::1], float64[:,::1], int32[:,::1], float64[::1])")
def normalise(beta, states, singletons, candidates, evidence):
    """ET eq. 20 at inverse temperature beta, in place.

    states (K, n): log joints of the states over the candidates, become their weights q.
    singletons (n, H) or (n, 0): log joints of single causes, become weights; those of candidates are in
    ``states`` already and become 0.
    evidence (n,) out: F_n = log sum p^beta. Costs one exp a state.
    """
    K, N = states.shape
    H = singletons.shape[1]
    peak = np.empty(LANES)
    total = np.empty(LANES)
    for first in range(0, N, LANES):
        width = min(LANES, N - first)
        for lane in range(width):
            peak[lane] = states[0, first + lane]
            total[lane] = 0.0
        for k in range(1, K):
            for lane in range(width):
                peak[lane] = max(peak[lane], states[k, first + lane])
        if H > 0:
            for lane in range(width):
                n = first + lane
                for i in range(candidates.shape[1]):
                    singletons[n, candidates[n, i]] = -np.inf
                top = peak[lane]
                for h in range(H):
                    top = max(top, singletons[n, h])
                peak[lane] = top
                for h in range(H):
                    singletons[n, h] = exp(beta * (singletons[n, h] - top))
                for h in range(H):
                    total[lane] += singletons[n, h]
        for k in range(K):
            for lane in range(width):
                q = exp(beta * (states[k, first + lane] - peak[lane]))
                states[k, first + lane] = q
                total[lane] += q
        for lane in range(width):
            evidence[first + lane] = beta * peak[lane] + log(total[lane])
            total[lane] = 1.0 / total[lane]
        for k in range(K):
            for lane in range(width):
                states[k, first + lane] *= total[lane]
        for lane in range(width):
            for h in range(H):
                singletons[first + lane, h] *= total[lane]
