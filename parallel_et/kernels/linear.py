"""States and statistics of models whose mean is W s: nothing here costs D operations a state."""

import numpy as np

from parallel_et.kernels import LANES, NEGLIGIBLE, kernel


@kernel(
    "void(float64[:,::1], float64[::1], float64[::1], float64[:,::1], float64, int32[:,::1], int32[::1], int32[::1], "
    "float64[:,::1])"
)
def log_joint(product, base, bias, gram, precision, candidates, size, last, out):
    """Log joint of all states over each point's candidates, as a walk down the tree of states.

    log p(s, y) = base(y) + sum_{h in s} (b_h / sigma^2 + bias_h) - sum_{h < h' in s} G_hh' / sigma^2 with b = W^T y.
    product (n, H) = Y W, base (n,), bias (H,), gram (H, H), precision = 1 / sigma^2, candidates (n, H'), size and
    last (K,) of the tree in depth-first order, out (K, n). Costs |s| + 1 additions a state.
    """
    N, C = candidates.shape
    K = size.shape[0]
    unary = np.empty((C, LANES))
    pair = np.empty((C, C, LANES))
    energy = np.empty((np.max(size) + 1, LANES))
    path = np.empty(C, np.int32)
    for first in range(0, N, LANES):
        width = min(LANES, N - first)
        for lane in range(LANES):
            n = first + min(lane, width - 1)
            energy[0, lane] = base[n]
            for i in range(C):
                h = candidates[n, i]
                unary[i, lane] = product[n, h] * precision + bias[h]
                for j in range(i):
                    pair[i, j, lane] = gram[h, candidates[n, j]] * precision
        for k in range(K):
            depth = size[k]
            if depth > 0:
                i = last[k]
                path[depth - 1] = i
                for lane in range(LANES):
                    energy[depth, lane] = energy[depth - 1, lane] + unary[i, lane]
                for step in range(depth - 1):
                    j = path[step]
                    for lane in range(LANES):
                        energy[depth, lane] -= pair[i, j, lane]
            for lane in range(width):
                out[k, first + lane] = energy[depth, lane]


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], int32[:,::1], boolean[::1], int32[::1], int32[:,::1], "
    "float64[:,::1], float64[:,::1])"
)
def moments(Y, states, singletons, candidates, used, size, members, ys, ss):
    """Sums over the used points of y <s>^T and <s s^T> (ET eq. 26), given the weights of their states.

    Y (n, D), states (K, n), singletons (n, H) or (n, 0), candidates (n, H'), used (n,), members (K, gamma);
    ys (H, D) and ss (H, H) are added to, ss in its lower triangle by candidate order: the caller adds its transpose.
    Costs D H' operations a point, and |s|^2 / 2 additions a state.
    """
    N, C = candidates.shape
    pair = np.empty((C, C, LANES))
    for first in range(0, N, LANES):
        width = min(LANES, N - first)
        pair[:] = 0.0
        for k in range(size.shape[0]):
            for a in range(size[k]):
                i = members[k, a]
                for b in range(a + 1):
                    j = members[k, b]
                    for lane in range(width):
                        pair[i, j, lane] += states[k, first + lane]
        for lane in range(width):
            n = first + lane
            if not used[n]:
                continue
            for i in range(C):
                h = candidates[n, i]
                for j in range(i + 1):
                    ss[h, candidates[n, j]] += pair[i, j, lane]
                mean = pair[i, i, lane]
                if mean > NEGLIGIBLE:
                    for d in range(Y.shape[1]):
                        ys[h, d] += mean * Y[n, d]
            for h in range(singletons.shape[1]):
                mean = singletons[n, h]
                if mean > NEGLIGIBLE:
                    ss[h, h] += mean
                    for d in range(Y.shape[1]):
                        ys[h, d] += mean * Y[n, d]
