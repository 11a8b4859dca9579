"""A mixture of Gaussians: each point belongs to one cluster with its own mean and covariance.

    p(y) = sum_c pi_c Gauss(y; W_c, var_c)

The model suits real-valued data in groups, and gives soft assignments of points to clusters.
The covariances are spherical, diagonal, full, or one full matrix for all clusters ("tied").
The E-step is exact, or truncated to the clusters with the largest joint (TV Alg. 2).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.model import shape_of
from parallel_et.core.options import ModelOptions
from parallel_et.core.types import Block, Param, Params, Statistic, Summary, Sums, Totals
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.components.covariances import KINDS, MIN_VARIANCE_FRACTION
from parallel_et.models.components.mixture import PI, ClusterDensity, Memberships, Mixture
from parallel_et.models.components.rounding import RESIDUAL_ROUNDING


class GMMOptions(ModelOptions):
    """The keys of [model] for gmm."""

    covariance: Literal["spherical", "diagonal", "full", "tied"] = Field(
        "spherical",
        description="one variance per cluster, one per cluster and dimension, one matrix per cluster, or one for all",
    )
    reg: float = Field(
        1e-6,
        ge=0,
        le=1e50,
        description="constant added to all learned variances; with 0 the free energy is guaranteed never to fall",
    )


REPORTED_FLOOR_MULTIPLE = 4.0
"""Multiple of the variance floor. Variances up to it are reported."""


class GMM(Mixture):
    """y ~ Gauss(W_c, var_c) given the cluster c. The M-step is the usual one, restricted to the considered clusters."""

    Options = GMMOptions
    params = {
        "W": Param("DH", "means of the clusters", rows="k-means++"),
        "var": Param("H", "variances or covariances of the clusters"),
        "pi": PI,
    }

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.kind = KINDS[options.covariance](dims, self.width, self.H)
        low = 0.0 if options.covariance in ("spherical", "diagonal") else -np.inf
        self.sizes = {**self.sizes, "1": 1}
        self.params = {**self.params, "var": self.params["var"]._replace(axes=self.kind.axes, low=low)}

    @classmethod
    def keys_in(cls, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        shape = arrays["var"].shape if "var" in arrays else (1,)
        kinds = {1: "spherical", 2: "diagonal", 3: "tied" if shape[0] == 1 else "full"}
        return {"covariance": kinds.get(len(shape), "full")}

    def initial_value(self, name: str, summary: Summary) -> tuple[Any, float]:
        if name == "var":
            variances = np.broadcast_to(summary.std_by_dim, self.D) ** 2
            return self.kind.along(np.where(variances > 0, variances, summary.spread**2 or 1.0)), 0.0
        return super().initial_value(name, summary)

    def filled(self, name: str, value: float) -> np.ndarray:
        start = self.kind.isotropic(value) if name == "var" else value
        return np.broadcast_to(start, shape_of(self, name)).copy()

    def constrain(self, params: Params) -> Params:
        inside = dict(super().constrain(params))
        return inside | ({"var": self.kind.constrain(inside["var"])} if "var" in inside else {})

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        states = self.prior.draw(params, rng, count)
        white = rng.standard_normal((count, self.D))
        return self.mean(params, states) + self.kind.spread(params, states[:, 0], white), states

    def log_joint(self, params: Params, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        gap = Y - self.mean(params, states)
        return self.prior.log(params, states) + self.kind.log_density(params, gap, states[..., 0])

    def at_limits(self, params: Params, summary: Summary) -> Iterator[str]:
        if "var" not in self.options.learn:
            return
        variances = self.kind.variances(params["var"])
        pi = params["pi"] / params["pi"].sum()
        offset = params["W"] - (params["W"] @ pi)[:, None]
        overall = (offset**2) @ pi + pi @ np.broadcast_to(variances, (self.H, self.D))
        reported = self.kind.variances(self.kind.along(REPORTED_FLOOR_MULTIPLE * self.variance_floor(overall, summary)))
        reg = self.options.reg
        if count := int((variances <= reported).sum()):
            yield f"var: {count} of {variances.size} variances are at their floor, which depends on the data"
        if count := int(((reg > 0.5 * variances) & (variances > reported)).sum()):
            yield (
                f"model.reg = {reg:g} makes up more than half of {count} of {variances.size} variances: "
                "the data are small in comparison"
            )

    def density(self, params: Params) -> ClusterDensity:
        return self.kind.density(params)

    def extra_statistics(self) -> dict[str, Statistic]:
        return self.kind.sums(self.largest_gap)

    def largest_gap(self, params: Params, summary: Summary) -> np.ndarray:
        W, rounding = params["W"], RESIDUAL_ROUNDING * summary.largest_by_dim
        spread = (
            np.abs(W - summary.mean_by_dim[:, None]).max(1) + np.sqrt(summary.points) * summary.std_by_dim + rounding
        )
        return pad_rows(np.minimum(spread, summary.largest_by_dim + np.abs(W).max(1))[None])[0]

    def accumulate_extra(
        self, params: Params, block: Block, memberships: Memberships, used: np.ndarray, total: Sums
    ) -> None:
        self.kind.collect(params["W"], block, memberships, used, total)

    def adjust_extra_sums(self, sums: Totals, gaps: np.ndarray, old: Params, move: np.ndarray) -> Totals:
        return self.kind.adjust_sums(sums, gaps, old, move)

    def maximise_extra(
        self, params: Params, W: np.ndarray, gaps: np.ndarray, sums: Totals, used: np.ndarray, summary: Summary
    ) -> Params:
        if "var" not in self.options.learn:
            return {}
        move, active = (W - params["W"]).T, sums["active"]
        apart = params["W"] - params["W"][:, :1]
        mean = (gaps.sum(0) + apart @ active) / active.sum()
        overall = self.kind.squares_along(self.kind.adjust_sums(sums, gaps, params, mean - apart.T)) / active.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            new = self.kind.learn(params, move, gaps, sums) + self.kind.isotropic(self.options.reg)
        return {"var": self.kind.update(params["var"], new, used, self.variance_floor(overall, summary))}

    def variance_floor(self, overall: np.ndarray, summary: Summary) -> np.ndarray:
        """Return the variance floor of each dimension (D,), from the variances ``overall`` (D,) of all points.

        The floor depends on the data alone and scales with them.
        The free energy therefore does not fall when clusters with few points reach the floor.
        """
        return np.maximum((RESIDUAL_ROUNDING * summary.largest_by_dim) ** 2, MIN_VARIANCE_FRACTION * overall)


MODEL = GMM
