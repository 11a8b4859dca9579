"""Preselection: scores of all causes for a block of points, and the best of them."""

import numpy as np

from parallel_et.kernels import kernel, reducing


@reducing("void(float64[:,::1], float64[:,::1], float64[:,::1])")
def overshoot(Y, WT, scores):
    """Log of ET eq. 28 up to a factor: scores[n, h] = -sum_d max(0, W_dh - y_nd)^2.

    Y (n, D), WT (H, D), scores (n, H) out. Costs 3 D H operations a point.
    """
    for n in range(Y.shape[0]):
        for h in range(WT.shape[0]):
            total = 0.0
            for d in range(WT.shape[1]):
                over = max(WT[h, d] - Y[n, d], 0.0)
                total += over * over
            scores[n, h] = -total


@kernel("void(float64[:,::1], int32[:,::1])")
def largest(scores, candidates):
    """The causes with the largest scores, best first; of equal scores the lower index.

    scores (n, H), candidates (n, H') out. One pass over the scores: about H operations a point.
    """
    count = candidates.shape[1]
    best = np.empty(count)
    for n in range(scores.shape[0]):
        best[:] = -np.inf
        candidates[n, :] = -1
        for h in range(scores.shape[1]):
            score = scores[n, h]
            if score > best[count - 1] or candidates[n, count - 1] < 0:
                place = count - 1
                while place > 0 and (score > best[place - 1] or candidates[n, place - 1] < 0):
                    best[place] = best[place - 1]
                    candidates[n, place] = candidates[n, place - 1]
                    place -= 1
                best[place] = score
                candidates[n, place] = h


@reducing("void(float64[:,::1], float64[::1])")
def square_norms(Y, norms):
    """norms[n] = |y_n|^2 of the rows of Y (n, D)."""
    for n in range(Y.shape[0]):
        total = 0.0
        for d in range(Y.shape[1]):
            total += Y[n, d] * Y[n, d]
        norms[n] = total
