"""Covariances of the clusters of a Gaussian mixture: spherical, diagonal, full and tied, each with its M-step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.linalg import LinAlgError

from parallel_et.core.latent_states import best_atoms
from parallel_et.core.types import Block, Params, Statistic, Summary
from parallel_et.kernels import mixture
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.components.fields import rows_of
from parallel_et.models.components.mixture import ClusterDensity, FeatureDensity, each_cluster

GapBound = Callable[[Params, Summary], np.ndarray]
"""A function from parameters and a summary of the data to the bounds of a statistic."""
MIN_VARIANCE = 1e-100
"""Smallest variance."""
MIN_VARIANCE_FRACTION = 2.0**-56
"""Smallest variance of a cluster in a dimension, as a fraction of the variance of all points. It exceeds the rounding
errors of data that are up to 2^20 standard deviations away from zero."""
VARIANCE_ROUNDING = 2.0**-46
"""Rounding error of a variance that is the difference of a second moment and a square, relative to the moment."""
EIGENVALUE_ROUNDING = 2.0**-50
"""Rounding error of an eigenvalue of products, relative to the second moment and for each dimension."""
MIN_EIGENVALUE = 1e-12
"""Smallest eigenvalue of a correlation matrix."""


def spherical_density(table: np.ndarray, precision: np.ndarray, bias: np.ndarray, centre: np.ndarray) -> FeatureDensity:
    """Return the density bias_c - precision_c |y - w_c|^2 / 2.

    Parameters
    ----------
    table : (C, width) the means w_c
    precision, bias : (C,)
    centre : (D,) subtracted from points and means to keep digits
    """
    D = len(centre)
    W, half = table[:, :D] - centre, 0.5 * precision

    def features(rows: np.ndarray) -> tuple[np.ndarray, ...]:
        Z = rows[:, :D] - centre
        return Z, np.einsum("nd,nd->n", Z, Z)[:, None], np.ones((len(Z), 1))

    constant = bias - half * np.einsum("cd,cd->c", W, W)
    weights = (precision[:, None] * W, -half[:, None], constant[:, None])
    return FeatureDensity(mixture.SPHERICAL, table, half, bias, weights, features)


@dataclass(frozen=True)
class FullDensity:
    """The density bias_c - |(y - w_c) R_c|^2 / 2, one product per cluster; W (C, D), R (C, D, D), bias (C,)."""

    W: np.ndarray
    R: np.ndarray
    bias: np.ndarray

    def transform(self, rows: np.ndarray) -> np.ndarray:
        """Return points (n, width) without padding, (n, D)."""
        return rows[:, : self.W.shape[1]]

    def _of(self, Y: np.ndarray, c: int) -> np.ndarray:
        white = (Y - self.W[c]) @ self.R[c]
        return self.bias[c] - 0.5 * np.einsum("nd,nd->n", white, white)

    def log_states(self, Y: np.ndarray, clusters: np.ndarray) -> np.ndarray:
        """Return the log joints of clusters (n, K) listed for each point, (n, K); -inf for negative clusters."""
        logs = np.full(clusters.size, -np.inf)
        order = np.argsort(clusters, axis=None, kind="stable")
        which, start = np.unique(clusters.reshape(-1)[order], return_index=True)
        for c, some in zip(which.tolist(), np.split(order, start[1:]), strict=True):
            if c >= 0:
                logs[some] = self._of(Y[some // clusters.shape[1]], c)
        return logs.reshape(clusters.shape)

    def log_singletons(self, Y: np.ndarray) -> np.ndarray:
        """Return the log joints of all clusters, (n, C)."""
        return np.stack([self._of(Y, c) for c in range(len(self.bias))], 1)

    def most_probable(self, Y: np.ndarray, count: int) -> np.ndarray:
        """Return the ``count`` clusters with the largest joints, in ascending order, (n, count); ties: lower index."""
        return best_atoms(self.log_singletons(Y), count)


class Spherical:
    """Covariances with one variance for each cluster, var (C,)."""

    axes: ClassVar[str] = "H"

    def __init__(self, dims: int, width: int, clusters: int) -> None:
        self.D, self.width, self.C = dims, width, clusters

    def isotropic(self, variance: float) -> Any:
        """Return a covariance with the same variance in all directions."""
        return variance

    def along(self, variances: np.ndarray) -> Any:
        """Return a covariance with the variances (D,) of the dimensions, or with their mean."""
        return variances.mean()

    def variances(self, var: np.ndarray) -> np.ndarray:
        """Return the variances of the dimensions, (..., D) or (..., 1), of covariances ``var``."""
        return np.asarray(var)[..., None]

    def constrain(self, var: np.ndarray) -> np.ndarray:
        """Return covariances with positive variances."""
        return np.maximum(var, MIN_VARIANCE)

    def density(self, params: Params) -> ClusterDensity:
        """Return the density of the clusters."""
        var, table = params["var"], rows_of(params)
        bias = np.log(params["pi"]) - 0.5 * self.D * np.log(2 * np.pi * var)
        return spherical_density(table, 1 / var, bias, params["W"].mean(1))

    def sums(self, largest_gap: GapBound) -> dict[str, Statistic]:
        """Return the declared statistics; ``largest_gap`` returns the bounds of |y_d - w_cd|, (width,)."""

        def bound(params: Params, summary: Summary) -> np.ndarray:
            return (largest_gap(params, summary) ** 2).sum(keepdims=True)

        return {"squares": Statistic((self.C,), bound)}

    def collect(self, W: np.ndarray, block: Block, memberships: Any, used: np.ndarray, total: Any) -> None:
        """Add all statistics except sums of squares, which the kernel adds. W (D, C) are the means of the E-step."""

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        """Return the maximum-likelihood covariances of clusters whose means have moved by ``move`` (C, D).

        The statistics contain the gaps y - w_c (C, D) from the old means, and the squares of these gaps.
        A cluster without points gets NaN.
        """
        squares = self.adjust_sums(sums, gaps, old, move)["squares"]
        return np.maximum(squares, VARIANCE_ROUNDING * sums["squares"]) / sums["active"] / self.D

    def adjust_sums(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        """Return the statistics relative to means that have moved by ``move`` (C, D) since the E-step."""
        rest = move * (sums["active"][:, None] * move - 2 * gaps)
        return {"squares": sums["squares"] + rest.sum(1)}

    def squares_along(self, sums: Any) -> np.ndarray:
        """Return the sums of squares of the dimensions (D,) over all clusters, or their mean."""
        return np.full(self.D, sums["squares"].sum() / self.D)

    def update(self, old: np.ndarray, new: np.ndarray, used: np.ndarray, min_variance: np.ndarray) -> np.ndarray:
        """Return the new covariances of ``used`` clusters, (C,) bool, and the old ones of the other clusters.

        The variance of a dimension is at least its ``min_variance`` (D,).
        """
        return np.where(used, np.maximum(new, self.along(np.maximum(min_variance, MIN_VARIANCE))), old)

    def spread(self, params: Params, c: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return noise of the clusters c (n,), made from white noise (n, D)."""
        return np.sqrt(params["var"])[c, None] * white

    def log_density(self, params: Params, gap: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Return log p(y | c) for y - w_c (..., D) and c (...)."""
        return log_normal_density(gap, params["var"][c][..., None])


class Diagonal(Spherical):
    """Covariances with one variance for each cluster and dimension, var (D, C)."""

    axes = "DH"

    def along(self, variances: np.ndarray) -> Any:
        return variances[:, None]

    def variances(self, var: np.ndarray) -> np.ndarray:
        return var.T

    def density(self, params: Params) -> ClusterDensity:
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
        return FeatureDensity(mixture.DIAGONAL, table, scale, bias, weights, features)

    def sums(self, largest_gap: GapBound) -> dict[str, Statistic]:
        return {"squares": Statistic((self.C, self.width), lambda params, summary: largest_gap(params, summary) ** 2)}

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        squares = np.maximum(self.adjust_sums(sums, gaps, old, move)["squares"], VARIANCE_ROUNDING * sums["squares"])
        return (squares[:, : self.D] / sums["active"][:, None]).T

    def adjust_sums(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        squares = sums["squares"].copy()
        squares[:, : self.D] += move * (sums["active"][:, None] * move - 2 * gaps)
        return {"squares": squares}

    def squares_along(self, sums: Any) -> np.ndarray:
        return sums["squares"][:, : self.D].sum(0)

    def spread(self, params: Params, c: np.ndarray, white: np.ndarray) -> np.ndarray:
        return np.sqrt(params["var"].T)[c] * white

    def log_density(self, params: Params, gap: np.ndarray, c: np.ndarray) -> np.ndarray:
        return log_normal_density(gap, params["var"].T[c])


class Full(Spherical):
    """One covariance for each cluster, var (C, D, D)."""

    axes = "HDD"

    def isotropic(self, variance: float) -> Any:
        return variance * np.eye(self.D)

    def along(self, variances: np.ndarray) -> Any:
        return np.diag(variances)

    def variances(self, var: np.ndarray) -> np.ndarray:
        return np.diagonal(var, axis1=-2, axis2=-1)

    def constrain(self, var: np.ndarray) -> np.ndarray:
        return make_positive_definite(var)

    def density(self, params: Params) -> ClusterDensity:
        root = cholesky_factors(params["var"])
        bias = np.log(params["pi"]) - 0.5 * self.D * np.log(2 * np.pi) - half_log_determinants(root)
        return FullDensity(np.ascontiguousarray(params["W"].T), whitening_matrices(root), bias)

    def sums(self, largest_gap: GapBound) -> dict[str, Statistic]:
        return {"products": Statistic((self.C, self.D, self.D), product_bound(largest_gap, self.D))}

    def collect(self, W: np.ndarray, block: Block, memberships: Any, used: np.ndarray, total: Any) -> None:
        products = np.zeros((self.C, self.D, self.D))
        for c, points, q in each_cluster(memberships):
            gap = block.Y[points] - W[:, c]
            products[c] = (q[:, None] * gap).T @ gap
        total.add("products", products)

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        products = self.adjust_sums(sums, gaps, old, move)["products"]
        return remove_rounding_errors(products, sums["products"]) / sums["active"][:, None, None]

    def adjust_sums(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        cross = (gaps - 0.5 * sums["active"][:, None] * move)[:, :, None] * move[:, None]
        return {"products": sums["products"] - cross - cross.transpose(0, 2, 1)}

    def squares_along(self, sums: Any) -> np.ndarray:
        return np.einsum("cdd->d", sums["products"])

    def update(self, old: np.ndarray, new: np.ndarray, used: np.ndarray, min_variance: np.ndarray) -> np.ndarray:
        return add_variance_floor(
            make_positive_definite(np.where(used[:, None, None], new, old), min_variance), min_variance
        )

    def spread(self, params: Params, c: np.ndarray, white: np.ndarray) -> np.ndarray:
        root = np.broadcast_to(cholesky_factors(params["var"]), (self.C, self.D, self.D))
        return np.einsum("nij,nj->ni", root[c], white)

    def log_density(self, params: Params, gap: np.ndarray, c: np.ndarray) -> np.ndarray:
        root = cholesky_factors(params["var"])
        c = np.minimum(c, len(root) - 1)
        white = np.einsum("...d,...de->...e", gap, whitening_matrices(root)[c])
        return -0.5 * (white * white).sum(-1) - half_log_determinants(root)[c] - 0.5 * self.D * np.log(2 * np.pi)


class Tied(Full):
    """One covariance for all clusters, var (1, D, D)."""

    axes = "1DD"

    def density(self, params: Params) -> ClusterDensity:
        D, centre, root = self.D, params["W"].mean(1), cholesky_factors(params["var"])
        R = whitening_matrices(root)[0]
        table = pad_rows((params["W"].T - centre) @ R)
        bias = np.log(params["pi"]) - 0.5 * D * np.log(2 * np.pi) - half_log_determinants(root)
        density = spherical_density(table, np.ones(self.C), bias, np.zeros(D))
        return replace(density, whiten=lambda rows: (rows[:, :D] - centre) @ R)

    def sums(self, largest_gap: GapBound) -> dict[str, Statistic]:
        return {"products": Statistic((self.D, self.D), product_bound(largest_gap, self.D))}

    def collect(self, W: np.ndarray, block: Block, memberships: Any, used: np.ndarray, total: Any) -> None:
        products = np.zeros((self.D, self.D))
        for c, points, q in each_cluster(memberships):
            gap = block.Y[points] - W[:, c]
            products += (q[:, None] * gap).T @ gap
        total.add("products", products)

    def learn(self, old: Params, move: np.ndarray, gaps: np.ndarray, sums: Any) -> np.ndarray:
        products = self.adjust_sums(sums, gaps, old, move)["products"]
        return remove_rounding_errors(products[None], sums["products"][None]) / sums["active"].sum()

    def adjust_sums(self, sums: Any, gaps: np.ndarray, old: Params, move: np.ndarray) -> dict[str, np.ndarray]:
        cross = (gaps - 0.5 * sums["active"][:, None] * move).T @ move
        return {"products": sums["products"] - cross - cross.T}

    def squares_along(self, sums: Any) -> np.ndarray:
        return np.diagonal(sums["products"])

    def update(self, old: np.ndarray, new: np.ndarray, used: np.ndarray, min_variance: np.ndarray) -> np.ndarray:
        return add_variance_floor(make_positive_definite(new, min_variance), min_variance)


def log_normal_density(gap: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Return the Gaussian log density of independent gaps (..., D) with variances (..., D) or (..., 1)."""
    return -0.5 * (gap * gap / var + np.log(2 * np.pi * var)).sum(-1)


def product_bound(largest_gap: GapBound, dims: int) -> GapBound:
    """Return the function that bounds products of two gaps, (D, D)."""

    def bound(params: Params, summary: Summary) -> np.ndarray:
        most = largest_gap(params, summary)[:dims]
        return np.multiply.outer(most, most)

    return bound


def remove_rounding_errors(products: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return products (k, D, D), computed as a difference from ``before``, with rounding errors replaced by 0.

    Eigenvalues below ``EIGENVALUE_ROUNDING`` times D are rounding errors, in units that give ``before`` the diagonal 1.
    The covariance of a cluster with few points is then exactly singular, and its floor is reproducible.
    """
    scale = np.sqrt(np.diagonal(before, axis1=1, axis2=2))
    return replace_small_eigenvalues(
        products, np.where(scale > 0, scale, 1.0), EIGENVALUE_ROUNDING * products.shape[-1], 0.0
    )


def half_log_determinants(root: np.ndarray) -> np.ndarray:
    """Return half the log determinants of covariances with these Cholesky factors, (k,)."""
    return np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)


def whitening_matrices(root: np.ndarray) -> np.ndarray:
    """Return R with |(y - w) R|^2 = (y - w)^T covariance^-1 (y - w) from Cholesky factors, (k, D, D)."""
    size = np.sqrt((root * root).sum(2))[:, :, None]  # makes the result independent of the units of the dimensions
    return np.ascontiguousarray(np.linalg.inv(root / size).transpose(0, 2, 1) / size)


def cholesky_factors(var: np.ndarray) -> np.ndarray:
    """Return the lower triangles L with L L^T = var, (k, D, D)."""
    return np.linalg.cholesky(make_positive_definite(np.ascontiguousarray(var)))


def make_positive_definite(var: np.ndarray, min_variance: np.ndarray | float = 0.0) -> np.ndarray:
    """Return positive definite covariances (k, D, D) with variances of at least ``min_variance`` (D,).

    Covariances that have these properties stay as they are. In the other covariances:

    * Variances of dimensions are at least ``min_variance``.
    * Eigenvalues of correlations are at least ``MIN_EIGENVALUE``, whatever the units of the dimensions are.
    * A dimension without variance and without floor gets ``MIN_EIGENVALUE`` times the largest variance.
    * Correlations of a dimension at its floor are unknown, and become 0.
    """
    var = 0.5 * (var + var.transpose(0, 2, 1))
    variances = np.diagonal(var, axis1=1, axis2=2)
    floor = np.where(
        min_variance > MIN_VARIANCE,
        min_variance,
        np.maximum(MIN_VARIANCE, MIN_EIGENVALUE * variances.max(1, keepdims=True)),
    )
    known = variances > np.maximum(min_variance, MIN_VARIANCE)
    if not known.all():
        each = np.arange(var.shape[1])
        var = np.where(known[:, :, None] & known[:, None], var, 0.0)
        var[:, each, each] = np.where(known, variances, floor)
    return replace_small_eigenvalues(var, np.sqrt(np.diagonal(var, axis1=1, axis2=2)), MIN_EIGENVALUE, MIN_EIGENVALUE)


def add_variance_floor(var: np.ndarray, min_variance: np.ndarray) -> np.ndarray:
    """Return covariances (k, D, D) with at least the variance ``min_variance`` (D,) in every direction.

    The lacking fraction of ``min_variance`` is added to the diagonal, which keeps the digits of all dimensions.
    """
    scale = np.sqrt(np.maximum(min_variance, MIN_VARIANCE))
    R = whitening_matrices(np.linalg.cholesky(var / scale[:, None] / scale))
    lack = np.zeros(len(var))
    some = np.square(R).sum((1, 2)) > 1
    lack[some] = np.maximum(0.0, 1 - np.linalg.norm(R[some], 2, axis=(1, 2)) ** -2.0)
    return var + lack[:, None, None] * np.diag(scale**2)


def replace_small_eigenvalues(var: np.ndarray, scale: np.ndarray, threshold: float, value: float) -> np.ndarray:
    """Replace eigenvalues of symmetric matrices (k, D, D) below a threshold by a value.

    Eigenvalues are computed in the units ``scale`` (k, D). Matrices without small eigenvalues stay as they are.
    """
    units = scale[:, :, None] * scale[:, None]
    own = var / units
    try:
        # the inverse of the sum of squares of the inverted Cholesky factor bounds the smallest eigenvalue from below
        if (np.square(np.linalg.inv(np.linalg.cholesky(own))).sum((1, 2)) < 1 / threshold).all():
            return var
    except LinAlgError:
        pass
    values, vectors = np.linalg.eigh(own)
    small = np.less(values, threshold)
    half = vectors * np.sqrt(np.where(small, value, np.maximum(values, 0.0)))[:, None]
    return np.where(small.any(1)[:, None, None], half @ half.transpose(0, 2, 1) * units, var)


KINDS = {"spherical": Spherical, "diagonal": Diagonal, "full": Full, "tied": Tied}
