"""R-MCA_2 and R-MCA_NN: maximal causes of counts with fields of one sum and one prior (MCA sec. 4.2 and 5)."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.model import UNUSED
from parallel_et.core.schema import LARGEST
from parallel_et.core.types import Params, Settings, Summary, Totals
from parallel_et.errors import UserError
from parallel_et.kernels.responsibilities import HARD
from parallel_et.models.components.fields import W
from parallel_et.models.components.maximal import NONE, MaximalEvaluator, MaximalModel, Softness
from parallel_et.models.components.noises import CountsOptions
from parallel_et.models.components.priors import PI


class RMCAOptions(CountsOptions):
    """The keys of [model] for rmca."""

    total: float = Field(gt=0, le=LARGEST, description="what the values of each field add up to, C")
    rate: float | None = Field(
        None,
        gt=0,
        le=LARGEST,
        description="learning rate of the Hebbian rule, for anneal.batch = 1 (R-MCA_NN); by default none: every M-step "
        "sets the fields (R-MCA_2)",
    )
    tempered: Literal["joint", "likelihood"] | None = Field(
        None,
        description="what is taken to the power 1 / T: the joint, as in MCA eq. 36, or the likelihood alone; by "
        "default the joint, with a rate the likelihood",
    )


class TemperedLikelihood(MaximalEvaluator):
    """R-MCA whose likelihood alone is tempered: it has the prior to the power T, of which the E-step takes 1 / T."""

    def __init__(self, model: "RMCA", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        more = (settings.temperature - 1) * self.odds
        self.odds, self.bias = self.odds + more, self.bias + more
        self.empty = settings.temperature * self.empty


class RMCA(MaximalModel):
    """Non-negative fields of which the largest active one sets the mean of a count; each adds up to the same, C.

    With all causes as candidates and gamma = 2 the E-step is that of MCA eq. 22: fields are learned from the states of
    a single cause alone, though pairs are considered.
    """

    Options = RMCAOptions
    params = {"W": W._replace(low=0.0), "pi": PI}
    learns = ("W",)
    first_job = {
        "model": {"total": 50.0},
        "data": {"overlap": "max", "noise": {"kind": "poisson"}},
        "inference": {"candidates": 10, "gamma": 2},
    }
    shared = 1

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.online = options.rate is not None
        self.tempered = options.tempered or ("likelihood" if self.online else "joint")
        if "pi" in options.learn:
            raise UserError(f"model.learn: expected W alone for rmca, found {', '.join(options.learn)}")

    @classmethod
    def keys_in(cls, arrays: Params) -> dict[str, Any]:
        return {"total": float(np.mean(arrays["W"].sum(0))) or 1.0}

    def evaluator(self, params: Params, settings: Settings) -> MaximalEvaluator:
        own = TemperedLikelihood if self.tempered == "likelihood" else MaximalEvaluator
        return own(self, params, settings)

    def softness(self, WT: np.ndarray, settings: Settings) -> Softness:
        return Softness(np.zeros((1, *WT.shape)), NONE, HARD, 1.0)  # a single cause has it all

    def constrain(self, params: Params) -> Params:
        """Return fields that are not negative and add up to C; a field of zeros becomes flat."""
        inside = dict(super().constrain(params))
        if "W" in inside:
            sums = inside["W"].sum(0)
            flat = np.where(sums > 0, inside["W"], 1.0)
            inside["W"] = flat * (self.options.total / np.where(sums > 0, sums, self.D))
        return inside

    def usage(self, sums: Totals) -> np.ndarray:
        """Return the weight of each cause, (H,); an online step changes all fields, so that no cause is unused."""
        return np.full(self.H, sums["points"]) if self.online else sums["active"]

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        gain = sums["numerator"][:, : self.D].T
        if self.online:  # eq. 25; the engine adds the noise before the fields are brought to their sum
            return {"W": params["W"] + self.options.rate * gain}
        used = gain.sum(0) > UNUSED * float(sums["points"])
        return self.constrain({"W": np.where(used, gain, params["W"])})  # eq. 21


MODEL = RMCA
