"""Regression by a Gaussian process of low rank: kernels, pivots, features, and the fit of a kernel (TH sec. 4.4).

With pivots P the kernel K of all points is taken for F F^T, F = K_P L^-T and L L^T = K_PP, the incomplete Cholesky
decomposition; where all points are pivots that is K itself.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

STEPS = 20
"""Steps of the optimiser at most, as in the thesis."""
LENGTHS, VARIANCES, NOISES = (0.2, 5.0), (1e-6, 1e2), (1e-4, 1e1)
"""Limits of a length, in median distances of points, of variances of a kernel and of those of the white term."""


class Kernel(NamedTuple):
    """Variances of the linear, the RBF and the constant term and of white noise, and the length of the RBF term.

    Points are to be centred, and in units of their median distance.
    """

    linear: float
    rbf: float
    length: float
    bias: float
    white: float

    def between(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        """Of all pairs of a row of A (n, D) and one of B (m, D), without white noise; (n, m)."""
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
        """Of each row of A (n, D) with itself, (n,)."""
        return self.linear * np.einsum("nd,nd->n", A, A) + self.rbf + self.bias


START = {
    "linear": Kernel(0.1, 0.0, 1.0, 0.0, 0.05),
    "rbf": Kernel(0.0, 0.1, 1.0, 0.0, 0.05),
    "composed": Kernel(0.1, 0.1, 1.0, 0.1, 0.05),
}
"""Kernels before the first fit, by name; what is zero stays so."""


def pivoted(kernel: Kernel, points: np.ndarray, rank: int, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Which of the points (m, D) are pivots, (r,), and L^-T for them, (r, r): r <= rank.

    Each is the one that those before it explain least; none is added for less than this share of the largest variance.
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
    """C^-T, with C C^T = F^T F + white: by it weights are C^-T C^-1 F^T s, and leverages |F C^-T|^2."""
    C = cholesky(gram + white * np.eye(len(gram)), lower=True)
    return solve_triangular(C, np.eye(len(gram)), lower=True).T


def likelihood(
    logs: np.ndarray, free: list[int], old: Kernel, parts: tuple[np.ndarray, np.ndarray], targets: np.ndarray
) -> tuple[float, np.ndarray]:
    """Log marginal likelihood of the targets (m, H) for logarithms of the free numbers of a kernel, and its gradient.

    ``parts`` are the products and the squared distances of all pairs of points, (m, m).
    """
    kernel = old._replace(**{Kernel._fields[i]: float(np.exp(x)) for i, x in zip(free, logs, strict=True)})
    products, squares = parts
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


def fitted(kernel: Kernel, points: np.ndarray, targets: np.ndarray) -> Kernel:
    """The kernel of most marginal likelihood that the optimiser finds, of the same terms, within the limits."""
    free = [i for i, value in enumerate(kernel) if value and (Kernel._fields[i] != "length" or kernel.rbf)]
    limits = {"length": LENGTHS, "white": NOISES}
    bounds = [tuple(np.log(limits.get(Kernel._fields[i], VARIANCES))) for i in free]
    products = points @ points.T
    norms = np.diag(products)
    parts = products, np.maximum(norms[:, None] + norms - 2 * products, 0.0)

    def cost(logs: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = likelihood(logs, free, kernel, parts, targets)
        return -value / targets.size, -slope / targets.size

    begin = np.log([kernel[i] for i in free])
    found = minimize(cost, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    return kernel._replace(**{Kernel._fields[i]: float(np.exp(x)) for i, x in zip(free, found.x, strict=True)})
