"""A mixture of Poisson distributions: each point belongs to one cluster with its own mean counts.

    p(y) = sum_c pi_c prod_d Poisson(y_d; W_dc)

The model suits clusters of counts: gene expression, word counts, spike counts.
The E-step is exact, or truncated to the clusters with the largest joint (TV Alg. 2).
"""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.special import gammaln

from parallel_et.core.model import EnumeratingView
from parallel_et.core.types import Param, Params, Summary
from parallel_et.errors import UserError
from parallel_et.kernels import mixture
from parallel_et.models.components.fields import rows_of
from parallel_et.models.components.mixture import PI, FeatureDensity, Mixture, MixtureView
from parallel_et.models.components.noises import Poisson
from parallel_et.models.components.rounding import imprecise_points

MIN_MEAN_COUNT = 1e-9
"""Smallest mean of a count in a cluster."""


class PMMView(MixtureView):
    """A block of counts under a mixture. Where products lose digits, log joints come from the densities."""

    @cached_property
    def base(self) -> np.ndarray:
        return -gammaln(self.block.Y + 1).sum(1, keepdims=True)

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        if len(imprecise_points(self.base)):
            return EnumeratingView.log_joint(self, states)
        return super().log_joint(states)

    def log_singletons(self) -> np.ndarray:
        if len(imprecise_points(self.base)):
            return EnumeratingView.log_singletons(self)
        return super().log_singletons()


class PMM(Mixture):
    """y_d ~ Poisson(W_dc) given the cluster c, independently. The M-step sets W_c to the mean of its points."""

    View: ClassVar[type[PMMView]] = PMMView
    first_job = {**Mixture.first_job, "data": {"probability": 0.02, "at_least": 1, "noise": {"kind": "poisson"}}}
    params = {"W": Param("DH", "mean counts of each cluster", low=MIN_MEAN_COUNT, rows="k-means++"), "pi": PI}

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.noise = Poisson()

    def check(self, summary: Summary) -> None:
        if summary.negative:
            raise UserError(f"data: expected counts for pmm, found {summary.negative:.1%} negative values")

    def initial_value(self, name: str, summary: Summary) -> tuple[Any, float]:
        return (summary.mean, summary.mean / 3) if name == "W" else super().initial_value(name, summary)

    def fields_from_points(self, points: np.ndarray) -> np.ndarray:
        # a mean of 0 would exclude all points with a positive count there
        return 0.5 * (points + points.mean(1, keepdims=True))

    def density(self, params: Params) -> FeatureDensity:
        D, table = self.D, rows_of({"W": np.log(params["W"])})
        bias = np.log(params["pi"]) - params["W"].sum(0)
        return FeatureDensity(
            mixture.LINEAR,
            table,
            np.empty(0),
            bias,
            (table[:, :D], bias[:, None]),
            lambda rows: (rows[:, :D], np.ones((len(rows), 1))),
        )

    def origin(self, params: Params) -> np.ndarray:
        return np.zeros_like(params["W"])


MODEL = PMM
