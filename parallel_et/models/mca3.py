"""MCA_3: maximal causes of counts with the learning rules of the MCA paper (sec. 4.1).

    p(s) = prod_h pi_h^s_h (1 - pi_h)^(1 - s_h),    p(y | s) = prod_d Poisson(y_d; max_h s_h W_dh),    W >= 0

W is learned from states of one or two causes, pi from states of up to three.
The model suits counts, and comparisons with the results of the paper; ``mca`` is the general model.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_et.core.types import OwnSchedule, Param, Params, Settings, Statistic, Summary, Totals
from parallel_et.kernels.responsibilities import HARD_RHO
from parallel_et.models.components.fields import W
from parallel_et.models.components.maximal import MaximalModel, Softness, exponential_softness
from parallel_et.models.components.noises import CountsOptions
from parallel_et.models.components.priors import PI

SLOPE_AT_TWO = 0.2
"""Slope of the sigmoid at T = 2, lambda in MCA eq. 35."""


class MCA3(MaximalModel):
    """Non-negative fields; the largest active one sets the mean of a count. Each cause may have its own prior.

    With all causes as candidates and gamma = 3, the E-step is that of MCA eq. 16 and 17.
    States of three causes count alpha times for pi, which compensates for points with more than three causes.
    The M-step raises alpha until the fraction of points with at most two causes agrees with pi.
    """

    Options = CountsOptions
    first_job = {"data": {"overlap": "max", "noise": {"kind": "poisson"}}}
    params = {
        "W": W._replace(low=0.0),
        "pi": PI,
        "alpha": Param(
            "", "weight of states with more than two causes in the M-step of pi, or its initial value", 1.0, 1.0
        ),
    }
    schedules = {
        "slope": OwnSchedule(
            lambda temperature: min(HARD_RHO, SLOPE_AT_TWO / (temperature - 1)) if temperature > 1 else HARD_RHO,
            low=0.0,
            description="slope of the sigmoid that divides a dimension between two causes, by default "
            f"{SLOPE_AT_TWO} / (T - 1); the sigmoid is a step at T <= 1, and for slopes of {HARD_RHO:g} or more",
        )
    }
    max_learned_causes = 2

    def softness(self, WT: np.ndarray, settings: Settings) -> Softness:
        return exponential_softness(WT, settings.model["slope"], min(self.max_learned_causes, settings.max_active))

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        return {**super().statistics(stage), "many": Statistic((self.H + 1,))}

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        points, many, alpha = float(sums["points"]), sums["many"], float(params["alpha"])
        active: Any = sums["active"] + (alpha - 1) * many[:-1]
        observed = 1 - float(many[-1]) / points
        expected = self.prior.fraction_up_to(params, self.max_learned_causes)
        new = super().maximise(stage, params, {**sums, "active": active}, settings, summary)
        return {**new, "alpha": np.array(max(1.0, alpha + expected - observed))}


MODEL = MCA3
