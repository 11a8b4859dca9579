"""MCA_3: maximal causes of counts, fields from states of one or two causes, priors from up to three (MCA sec. 4.1)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_et.core.types import OwnSchedule, Param, Params, Settings, Statistic, Summary, Totals
from parallel_et.kernels.responsibilities import HARD
from parallel_et.models.components.fields import W
from parallel_et.models.components.maximal import MaximalModel, Softness, exponentials
from parallel_et.models.components.noises import CountsOptions
from parallel_et.models.components.priors import PI

LAMBDA = 0.2
"""Slope of the sigmoid at T = 2 (MCA eq. 35)."""


class MCA3(MaximalModel):
    """Non-negative fields of which the largest active one sets the mean of a count, each with a prior of its own.

    With all causes as candidates and gamma = 3 the E-step is that of MCA eq. 16 and 17: W is learned from the states
    of one and two causes, though those of three are considered, and pi from all, those of three counted alpha times.
    That makes up for points with more causes, until as many points have at most two causes as pi says.
    """

    Options = CountsOptions
    first_job = {"data": {"overlap": "max", "noise": {"kind": "poisson"}}}
    params = {
        "W": W._replace(low=0.0),
        "pi": PI,
        "alpha": Param("", "how often states of more than two causes count for pi, or where it begins", 1.0, 1.0),
    }
    schedules = {
        "slope": OwnSchedule(
            lambda temperature: min(HARD, LAMBDA / (temperature - 1)) if temperature > 1 else HARD,
            least=0.0,
            does=f"steepness of the sigmoid by which two causes share a dimension; by default {LAMBDA} / (T - 1); from "
            f"{HARD:g} on, as at T = 1 and below, it is a step",
        )
    }
    shared = 2

    def softness(self, WT: np.ndarray, settings: Settings) -> Softness:
        return exponentials(WT, settings.model["slope"], min(self.shared, settings.most))

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        return {**super().statistics(stage), "many": Statistic((self.H + 1,))}

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        points, many, alpha = float(sums["points"]), sums["many"], float(params["alpha"])
        active: Any = sums["active"] + (alpha - 1) * many[:-1]
        few = 1 - float(many[-1]) / points
        expected = self.prior.share(params, self.shared)
        new = super().maximise(stage, params, {**sums, "active": active}, settings, summary)
        return {**new, "alpha": np.array(max(1.0, alpha + expected - few))}


MODEL = MCA3
