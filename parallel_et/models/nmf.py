"""Non-negative matrix factorisation (NMF) with binary causes: non-negative fields add up.

    p(s) = prod_h pi^s_h (1 - pi)^(1 - s_h),    W >= 0
    p(y | s) = Gauss(y; W s, sigma^2 I)  or  prod_d Poisson(y_d; (W s)_d)

The model suits non-negative data made of parts with a fixed strength: parts of images, topics, spectra.
Data may be negative because of Gaussian noise.
See ET sec. 4.1 and App. D.
"""

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
    divide_or_keep,
    overshoot,
    overshoot_of_counts,
    rows_of,
    sums_by_atom,
)
from parallel_et.models.components.initial_fields import FIRST_JOB_WITH_MOMENTS, initial_sigma_and_pi
from parallel_et.models.components.linear import LinearModel, LinearView
from parallel_et.models.components.moments import Moments
from parallel_et.models.components.noises import SIGMA, NoiseOptions, Poisson, without_sigma
from parallel_et.models.components.priors import PI, Bernoulli

TIE_TOLERANCE = 1e-12
"""Relative difference of squared errors. Two solutions of the M-step within this difference are equally good."""


class NMFOptions(NoiseOptions):
    """The keys of [model] for nmf."""

    mstep: Literal["clamp", "multiplicative"] = Field(
        "clamp",
        description="the solution clamped at zero (ET eq. 26), or 20 multiplicative steps (eq. 27); Poisson noise "
        "always uses one multiplicative step of the divergence",
    )


class NMF(Model):
    """Non-negative fields that add up.

    The candidates are the causes whose fields stay below y, by the logarithm of the upper bound of ET eq. 28.
    The key ``noise`` decides whether an instance is an ``NMFOfGauss`` or an ``NMFOfCounts``.
    """

    Options = NMFOptions
    first_job = FIRST_JOB_WITH_MOMENTS
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
            # clamped fields may be worse than the old ones; multiplicative steps never are
            new, ys, ss = np.maximum(new, 0.0), sums.ys, sums.ss
            worse = ~improved_dimensions(WT, new, ys, ss)
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
        fields = np.maximum(params["W"], counts.LEAST_MEAN)
        WT, logs = rows_of({"W": fields}), rows_of({"W": np.log(fields)})
        bias = Bernoulli(self.model.H).odds(params) - fields.sum(0)
        return best_below(overshoot_of_counts(rows, WT, logs), count, rows, logs, 1.0, bias)


class NMFOfCounts(NMF):
    """Non-negative fields that add up to the means of counts: y_d ~ Poisson((W s)_d).

    The M-step treats the counts of each cause as further hidden variables.
    The active causes share a count in proportion to their rates, which is a multiplicative step of the divergence.
    The logarithm of a sum has no Gram form, so the E-step enumerates states.
    """

    View = NMFOfCountsView
    prior: Bernoulli
    noise: Poisson

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Poisson()
        self.params = without_sigma(self.params, options)

    def values_with_moments(self, probability: float, summary: Summary) -> dict[str, float]:
        return initial_sigma_and_pi(self, probability, summary)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return binary(states, self.H) @ params["W"].T

    def decode(self, params: Params, active: np.ndarray) -> np.ndarray:
        return active @ params["W"].T

    def log_joint(self, params: Params, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        mean = np.maximum(self.mean(params, states), counts.LEAST_MEAN)
        return self.prior.log(params, states) + self.noise.log(params, Y, mean)

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        return {"counts": Statistic((self.H, self.D), largest), "active": Statistic((self.H,))}

    def accumulate(self, stage: str, params: Params, Y: np.ndarray, states: np.ndarray, q: np.ndarray) -> Totals:
        ratio = q[:, None] * Y / np.maximum(self.mean(params, states), counts.LEAST_MEAN)
        return {
            "counts": sums_by_atom(states, ratio, self.H) * params["W"].T,
            "active": sums_by_atom(states, q, self.H),
        }

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        active, points = sums["active"], float(sums["points"])
        fields = divide_or_keep(sums["counts"].T, active, UNUSED * points, params["W"])
        return {"W": fields, "pi": self.prior.learn(params, active, points, settings)}


def improved_dimensions(old: np.ndarray, new: np.ndarray, ys: np.ndarray, ss: np.ndarray) -> np.ndarray:
    """Return the dimensions in which fields ``new`` (H, D) have a smaller squared error than the ``old``, (D,) bool.

    A difference within ``TIE_TOLERANCE`` of its terms counts as zero, because it may be a rounding error.
    """
    change = new - old
    gain = (change * (2 * (ys - ss @ old) - ss @ change)).sum(0)
    return gain > TIE_TOLERANCE * (np.abs(change) * np.abs(ys)).sum(0)


MODEL = NMF
