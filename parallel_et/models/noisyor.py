"""Noisy-or: each active cause switches on binary values, independently of the other causes.

    p(s) = prod_h pi^s_h (1 - pi)^(1 - s_h),    p(y_d = 1 | s) = 1 - prod_h (1 - W_dh s_h),    0 < W_dh < 1

The model suits binary data in which any cause is enough: symptoms of diseases, tags of documents, clicks.
"""

from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.models import PI, UNUSED, Bernoulli, Binary, Model, Param, Params, Settings, Statistic, Summary, Totals
from parallel_et.models.components.fields import divide_or_keep, sums_by_atom, with_empty_row
from parallel_et.models.components.initial_fields import FIRST_JOB_WITH_MOMENTS


class NoisyOr(Model):
    """A value is 1 if at least one active cause has switched it on.

    The M-step treats the switches as further hidden variables.
    An active cause h has switched on a value of 1 with the probability W_dh / (1 - prod_h (1 - W_dh s_h)).
    No cause has switched on a value of 0.
    """

    prior: Bernoulli
    first_job = {
        "data": {"points": 300, "value": 1.0, "overlap": "max", "noise": {"kind": "none"}},
        "model": FIRST_JOB_WITH_MOMENTS["model"],
        "anneal": {**FIRST_JOB_WITH_MOMENTS["anneal"], "iterations": 50},
    }
    params = {"W": Param("DH", "probability that a cause switches a value on", low=1e-6, high=1 - 1e-6), "pi": PI}

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Binary()

    def initial_value(self, name: str, summary: Summary) -> tuple[float, float]:
        return 0.5, 0.1

    def check(self, summary: Summary) -> None:
        if summary.negative or summary.largest > 1 or abs(summary.mean - summary.rms**2) > 1e-9:
            raise UserError(
                f"data: expected zeros and ones for noisyor, found others, up to {summary.largest:g} in magnitude"
            )

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return -np.expm1(with_empty_row(np.log1p(-params["W"].T))[states].sum(-2))

    def statistics(self, stage: str) -> dict[str, Statistic]:
        return {"switched": Statistic((self.H, self.D)), "active": Statistic((self.H,))}

    def accumulate(self, stage: str, params: Params, Y: np.ndarray, states: np.ndarray, q: np.ndarray) -> Totals:
        fractions = np.divide(Y, self.mean(params, states), out=np.zeros(Y.shape), where=Y > 0)
        switched = sums_by_atom(states, q[:, None] * fractions, self.H) * params["W"].T
        return {"switched": switched, "active": sums_by_atom(states, q, self.H)}

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        active, points = sums["active"], float(sums["points"])
        W = divide_or_keep(sums["switched"].T, active, UNUSED * points, params["W"])
        return {"W": W, "pi": self.prior.learn(params, active, points, settings)}


MODEL = NoisyOr
