"""Regression by a Gaussian process of low rank: kernels, pivots, features, and the fit of a kernel (TH sec. 4.4).

With pivots P the kernel K of all points is approximated by F F^T, with F = K_P L^-T and L L^T = K_PP. This is the
incomplete Cholesky decomposition, which is exact if all points are pivots.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

MAX_STEPS = 20
"""Largest number of steps of the optimiser, as in the thesis."""
LENGTH_LIMITS = (0.2, 5.0)
"""Limits of the length of the RBF term, in median distances of points."""
VARIANCE_LIMITS = (1e-6, 1e2)
"""Limits of the variances of the terms of a kernel."""
NOISE_LIMITS = (1e-4, 1e1)
"""Limits of the variance of the white term."""


class Kernel(NamedTuple):
    """A kernel: variances of the linear, RBF, constant and white term, and the length of the RBF term.

    Points must be centred, and in units of their median distance.
    """

    linear: float
    rbf: float
    length: float
    bias: float
    white: float

    def between(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        """Return the kernel of all pairs of a row of A (n, D) and a row of B (m, D), without the white term; (n, m)."""
        if not self.rbf:
            return self.linear * (A @ B.T) + self.bias
        product, scale = A @ (B.T / self.length**2), 0.5 / self.length**2
        most = float(np.log(self.rbf))
        curve = product - scale * np.einsum("nd,nd->n", A, A)[:, None]
        curve += most - scale * np.einsum("md,md->m", B, B)
        np.minimum(curve, most, out=curve)  # else rounding could make a distance imaginary
        np.exp(curve, out=curve)
        if self.linear:
            product *= self.linear * self.length**2
            product += self.bias
            curve += product
        return curve

    def itself(self, A: np.ndarray) -> np.ndarray:
        """Return the kernel of each row of A (n, D) with itself, (n,)."""
        return self.linear * np.einsum("nd,nd->n", A, A) + self.rbf + self.bias


INITIAL_KERNELS = {
    "linear": Kernel(0.1, 0.0, 1.0, 0.0, 0.05),
    "rbf": Kernel(0.0, 0.1, 1.0, 0.0, 0.05),
    "composed": Kernel(0.1, 0.1, 1.0, 0.1, 0.05),
}
"""Kernels before the first fit, by name. Terms that are zero stay zero."""


def choose_pivots(kernel: Kernel, points: np.ndarray, rank: int, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Choose at most ``rank`` of the points (m, D) as pivots, (r,); return them and L^-T, (r, r).

    Each pivot is the point with the largest variance given the earlier pivots. The search ends if that variance is
    below ``least`` times the largest variance.
    """
    left = kernel.itself(points)
    floor, columns, taken = least * left.max(), np.zeros((rank, len(points))), list[int]()
    for k in range(rank):
        p = int(np.argmax(left))
        if left[p] <= floor:
            break
        column = kernel.between(points, points[p : p + 1])[:, 0] - columns[:k, p] @ columns[:k]
        columns[k] = column / np.sqrt(left[p])
        left -= columns[k] ** 2
        left[p] = -np.inf
        taken.append(p)
    L = np.tril(columns[: len(taken), taken].T)
    return np.array(taken, int), solve_triangular(L, np.eye(len(taken)), lower=True).T


def root_of(gram: np.ndarray, white: float) -> np.ndarray:
    """Return C^-T with C C^T = F^T F + white. Weights are then C^-T C^-1 F^T s, and leverages |F C^-T|^2."""
    C = cholesky(gram + white * np.eye(len(gram)), lower=True)
    return solve_triangular(C, np.eye(len(gram)), lower=True).T


def log_likelihood(
    logs: np.ndarray, free: list[int], old: Kernel, pairs: tuple[np.ndarray, np.ndarray], targets: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the log marginal likelihood of targets (m, H) and its gradient, for logarithms of kernel parameters.

    ``pairs`` are the products and the squared distances of all pairs of points, (m, m).
    """
    kernel = old._replace(**{Kernel._fields[i]: float(np.exp(x)) for i, x in zip(free, logs, strict=True)})
    products, squares = pairs
    m, H = targets.shape
    curve = np.exp(-0.5 * squares / kernel.length**2)
    K = kernel.linear * products + kernel.rbf * curve + kernel.bias
    K[np.diag_indices(m)] += kernel.white
    C = cholesky(K, lower=True)
    alpha = cho_solve((C, True), targets)
    inner = alpha @ alpha.T - H * cho_solve((C, True), np.eye(m))
    value = -0.5 * np.vdot(targets, alpha) - H * (np.log(np.diag(C)).sum() + 0.5 * m * np.log(2 * np.pi))
    slopes = (
        lambda: kernel.linear * np.vdot(inner, products),
        lambda: kernel.rbf * np.vdot(inner, curve),
        lambda: kernel.rbf * np.vdot(inner, curve * squares) / kernel.length**2,
        lambda: kernel.bias * inner.sum(),
        lambda: kernel.white * np.trace(inner),
    )
    return value, np.array([0.5 * slopes[i]() for i in free])


def fit_kernel(kernel: Kernel, points: np.ndarray, targets: np.ndarray) -> Kernel:
    """Return the kernel that maximises the marginal likelihood, with the same terms and within the limits."""
    free = [i for i, value in enumerate(kernel) if value and (Kernel._fields[i] != "length" or kernel.rbf)]
    limits = {"length": LENGTH_LIMITS, "white": NOISE_LIMITS}
    bounds = [tuple(np.log(limits.get(Kernel._fields[i], VARIANCE_LIMITS))) for i in free]
    products = points @ points.T
    norms = np.diag(products)
    pairs = products, np.maximum(norms[:, None] + norms - 2 * products, 0.0)

    def cost(logs: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = log_likelihood(logs, free, kernel, pairs, targets)
        return -value / targets.size, -slope / targets.size

    initial = np.log([kernel[i] for i in free])
    found = minimize(cost, initial, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MAX_STEPS})
    return kernel._replace(**{Kernel._fields[i]: float(np.exp(x)) for i, x in zip(free, found.x, strict=True)})
