"""States and statistics of models whose mean is the elementwise maximum of the active causes' fields."""

import numpy as np

from parallel_et.kernels import NEGLIGIBLE, kernel, reducing
from parallel_et.kernels.math import exp, log

TINY = 1e-300
FAR = -1e4  # a logarithm whose exp is zero
STEEP = 24.0
"""From this rho on the powers of small fields would underflow, and shares are computed from logarithms."""


@reducing("void(float64[:,::1], float64[:,::1], int32[:,::1], int32[::1], int32[::1], float64[:,::1])")
def square_errors(Y, WT, candidates, size, last, out):
    """out[k, n] = |y_n - max_{h in s} W_h|^2 of all states: a child's mean is the max of its parent's and one field.

    Y (n, D), WT (H, D) >= 0, candidates (n, H'), size and last (K,) in depth-first order, out (K, n).
    Costs 3 D operations a state.
    """
    D = Y.shape[1]
    mean = np.zeros((np.max(size) + 1, D))
    for n in range(Y.shape[0]):
        for k in range(size.shape[0]):
            depth = size[k]
            total = 0.0
            if depth == 0:
                for d in range(D):
                    total += Y[n, d] * Y[n, d]
            else:
                h = candidates[n, last[k]]
                for d in range(D):
                    value = max(mean[depth - 1, d], WT[h, d])
                    mean[depth, d] = value
                    total += (Y[n, d] - value) * (Y[n, d] - value)
            out[k, n] = total


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], float64, float64[:,::1], float64[:,::1], int32[:,::1], "
    "boolean[::1], int32[::1], int32[:,::1], float64[:,::1], float64[:,::1], float64[::1])"
)
def weighted_sums(
    Y, power, lower, rho, states, singletons, candidates, used, size, members, numerator, denominator, alone
):
    """Sums over the used points of <A_dh> y_d and <A_dh> (ET eq. 30), A^rho of eq. 36, which is 1 for a single cause.

    Y (n, D); power and lower (H, D): W^rho and W^(rho - 1), relative to the largest field of a dimension, or from
    rho = STEEP on log W in both; states (K, n), singletons (n, H) or (n, 0), candidates (n, H'), used (n,),
    members (K, gamma). numerator and denominator (H, D) and alone (H,) are added to; alone is the part of the
    denominator that is the same in all dimensions. Active fields that are all zero share a dimension evenly.
    Costs |s| D operations and D powers a state of two and more causes, if its weight is not negligible.
    """
    N, D = Y.shape
    C = candidates.shape[1]
    share = np.empty((C, D))
    single = np.empty(C)
    causes = np.empty(members.shape[1], np.int32)
    total, tied, top = np.empty(D), np.empty(D), np.empty(D)
    outer = 1.0 if np.isinf(rho) else (rho - 1.0) / rho
    for n in range(N):
        if not used[n]:
            continue
        share[:] = 0.0
        single[:] = 0.0
        for k in range(size.shape[0]):
            q = states[k, n]
            count = size[k]
            if count == 0 or q < NEGLIGIBLE:
                continue
            if count == 1:
                single[members[k, 0]] += q
                continue
            for a in range(count):
                causes[a] = candidates[n, members[k, a]]
            if rho < STEEP:
                even = q * exp(-outer * log(float(count)))
                total[:] = 0.0
                for a in range(count):
                    field = power[causes[a]]
                    for d in range(D):
                        total[d] += field[d]
                for d in range(D):
                    tied[d] = even if total[d] == 0.0 else 0.0
                    total[d] = q * exp(-outer * log(max(total[d], TINY)))
                for a in range(count):
                    field, part = lower[causes[a]], share[members[k, a]]
                    for d in range(D):
                        part[d] += field[d] * total[d] + tied[d]
            else:
                top[:] = -np.inf
                for a in range(count):
                    field = power[causes[a]]
                    for d in range(D):
                        top[d] = max(top[d], field[d])
                total[:] = 0.0
                if np.isinf(rho):
                    for a in range(count):
                        field = power[causes[a]]
                        for d in range(D):
                            total[d] += 1.0 if field[d] == top[d] else 0.0
                    for a in range(count):
                        field, part = power[causes[a]], share[members[k, a]]
                        for d in range(D):
                            part[d] += q / total[d] if field[d] == top[d] else 0.0
                else:
                    for a in range(count):
                        field = power[causes[a]]
                        for d in range(D):
                            total[d] += exp(max(rho * (field[d] - top[d]), FAR))
                    for d in range(D):
                        total[d] = log(total[d])
                    for a in range(count):
                        field, part = power[causes[a]], share[members[k, a]]
                        for d in range(D):
                            part[d] += q * exp(outer * (max(rho * (field[d] - top[d]), FAR) - total[d]))
        for i in range(C):
            h = candidates[n, i]
            alone[h] += single[i]
            for d in range(D):
                numerator[h, d] += (share[i, d] + single[i]) * Y[n, d]
                denominator[h, d] += share[i, d]
        for h in range(singletons.shape[1]):
            q = singletons[n, h]
            if q >= NEGLIGIBLE:
                alone[h] += q
                for d in range(D):
                    numerator[h, d] += q * Y[n, d]
