"""A mixture of Poisson distributions, for counts (TV Alg. 2)."""

from typing import Any

import numpy as np
from scipy.special import gammaln

from parallel_et.core.contract import Block, Knobs, Model, Param, Params, Summary
from parallel_et.errors import UserError
from parallel_et.kernels import mixture
from parallel_et.models.parts.fields import rows_of
from parallel_et.models.parts.mixture import PI, Form, Mixture, Ready, Seen
from parallel_et.models.parts.noises import Poisson
from parallel_et.models.parts.rounding import far

LEAST = 1e-9
"""Least mean of a count."""


class PMM(Mixture):
    """y_d ~ Poisson(W_dc), all dimensions independent given the cluster c; M-step: the mean of a cluster's points."""

    first_job = {**Mixture.first_job, "data": {"probability": 0.02, "at_least": 1, "noise": {"kind": "poisson"}}}
    params = {"W": Param("DH", "mean counts of each cluster", low=LEAST, rows="k-means++"), "pi": PI}

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.noise = Poisson()

    def check(self, summary: Summary) -> None:
        if summary.negative:
            raise UserError(f"data: expected counts for pmm, found {summary.negative:.1%} negative values")

    def start(self, name: str, summary: Summary) -> tuple[Any, float]:
        return (summary.mean, summary.mean / 3) if name == "W" else super().start(name, summary)

    def from_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        return 0.5 * (rows + rows.mean(1, keepdims=True))  # a mean of 0 would rule out what one point happens to lack

    def prepare(self, params: Params, knobs: Knobs) -> Ready:
        D, table = self.D, rows_of({"W": np.log(params["W"])})
        bias = np.log(params["pi"]) - params["W"].sum(0)
        form = Form(
            mixture.LINEAR,
            table,
            np.empty(0),
            bias,
            (table[:, :D], bias[:, None]),
            lambda rows: (rows[:, :D], np.ones((len(rows), 1))),
        )
        return Ready(params, np.zeros_like(table), form)

    def observe(self, ready: Ready, block: Block, singles: bool) -> Seen:
        return Seen(block.rows, -gammaln(block.Y + 1).sum(1, keepdims=True))

    def log_states(self, ready: Ready, seen: Seen, states: np.ndarray) -> np.ndarray:
        if len(far(seen.base)):
            return Model.log_states(self, ready, Block(seen.rows, self.D, 0), states)
        return super().log_states(ready, seen, states)

    def _log_all(self, ready: Ready, seen: Seen) -> np.ndarray:
        if len(far(seen.base)):
            return Model.log_singles(self, ready, Block(seen.rows, self.D, 0))
        return super()._log_all(ready, seen)

    def log_joint(self, ready: Ready, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        return super().log_joint(ready.params, Y, states)

    def origin(self, params: Params) -> np.ndarray:
        return np.zeros_like(params["W"])


MODEL = PMM
