"""Kinds of covariances that the clusters of a Gaussian mixture have: what they are, how they are learned."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.linalg import LinAlgError

from parallel_et.core.latent_states import best
from parallel_et.core.types import Block, Params, Statistic, Summary
from parallel_et.kernels import mixture
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.components.fields import rows_of
from parallel_et.models.components.mixture import Form, JointForm, each_cluster

Reach = Callable[[Params, Summary], np.ndarray]
"""The bounds of a statistic, from the parameters and what the data are like."""
LEAST = 1e-100
"""Least variance."""
SHARE = 2.0**-56
"""Least variance of a cluster in a dimension, relative to the variance of all points. It exceeds the rounding errors of
data that are up to 2^20 standard deviations away from zero."""
ROUNDING = 2.0**-46
"""Rounding error of a variance that is a difference, relative to the second moment from which a square is taken."""
RANK = 2.0**-50
"""Rounding error of an eigenvalue of products, relative to the same and for each dimension."""
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
        """Return the variances that covariances ``var`` have along the dimensions, (..., D) or (..., 1)."""
        return np.asarray(var)[..., None]

    def inside(self, var: np.ndarray) -> np.ndarray:
        """Without variances that are none."""
        return np.maximum(var, LEAST)

    def form(self, params: Params) -> JointForm:
        """Return the computation of log joints."""
        var, table = params["var"], rows_of(params)
        bias = np.log(params["pi"]) - 0.5 * self.D * np.log(2 * np.pi * var)
        return round_form(table, 1 / var, bias, params["W"].mean(1))

    def sums(self, reach: Reach) -> dict[str, Statistic]:
        """Its statistics; ``reach`` returns the bounds of |y_d - w_cd|, (width,)."""

        def bound(params: Params, summary: Summary) -> np.ndarray:
            return (reach(params, summary) ** 2).sum(keepdims=True)

        return {"squares": Statistic((self.C,), bound)}

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

    def squares_along(self, sums: Any) -> np.ndarray:
        """Return the sums of squares along the dimensions (D,) over all clusters, or their mean."""
        return np.full(self.D, sums["squares"].sum() / self.D)

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

    def variances(self, var: np.ndarray) -> np.ndarray:
        return var.T

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

    def sums(self, reach: Reach) -> dict[str, Statistic]:
        return {"squares": Statistic((self.C, self.width), lambda params, summary: reach(params, summary) ** 2)}

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        squares = np.maximum(self.carried(sums, gaps, old, move)["squares"], ROUNDING * sums["squares"])
        return (squares[:, : self.D] / sums["active"][:, None]).T

    def carried(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        squares = sums["squares"].copy()
        squares[:, : self.D] += move * (sums["active"][:, None] * move - 2 * gaps)
        return {"squares": squares}

    def squares_along(self, sums: Any) -> np.ndarray:
        return sums["squares"][:, : self.D].sum(0)

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

    def sums(self, reach: Reach) -> dict[str, Statistic]:
        return {"products": Statistic((self.C, self.D, self.D), bound_of_products(reach, self.D))}

    def collect(self, W: np.ndarray, block: Block, members: Any, used: np.ndarray, total: Any) -> None:
        products = np.zeros((self.C, self.D, self.D))
        for c, points, q in each_cluster(members):
            gap = block.Y[points] - W[:, c]
            products[c] = (q[:, None] * gap).T @ gap
        total.add("products", products)

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        products = self.carried(sums, gaps, old, move)["products"]
        return without_rounding(products, sums["products"]) / sums["active"][:, None, None]

    def carried(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        cross = (gaps - 0.5 * sums["active"][:, None] * move)[:, :, None] * move[:, None]
        return {"products": sums["products"] - cross - cross.transpose(0, 2, 1)}

    def squares_along(self, sums: Any) -> np.ndarray:
        return np.einsum("cdd->d", sums["products"])

    def settle(self, old: np.ndarray, new: np.ndarray, used: np.ndarray, least: np.ndarray) -> np.ndarray:
        return lifted(positive(np.where(used[:, None, None], new, old), least), least)

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

    def sums(self, reach: Reach) -> dict[str, Statistic]:
        return {"products": Statistic((self.D, self.D), bound_of_products(reach, self.D))}

    def collect(self, W: np.ndarray, block: Block, members: Any, used: np.ndarray, total: Any) -> None:
        products = np.zeros((self.D, self.D))
        for c, points, q in each_cluster(members):
            gap = block.Y[points] - W[:, c]
            products += (q[:, None] * gap).T @ gap
        total.add("products", products)

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        products = self.carried(sums, gaps, old, move)["products"]
        return without_rounding(products[None], sums["products"][None]) / sums["active"].sum()

    def carried(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        cross = (gaps - 0.5 * sums["active"][:, None] * move).T @ move
        return {"products": sums["products"] - cross - cross.T}

    def squares_along(self, sums: Any) -> np.ndarray:
        return np.diagonal(sums["products"])

    def settle(self, old: np.ndarray, new: np.ndarray, used: np.ndarray, least: np.ndarray) -> np.ndarray:
        return lifted(positive(new, least), least)


def normal(gap: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Log density of independent gaps (..., D) of the variances (..., D) or (..., 1)."""
    return -0.5 * (gap * gap / var + np.log(2 * np.pi * var)).sum(-1)


def bound_of_products(reach: Reach, dims: int) -> Reach:
    """Return the function of the bounds of products of two gaps, (D, D)."""

    def bound(params: Params, summary: Summary) -> np.ndarray:
        most = reach(params, summary)[:dims]
        return np.multiply.outer(most, most)

    return bound


def without_rounding(products: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return products (k, D, D), a difference of those ``before``, with rounding errors replaced by 0.

    These are eigenvalues below ``RANK`` times D, in units in which the products before have the diagonal 1. A cluster
    of few points is then as singular as its points make it, and its floor does not depend on rounding errors.
    """
    scale = np.sqrt(np.diagonal(before, axis1=1, axis2=2))
    return raised(products, np.where(scale > 0, scale, 1.0), RANK * products.shape[-1], 0.0)


def log_diagonal(root: np.ndarray) -> np.ndarray:
    """Half the logarithm of the determinants of covariances with these roots, (k,)."""
    return np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)


def inverse(root: np.ndarray) -> np.ndarray:
    """R with |(y - w) R|^2 = (y - w)^T covariance^-1 (y - w), from the roots of covariances, (k, D, D)."""
    size = np.sqrt((root * root).sum(2))[:, :, None]  # so that the units of the dimensions do not matter
    return np.ascontiguousarray(np.linalg.inv(root / size).transpose(0, 2, 1) / size)


def roots(var: np.ndarray) -> np.ndarray:
    """The lower triangles L L^T = var, (k, D, D)."""
    return np.linalg.cholesky(positive(np.ascontiguousarray(var)))


def positive(var: np.ndarray, least: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the same covariances (k, D, D), unless one is singular or below the ``least`` variance of a dimension.

    Then the variances of the dimensions are at least these, and the eigenvalues of the correlations at least ``FLAT``,
    whatever the units of the dimensions are. A dimension without variance and without a least one gets the share
    ``FLAT`` of the largest. Correlations of a dimension at its floor are unknown, and become 0.
    """
    var = 0.5 * (var + var.transpose(0, 2, 1))
    variances = np.diagonal(var, axis1=1, axis2=2)
    floor = np.where(least > LEAST, least, np.maximum(LEAST, FLAT * variances.max(1, keepdims=True)))
    known = variances > np.maximum(least, LEAST)
    if not known.all():
        each = np.arange(var.shape[1])
        var = np.where(known[:, :, None] & known[:, None], var, 0.0)
        var[:, each, each] = np.where(known, variances, floor)
    return raised(var, np.sqrt(np.diagonal(var, axis1=1, axis2=2)), FLAT, FLAT)


def lifted(var: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Return covariances (k, D, D) with at least the variance ``least`` (D,) in every direction.

    The share of ``least`` that a covariance lacks is added to its diagonal: no digits are lost where dimensions differ.
    """
    scale = np.sqrt(np.maximum(least, LEAST))
    R = inverse(np.linalg.cholesky(var / scale[:, None] / scale))
    lack = np.zeros(len(var))
    some = np.square(R).sum((1, 2)) > 1
    lack[some] = np.maximum(0.0, 1 - np.linalg.norm(R[some], 2, axis=(1, 2)) ** -2.0)
    return var + lack[:, None, None] * np.diag(scale**2)


def raised(var: np.ndarray, scale: np.ndarray, least: float, other: float) -> np.ndarray:
    """Return symmetric matrices (k, D, D) whose eigenvalues below the ``least`` are replaced by an ``other`` value.

    The eigenvalues are those in the units ``scale`` (k, D). Matrices without small eigenvalues stay as they are.
    """
    units = scale[:, :, None] * scale[:, None]
    own = var / units
    try:
        # the least eigenvalue is at least the inverse of the sum of squares of the inverted root
        if (np.square(np.linalg.inv(np.linalg.cholesky(own))).sum((1, 2)) < 1 / least).all():
            return var
    except LinAlgError:
        pass
    values, vectors = np.linalg.eigh(own)
    small = np.less(values, least)
    half = vectors * np.sqrt(np.where(small, other, np.maximum(values, 0.0)))[:, None]
    return np.where(small.any(1)[:, None, None], half @ half.transpose(0, 2, 1) * units, var)


KINDS = {"spherical": Spherical, "diagonal": Diagonal, "full": Full, "tied": Tied}
