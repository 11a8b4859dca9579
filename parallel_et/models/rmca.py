"""R-MCA_2 and R-MCA_NN: maximal causes of counts whose fields have a fixed sum (MCA sec. 4.2 and 5).

    p(s) = prod_h pi^s_h (1 - pi)^(1 - s_h),    p(y | s) = prod_d Poisson(y_d; max_h s_h W_dh)
    W >= 0,    sum_d W_dh = C

R-MCA_2 sets the fields in each M-step. R-MCA_NN learns online by a Hebbian rule, one point at a time.
The model suits counts, and comparisons with the results of the paper; ``mca`` is the general model.
"""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.model import UNUSED
from parallel_et.core.schema import MAX_MAGNITUDE
from parallel_et.core.types import Params, Settings, Summary, Totals
from parallel_et.errors import UserError
from parallel_et.kernels.responsibilities import HARD_RHO
from parallel_et.models.components.fields import W
from parallel_et.models.components.maximal import EMPTY, MaximalEvaluator, MaximalModel, Softness
from parallel_et.models.components.noises import CountsOptions
from parallel_et.models.components.priors import PI


class RMCAOptions(CountsOptions):
    """The keys of [model] for rmca."""

    total: float = Field(gt=0, le=MAX_MAGNITUDE, description="sum of the values of each field, C")
    rate: float | None = Field(
        None,
        gt=0,
        le=MAX_MAGNITUDE,
        description="learning rate of the Hebbian rule, for anneal.batch = 1 (R-MCA_NN); without a rate every M-step "
        "sets the fields (R-MCA_2)",
    )
    tempered: Literal["joint", "likelihood"] | None = Field(
        None,
        description="factor that is raised to the power 1 / T: the joint, as in MCA eq. 36, or only the likelihood; "
        "default: the joint, or with a rate the likelihood",
    )


class TemperedLikelihood(MaximalEvaluator):
    """R-MCA that tempers only the likelihood. The prior has the power T, which the 1 / T of the E-step cancels."""

    def __init__(self, model: "RMCA", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        more = (settings.temperature - 1) * self.odds
        self.odds, self.bias = self.odds + more, self.bias + more
        self.empty = settings.temperature * self.empty


class RMCA(MaximalModel):
    """Non-negative fields with the sum C; the largest active one sets the mean of a count.

    With all causes as candidates and gamma = 2, the E-step is that of MCA eq. 22.
    It considers pairs of causes, but fields are learned only from states of a single cause.
    """

    Options = RMCAOptions
    params = {"W": W._replace(low=0.0), "pi": PI}
    learns = ("W",)
    first_job = {
        "model": {"total": 50.0},
        "data": {"overlap": "max", "noise": {"kind": "poisson"}},
        "inference": {"candidates": 10, "gamma": 2},
    }
    max_learned_causes = 1

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.online = options.rate is not None
        self.tempered = options.tempered or ("likelihood" if self.online else "joint")
        if "pi" in options.learn:
            raise UserError(f"model.learn: expected only W for rmca, found {', '.join(options.learn)}")

    @classmethod
    def keys_in(cls, arrays: Params) -> dict[str, Any]:
        return {"total": float(np.mean(arrays["W"].sum(0))) or 1.0}

    def evaluator(self, params: Params, settings: Settings) -> MaximalEvaluator:
        own = TemperedLikelihood if self.tempered == "likelihood" else MaximalEvaluator
        return own(self, params, settings)

    def softness(self, WT: np.ndarray, settings: Settings) -> Softness:
        return Softness(np.zeros((1, *WT.shape)), EMPTY, HARD_RHO, 1.0)  # a single cause has the responsibility 1

    def constrain(self, params: Params) -> Params:
        """Return non-negative fields with the sum C; a field of zeros becomes flat."""
        inside = dict(super().constrain(params))
        if "W" in inside:
            sums = inside["W"].sum(0)
            flat = np.where(sums > 0, inside["W"], 1.0)
            inside["W"] = flat * (self.options.total / np.where(sums > 0, sums, self.D))
        return inside

    def usage(self, sums: Totals) -> np.ndarray:
        """Return the weight of each cause, (H,). An online step changes all fields, so no cause is unused."""
        return np.full(self.H, sums["points"]) if self.online else sums["active"]

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        gain = sums["numerator"][:, : self.D].T
        if self.online:  # eq. 25; the engine adds the noise and then calls ``constrain``
            return {"W": params["W"] + self.options.rate * gain}
        used = gain.sum(0) > UNUSED * float(sums["points"])
        return self.constrain({"W": np.where(used, gain, params["W"])})  # eq. 21


MODEL = RMCA
