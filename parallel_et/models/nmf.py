"""Non-negative matrix factorisation with binary causes (ET sec. 4.1, App. D)."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.latent_states import binary
from parallel_et.core.model import UNUSED, EnumeratingView, Model
from parallel_et.core.types import Params, Settings, Statistic, Summary, Totals, largest
from parallel_et.kernels import counts
from parallel_et.models.components.fields import (
    W,
    best_below,
    divided,
    overshoot,
    overshoot_of_counts,
    rows_of,
    sums_by_atom,
)
from parallel_et.models.components.initial_fields import FROM_MOMENTS, sure_start
from parallel_et.models.components.linear import LinearModel, LinearView
from parallel_et.models.components.moments import Moments
from parallel_et.models.components.noises import SIGMA, NoiseOptions, Poisson, without_sigma
from parallel_et.models.components.priors import PI, Bernoulli

TIE = 1e-12
"""Relative difference of squared errors below which two solutions of the M-step are equally good."""


class NMFOptions(NoiseOptions):
    """The keys of [model] for nmf."""

    mstep: Literal["clamp", "multiplicative"] = Field(
        "clamp",
        description="the solution clamped at zero (ET eq. 26), or 20 multiplicative steps (eq. 27); with Poisson noise "
        "always one multiplicative step, of the divergence",
    )


class NMF(Model):
    """Non-negative fields that add up. The data may be negative, by the noise.

    Candidates are the causes whose fields stay below y: the upper bound of ET eq. 28, in logarithms.
    An instance is one of ``NMFOfGauss`` or ``NMFOfCounts``, as the key ``noise`` says.
    """

    Options = NMFOptions
    first_job = FROM_MOMENTS
    params = {"W": W._replace(low=0.0), "sigma": SIGMA, "pi": PI}

    def __new__(cls, options: Any, dims: int) -> "NMF":
        return super().__new__(NMFOfCounts if options.noise == "poisson" else NMFOfGauss)

    @classmethod
    def keys_in(cls, arrays: Params) -> dict[str, Any]:
        """Return the keys that follow from parameters in a file."""
        return {"noise": "gauss" if "sigma" in arrays else "poisson"}

    def initial_value(self, name: str, summary: Summary) -> tuple[float, float]:
        mean = max(summary.mean, summary.rms / 3) or 1.0
        return mean, mean / 3


class NMFView(LinearView):
    """A block of points under NMF with Gaussian noise."""

    def select(self, count: int) -> np.ndarray:
        by, rows = self.evaluator, self.block.rows
        return best_below(overshoot(rows, by.WT), count, rows, by.WT, by.precision, by.bias)


class NMFOfGauss(NMF, LinearModel):
    """Non-negative fields that add up to the means of points with Gaussian noise."""

    View = NMFView
    steps = 20

    def new_fields(
        self, WT: np.ndarray, sums: Moments, points: float, settings: Settings
    ) -> tuple[np.ndarray, np.ndarray]:
        nowhere = np.zeros(self.H, bool)  # the fields are clamped
        if self.options.mstep == "multiplicative":
            return self._multiplied(WT, sums.ys, sums.ss, points), nowhere
        new = settings.algebra.solve(WT, sums, points)[0]
        if settings.undisturbed:
            # what is clamped may be worse than what was there; multiplicative steps never are
            new, ys, ss = np.maximum(new, 0.0), sums.ys, sums.ss
            worse = ~improved(WT, new, ys, ss)
            new[:, worse] = self._multiplied(WT[:, worse], ys[:, worse], ss, points)
        return new, nowhere

    def _multiplied(self, WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float) -> np.ndarray:
        """Return the fields after the steps of ET eq. 27."""
        data, new = np.maximum(ys, 0.0), WT
        for _ in range(self.steps):
            model = ss @ new
            new = np.where(model > 0, new * data / np.where(model > 0, model, 1.0), new)
        return np.where(np.diag(ss)[:, None] > UNUSED * points, new, WT)


class NMFOfCountsView(EnumeratingView):
    """A block of counts under NMF."""

    def select(self, count: int) -> np.ndarray:
        params, rows = self.evaluator.params, self.block.rows
        fields = np.maximum(params["W"], counts.LEAST)
        WT, logs = rows_of({"W": fields}), rows_of({"W": np.log(fields)})
        bias = Bernoulli(self.model.H).odds(params) - fields.sum(0)
        return best_below(overshoot_of_counts(rows, WT, logs), count, rows, logs, 1.0, bias)


class NMFOfCounts(NMF):
    """Non-negative fields that add up to the means of counts: y_d ~ Poisson((W s)_d).

    The M-step is that of EM with the counts of each cause hidden as well, by which a count is shared among the active
    causes by their rates: a multiplicative step of the divergence. The logarithm of a sum has no Gram form, and all is
    computed over explicit states, as for any model.
    """

    View = NMFOfCountsView
    prior: Bernoulli
    noise: Poisson

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Poisson()
        self.params = without_sigma(self.params, options)

    def values_with_moments(self, probability: float, summary: Summary) -> dict[str, float]:
        return sure_start(self, probability, summary)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return binary(states, self.H) @ params["W"].T

    def decode(self, params: Params, active: np.ndarray) -> np.ndarray:
        return active @ params["W"].T

    def log_joint(self, params: Params, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        mean = np.maximum(self.mean(params, states), counts.LEAST)
        return self.prior.log(params, states) + self.noise.log(params, Y, mean)

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        return {"shares": Statistic((self.H, self.D), largest), "active": Statistic((self.H,))}

    def accumulate(self, stage: str, params: Params, Y: np.ndarray, states: np.ndarray, q: np.ndarray) -> Totals:
        surprise = q[:, None] * Y / np.maximum(self.mean(params, states), counts.LEAST)
        return {
            "shares": sums_by_atom(states, surprise, self.H) * params["W"].T,
            "active": sums_by_atom(states, q, self.H),
        }

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        active, points = sums["active"], float(sums["points"])
        fields = divided(sums["shares"].T, active, UNUSED * points, params["W"])
        return {"W": fields, "pi": self.prior.learn(params, active, points, settings)}


def improved(old: np.ndarray, new: np.ndarray, ys: np.ndarray, ss: np.ndarray) -> np.ndarray:
    """Return the dimensions in which fields ``new`` (H, D) have a squared error below that of the ``old``, (D,) bool.

    A difference within ``TIE`` of the terms that make it counts as none, so that rounding does not decide.
    """
    change = new - old
    gain = (change * (2 * (ys - ss @ old) - ss @ change)).sum(0)
    return gain > TIE * (np.abs(change) * np.abs(ys)).sum(0)


MODEL = NMF
