"""Kinds of covariances that the clusters of a Gaussian mixture have: what they are, how they are learned."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.linalg import LinAlgError

from parallel_et.core.states import best
from parallel_et.core.terms import Block, Params, Statistic
from parallel_et.kernels import mixture
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.parts.fields import rows_of
from parallel_et.models.parts.mixture import Form, JointForm, each_cluster

LEAST = 1e-100
"""Least variance."""
ROUNDING = 2.0**-46
"""Rounding error of a variance that is a difference, relative to the second moment from which a square is taken."""
FLAT = 1e-12
"""Least eigenvalue of a correlation matrix: of a covariance in units in which each dimension has the variance 1."""


def round_form(table: np.ndarray, precision: np.ndarray, bias: np.ndarray, centre: np.ndarray) -> Form:
    """Of bias_c - precision_c |y - w_c|^2 / 2; table (C, width), precision and bias (C,), centre (D,) of all points."""
    D = len(centre)
    W, half = table[:, :D] - centre, 0.5 * precision

    def features(rows: np.ndarray) -> tuple[np.ndarray, ...]:
        Z = rows[:, :D] - centre
        return Z, np.einsum("nd,nd->n", Z, Z)[:, None], np.ones((len(Z), 1))

    constant = bias - half * np.einsum("cd,cd->c", W, W)
    weights = (precision[:, None] * W, -half[:, None], constant[:, None])
    return Form(mixture.ROUND, table, half, bias, weights, features)


@dataclass(frozen=True)
class FullForm:
    """Of bias_c - |(y - w_c) R_c|^2 / 2: a product for each cluster; W (C, D), R (C, D, D), bias (C,)."""

    W: np.ndarray
    R: np.ndarray
    bias: np.ndarray

    def seen(self, rows: np.ndarray) -> np.ndarray:
        """Points (n, width) as all below takes them, (n, D)."""
        return rows[:, : self.W.shape[1]]

    def _of(self, Y: np.ndarray, c: int) -> np.ndarray:
        white = (Y - self.W[c]) @ self.R[c]
        return self.bias[c] - 0.5 * np.einsum("nd,nd->n", white, white)

    def log_states(self, Y: np.ndarray, clusters: np.ndarray) -> np.ndarray:
        """Of points and the clusters (n, K) that are listed for each, (n, K); -inf where one is negative."""
        logs = np.full(clusters.size, -np.inf)
        order = np.argsort(clusters, axis=None, kind="stable")
        which, start = np.unique(clusters.reshape(-1)[order], return_index=True)
        for c, some in zip(which.tolist(), np.split(order, start[1:]), strict=True):
            if c >= 0:
                logs[some] = self._of(Y[some // clusters.shape[1]], c)
        return logs.reshape(clusters.shape)

    def log_singles(self, Y: np.ndarray) -> np.ndarray:
        """Of points and all clusters, (n, C)."""
        return np.stack([self._of(Y, c) for c in range(len(self.bias))], 1)

    def nearest(self, Y: np.ndarray, count: int) -> np.ndarray:
        """The ``count`` clusters of largest joint, in rising order, (n, count); of equal ones those of lower index."""
        return best(self.log_singles(Y), count)


class Spherical:
    """One variance for each cluster, var (C,)."""

    axes: ClassVar[str] = "H"

    def __init__(self, dims: int, width: int, clusters: int) -> None:
        self.D, self.width, self.C = dims, width, clusters

    def of(self, variance: float) -> Any:
        """As wide in all directions."""
        return variance

    def along(self, variances: np.ndarray) -> Any:
        """Return covariances with these variances (D,) of the dimensions, or their mean."""
        return variances.mean()

    def variances(self, var: np.ndarray) -> np.ndarray:
        """Return the variances that covariances ``var`` have along the dimensions, or all as they are."""
        return np.asarray(var)

    def inside(self, var: np.ndarray) -> np.ndarray:
        """Without variances that are none."""
        return np.maximum(var, LEAST)

    def form(self, params: Params) -> JointForm:
        """Return the computation of log joints."""
        var, table = params["var"], rows_of(params)
        bias = np.log(params["pi"]) - 0.5 * self.D * np.log(2 * np.pi * var)
        return round_form(table, 1 / var, bias, params["W"].mean(1))

    def sums(self, square: Any) -> dict[str, Statistic]:
        """Its statistics; ``square`` is the bound of (y_d - w_cd)^2."""
        return {"squares": Statistic((self.C,), lambda params, summary: self.D * square(params, summary))}

    def collect(self, W: np.ndarray, block: Block, members: Any, used: np.ndarray, total: Any) -> None:
        """Add what the kernel does not: all but sums of squares. W (D, C) are the means of the E-step."""

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        """What is kept of the mean of (y - w_c)(y - w_c)^T, for clusters that were moved by (C, D) since the E-step.

        It follows from the sums of the gaps (C, D), and of their squares, to the old w_c; clusters without points have
        no number.
        """
        squares = self.carried(sums, gaps, old, move)["squares"]
        return np.maximum(squares, ROUNDING * sums["squares"]) / sums["active"] / self.D

    def carried(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        """Its statistics as they are of clusters that were moved by (C, D) since the E-step."""
        rest = move * (sums["active"][:, None] * move - 2 * gaps)
        return {"squares": sums["squares"] + rest.sum(1)}

    def settle(self, old: np.ndarray, new: np.ndarray, used: np.ndarray, least: np.ndarray) -> np.ndarray:
        """Return the new ones, or the old ones for clusters that are not used (C,).

        Those of a dimension are at least its ``least`` variance (D,).
        """
        return np.where(used, np.maximum(new, self.along(np.maximum(least, LEAST))), old)

    def spread(self, params: Params, c: np.ndarray, white: np.ndarray) -> np.ndarray:
        """White noise (n, D) made that of the clusters c (n,)."""
        return np.sqrt(params["var"])[c, None] * white

    def log_density(self, params: Params, gap: np.ndarray, c: np.ndarray) -> np.ndarray:
        """log p(y | c) for y - w_c (..., D) and c (...)."""
        return normal(gap, params["var"][c][..., None])


class Diagonal(Spherical):
    """One variance for each cluster and dimension, var (D, C)."""

    axes = "DH"

    def along(self, variances: np.ndarray) -> Any:
        return variances[:, None]

    def form(self, params: Params) -> JointForm:
        D, centre, table = self.D, params["W"].mean(1), rows_of(params)
        precision = 1 / params["var"].T
        W = params["W"].T - centre
        bias = np.log(params["pi"]) - 0.5 * np.log(2 * np.pi * params["var"]).sum(0)
        constant = bias - 0.5 * np.einsum("cd,cd,cd->c", W, W, precision)

        def features(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            Z = rows[:, :D] - centre
            return Z, Z * Z, np.ones((len(Z), 1))

        scale = pad_rows(0.5 * precision).reshape(-1)
        weights = (precision * W, -0.5 * precision, constant[:, None])
        return Form(mixture.ALONG, table, scale, bias, weights, features)

    def sums(self, square: Any) -> dict[str, Statistic]:
        return {"squares": Statistic((self.C * self.width,), square)}

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        squares = np.maximum(self.carried(sums, gaps, old, move)["squares"], ROUNDING * sums["squares"])
        return (squares.reshape(self.C, self.width)[:, : self.D] / sums["active"][:, None]).T

    def carried(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        squares = sums["squares"].copy()
        squares.reshape(self.C, self.width)[:, : self.D] += move * (sums["active"][:, None] * move - 2 * gaps)
        return {"squares": squares}

    def spread(self, params: Params, c: np.ndarray, white: np.ndarray) -> np.ndarray:
        return np.sqrt(params["var"].T)[c] * white

    def log_density(self, params: Params, gap: np.ndarray, c: np.ndarray) -> np.ndarray:
        return normal(gap, params["var"].T[c])


class Full(Spherical):
    """One covariance for each cluster, var (C, D, D)."""

    axes = "HDD"

    def of(self, variance: float) -> Any:
        return variance * np.eye(self.D)

    def along(self, variances: np.ndarray) -> Any:
        return np.diag(variances)

    def variances(self, var: np.ndarray) -> np.ndarray:
        return np.diagonal(var, axis1=-2, axis2=-1)

    def inside(self, var: np.ndarray) -> np.ndarray:
        return positive(var)

    def form(self, params: Params) -> JointForm:
        root = roots(params["var"])
        bias = np.log(params["pi"]) - 0.5 * self.D * np.log(2 * np.pi) - log_diagonal(root)
        return FullForm(np.ascontiguousarray(params["W"].T), inverse(root), bias)

    def sums(self, square: Any) -> dict[str, Statistic]:
        return {"products": Statistic((self.C, self.D, self.D), square)}

    def collect(self, W: np.ndarray, block: Block, members: Any, used: np.ndarray, total: Any) -> None:
        products = np.zeros((self.C, self.D, self.D))
        for c, points, q in each_cluster(members):
            gap = block.Y[points] - W[:, c]
            products[c] = (q[:, None] * gap).T @ gap
        total.add("products", products)

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        products = self.carried(sums, gaps, old, move)["products"]
        return with_ridge(products, sums["products"]) / sums["active"][:, None, None]

    def carried(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        cross = (gaps - 0.5 * sums["active"][:, None] * move)[:, :, None] * move[:, None]
        return {"products": sums["products"] - cross - cross.transpose(0, 2, 1)}

    def settle(self, old: np.ndarray, new: np.ndarray, used: np.ndarray, least: np.ndarray) -> np.ndarray:
        return positive(np.where(used[:, None, None], new, old), least)

    def spread(self, params: Params, c: np.ndarray, white: np.ndarray) -> np.ndarray:
        root = np.broadcast_to(roots(params["var"]), (self.C, self.D, self.D))
        return np.einsum("nij,nj->ni", root[c], white)

    def log_density(self, params: Params, gap: np.ndarray, c: np.ndarray) -> np.ndarray:
        root = roots(params["var"])
        c = np.minimum(c, len(root) - 1)
        white = np.einsum("...d,...de->...e", gap, inverse(root)[c])
        return -0.5 * (white * white).sum(-1) - log_diagonal(root)[c] - 0.5 * self.D * np.log(2 * np.pi)


class Tied(Full):
    """One covariance for all clusters, var (1, D, D)."""

    axes = "1DD"

    def form(self, params: Params) -> JointForm:
        D, centre, root = self.D, params["W"].mean(1), roots(params["var"])
        R = inverse(root)[0]
        table = pad_rows((params["W"].T - centre) @ R)
        bias = np.log(params["pi"]) - 0.5 * D * np.log(2 * np.pi) - log_diagonal(root)
        form = round_form(table, np.ones(self.C), bias, np.zeros(D))
        return replace(form, whiten=lambda rows: (rows[:, :D] - centre) @ R)

    def sums(self, square: Any) -> dict[str, Statistic]:
        return {"products": Statistic((self.D, self.D), square)}

    def collect(self, W: np.ndarray, block: Block, members: Any, used: np.ndarray, total: Any) -> None:
        products = np.zeros((self.D, self.D))
        for c, points, q in each_cluster(members):
            gap = block.Y[points] - W[:, c]
            products += (q[:, None] * gap).T @ gap
        total.add("products", products)

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        products = self.carried(sums, gaps, old, move)["products"]
        return with_ridge(products[None], sums["products"][None]) / sums["active"].sum()

    def carried(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        cross = (gaps - 0.5 * sums["active"][:, None] * move).T @ move
        return {"products": sums["products"] - cross - cross.T}

    def settle(self, old: np.ndarray, new: np.ndarray, used: np.ndarray, least: np.ndarray) -> np.ndarray:
        return positive(new, least)


def normal(gap: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Log density of independent gaps (..., D) of the variances (..., D) or (..., 1)."""
    return -0.5 * (gap * gap / var + np.log(2 * np.pi * var)).sum(-1)


def with_ridge(products: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return products (k, D, D) with their rounding error added to the diagonal, from those ``before`` a difference."""
    found, each = products.copy(), np.arange(products.shape[-1])
    found[:, each, each] += ROUNDING * before[:, each, each]
    return found


def log_diagonal(root: np.ndarray) -> np.ndarray:
    """Half the logarithm of the determinants of covariances with these roots, (k,)."""
    return np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)


def inverse(root: np.ndarray) -> np.ndarray:
    """R with |(y - w) R|^2 = (y - w)^T covariance^-1 (y - w), from the roots of covariances, (k, D, D)."""
    return np.ascontiguousarray(np.linalg.inv(root).transpose(0, 2, 1))


def roots(var: np.ndarray) -> np.ndarray:
    """The lower triangles L L^T = var, (k, D, D)."""
    return np.linalg.cholesky(positive(np.ascontiguousarray(var)))


def positive(var: np.ndarray, least: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the same covariances (k, D, D), unless one is singular or below the ``least`` variance of a dimension.

    Then the variances of the dimensions are at least these, and the eigenvalues of the correlations at least ``FLAT``,
    whatever the units of the dimensions are. A dimension without variance and without a least one gets the share
    ``FLAT`` of the largest.
    """
    var = 0.5 * (var + var.transpose(0, 2, 1))
    variances = np.diagonal(var, axis1=1, axis2=2)
    floor = np.where(least > LEAST, least, np.maximum(LEAST, FLAT * variances.max(1, keepdims=True)))
    inside = np.where(variances > np.maximum(least, LEAST), variances, floor)
    scale = np.sqrt(inside)
    correlation = np.clip(var / scale[:, :, None] / scale[:, None], -1.0, 1.0)
    try:
        pivots = np.diagonal(np.linalg.cholesky(correlation), axis1=1, axis2=2) ** 2
        if (pivots > FLAT).all() and (variances == inside).all():
            return var
    except LinAlgError:
        pass
    each = np.arange(var.shape[1])
    correlation[:, each, each] = 1.0
    values, vectors = np.linalg.eigh(correlation)
    nearest = (vectors * np.maximum(values, 2 * FLAT)[:, None]) @ vectors.transpose(0, 2, 1)
    return 0.5 * (nearest + nearest.transpose(0, 2, 1)) * scale[:, :, None] * scale[:, None]


KINDS = {"spherical": Spherical, "diagonal": Diagonal, "full": Full, "tied": Tied}
