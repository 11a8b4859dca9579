"""A mixture of Gaussians with clusters of several shapes (TV Alg. 2)."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.model import shape_of
from parallel_et.core.options import ModelOptions
from parallel_et.core.types import Block, Param, Params, Statistic, Summary, Sums, Totals
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.components.covariances import KINDS, SHARE
from parallel_et.models.components.mixture import PI, JointForm, Members, Mixture
from parallel_et.models.components.rounding import RESIDUAL


class GMMOptions(ModelOptions):
    """The keys of [model] for gmm."""

    covariance: Literal["spherical", "diagonal", "full", "tied"] = Field(
        "spherical",
        description="a variance for each cluster, one for each of its dimensions, a matrix for each, or one for all",
    )
    reg: float = Field(
        1e-6,
        ge=0,
        le=1e50,
        description="added to all variances that are learned; without it, at 0, the free energy never falls",
    )


NEAR = 4.0
"""Variances up to this multiple of their floor are reported."""


class GMM(Mixture):
    """y ~ Gauss(W_c, var_c) given the cluster c; the M-step is that of textbooks, over the considered clusters."""

    Options = GMMOptions
    params = {
        "W": Param("DH", "means of the clusters", rows="k-means++"),
        "var": Param("H", "their variances or covariances"),
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
            variances = np.broadcast_to(summary.spreads, self.D) ** 2
            return self.kind.along(np.where(variances > 0, variances, summary.spread**2 or 1.0)), 0.0
        return super().initial_value(name, summary)

    def filled(self, name: str, value: float) -> np.ndarray:
        start = self.kind.of(value) if name == "var" else value
        return np.broadcast_to(start, shape_of(self, name)).copy()

    def constrain(self, params: Params) -> Params:
        inside = dict(super().constrain(params))
        return inside | ({"var": self.kind.inside(inside["var"])} if "var" in inside else {})

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
        least = self.kind.variances(self.kind.along(NEAR * self.least(overall, summary)))
        reg = self.options.reg
        if count := int((variances <= least).sum()):
            yield f"var: {count} of {variances.size} variances are at their floor, which follows from the data"
        if count := int(((reg > 0.5 * variances) & (variances > least)).sum()):
            yield (
                f"model.reg = {reg:g} makes up more than half of {count} of {variances.size} variances: "
                "the data are small beside it"
            )

    def form(self, params: Params) -> JointForm:
        return self.kind.form(params)

    def sums_besides(self) -> dict[str, Statistic]:
        return self.kind.sums(self.reach)

    def reach(self, params: Params, summary: Summary) -> np.ndarray:
        W, rounding = params["W"], RESIDUAL * summary.heights
        far = np.abs(W - summary.means[:, None]).max(1) + np.sqrt(summary.points) * summary.spreads + rounding
        return pad_rows(np.minimum(far, summary.heights + np.abs(W).max(1))[None])[0]

    def collect_besides(self, params: Params, block: Block, members: Members, used: np.ndarray, total: Sums) -> None:
        self.kind.collect(params["W"], block, members, used, total)

    def carried_besides(self, sums: Totals, gaps: np.ndarray, old: Params, move: np.ndarray) -> Totals:
        return self.kind.carried(sums, gaps, old, move)

    def maximise_besides(
        self, params: Params, W: np.ndarray, gaps: np.ndarray, sums: Totals, used: np.ndarray, summary: Summary
    ) -> Params:
        if "var" not in self.options.learn:
            return {}
        move, active = (W - params["W"]).T, sums["active"]
        apart = params["W"] - params["W"][:, :1]
        mean = (gaps.sum(0) + apart @ active) / active.sum()
        overall = self.kind.squares_along(self.kind.carried(sums, gaps, params, mean - apart.T)) / active.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            new = self.kind.learn(params, move, gaps, sums) + self.kind.of(self.options.reg)
        return {"var": self.kind.settle(params["var"], new, used, self.least(overall, summary))}

    def least(self, overall: np.ndarray, summary: Summary) -> np.ndarray:
        """Return the least variances of the dimensions (D,), whose variances of all points are ``overall``.

        They follow from the data alone, and have the unit of a dimension, wherever it begins. So the free energy does
        not fall when clusters of few points reach them.
        """
        return np.maximum((RESIDUAL * summary.heights) ** 2, SHARE * overall)


MODEL = GMM
