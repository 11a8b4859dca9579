"""Noisy-or: binary data in which every active cause switches values on, each with a probability of its own."""

from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.models import PI, UNUSED, Bernoulli, Binary, Model, Param, Params, Settings, Statistic, Summary, Totals
from parallel_et.models.components.fields import divided, sums_by_atom, with_none
from parallel_et.models.components.initial_fields import FROM_MOMENTS


class NoisyOr(Model):
    """y_d ~ Bernoulli(1 - prod_h (1 - W_dh s_h)): a value is 1 if any active cause has switched it on.

    The M-step is that of EM with the switches hidden as well: a value that is 1 was switched on by an active cause h
    with the probability W_dh / (1 - prod_h (1 - W_dh s_h)), one that is 0 by none.
    """

    prior: Bernoulli
    first_job = {
        "data": {"points": 300, "value": 1.0, "overlap": "max", "noise": {"kind": "none"}},
        "model": FROM_MOMENTS["model"],
        "anneal": {**FROM_MOMENTS["anneal"], "iterations": 50},
    }
    params = {"W": Param("DH", "probability that a cause switches a value on", low=1e-6, high=1 - 1e-6), "pi": PI}

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Binary()

    def initial_value(self, name: str, summary: Summary) -> tuple[float, float]:
        return 0.5, 0.1

    def check(self, summary: Summary) -> None:
        if summary.negative or summary.largest > 1 or abs(summary.mean - summary.rms**2) > 1e-9:
            raise UserError(f"data: expected zeros and ones for noisyor, found others up to {summary.largest:g}")

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return -np.expm1(with_none(np.log1p(-params["W"].T))[states].sum(-2))

    def statistics(self, stage: str) -> dict[str, Statistic]:
        return {"switched": Statistic((self.H, self.D)), "active": Statistic((self.H,))}

    def accumulate(self, stage: str, params: Params, Y: np.ndarray, states: np.ndarray, q: np.ndarray) -> Totals:
        by_whom = np.divide(Y, self.mean(params, states), out=np.zeros(Y.shape), where=Y > 0)
        switched = sums_by_atom(states, q[:, None] * by_whom, self.H) * params["W"].T
        return {"switched": switched, "active": sums_by_atom(states, q, self.H)}

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        active, points = sums["active"], float(sums["points"])
        W = divided(sums["switched"].T, active, UNUSED * points, params["W"])
        return {"W": W, "pi": self.prior.learn(params, active, points, settings)}


MODEL = NoisyOr
