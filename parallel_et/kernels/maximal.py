"""States and statistics of models whose mean is the elementwise maximum of the active causes' fields."""

import numpy as np

from parallel_et.kernels import NEGLIGIBLE, kernel, reducing
from parallel_et.kernels.math import exp, log

UNDERFLOW = 1e-290


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


@kernel("void(float64[:,::1], float64, int32[::1], int64, float64, float64[:,::1])")
def _shares_by_maximum(WT, rho, causes, count, q, shares):
    """Add q A^rho of a state to shares (gamma, D), relative to the largest field: for any rho, also infinite."""
    outer = 1.0 if np.isinf(rho) else (rho - 1.0) / rho
    for d in range(WT.shape[1]):
        top = 0.0
        for a in range(count):
            top = max(top, WT[causes[a], d])
        total = 0.0
        for a in range(count):
            w = WT[causes[a], d]
            if w == top:
                total += 1.0
            elif not np.isinf(rho):
                total += (w / top) ** rho
        for a in range(count):
            w = WT[causes[a], d]
            if w == top:
                shares[a, d] += q * (1.0 / total) ** outer
            elif not np.isinf(rho):
                shares[a, d] += q * ((w / top) ** rho / total) ** outer


@kernel(
    "void(float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], float64, float64[:,::1], float64[:,::1], "
    "int32[:,::1], boolean[::1], int32[::1], int32[:,::1], float64[:,::1], float64[:,::1], float64[::1])"
)
def weighted_sums(
    Y, WT, power, lower, rho, states, singletons, candidates, used, size, members, numerator, denominator, alone
):
    """Sums over the used points of <A_dh> y_d and <A_dh> (ET eq. 30), A^rho of eq. 36, which is 1 for a single cause.

    Y (n, D); WT, power = W^rho and lower = W^(rho - 1), each (H, D) and relative to the largest field of a dimension;
    states (K, n), singletons (n, H) or (n, 0), candidates (n, H'), used (n,), members (K, gamma).
    numerator and denominator (H, D) and alone (H,) are added to; alone is the part of the denominator that is the same
    in all dimensions. Costs |s| D operations and D powers a state of two and more causes, if not negligible.
    """
    N, D = Y.shape
    C = candidates.shape[1]
    exponent = -1.0 if np.isinf(rho) else (1.0 - rho) / rho
    share = np.empty((C, D))
    single = np.empty(C)
    gathered = np.empty((members.shape[1], D))
    causes = np.empty(members.shape[1], np.int32)
    total = np.empty(D)
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
            total[:] = 0.0
            for a in range(count):
                for d in range(D):
                    total[d] += power[causes[a], d]
            least = np.inf
            for d in range(D):
                least = min(least, total[d])
            if least < UNDERFLOW or np.isinf(rho):
                gathered[:count] = 0.0
                _shares_by_maximum(WT, rho, causes, count, q, gathered)
                for a in range(count):
                    for d in range(D):
                        share[members[k, a], d] += gathered[a, d]
            else:
                for d in range(D):
                    total[d] = q * exp(exponent * log(total[d]))
                for a in range(count):
                    for d in range(D):
                        share[members[k, a], d] += lower[causes[a], d] * total[d]
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
