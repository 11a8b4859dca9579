"""Non-negative matrix factorisation with binary causes (ET sec. 4.1, App. D)."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.contract import UNUSED, Knobs, Model, Params, Sum, Summary, Totals
from parallel_et.core.states import best
from parallel_et.kernels import counts
from parallel_et.models.parts.fields import W, overshoot, rows_of, sums_by_atom
from parallel_et.models.parts.linear import LinearModel, Ready, Seen
from parallel_et.models.parts.moments import Moments
from parallel_et.models.parts.noises import NoiseOptions, Poisson, without_sigma
from parallel_et.models.parts.solve import solve_sums
from parallel_et.models.parts.starts import FROM_MOMENTS

TIE = 1e-12
"""Relative difference of squared errors below which two solutions of the M-step are equally good."""


class NMFOptions(NoiseOptions):
    """The keys of [model] for nmf."""

    mstep: Literal["clamp", "multiplicative"] = Field(
        "clamp",
        description="the solution clamped at zero (ET eq. 26), or 20 multiplicative steps (eq. 27); with Poisson noise "
        "always one multiplicative step, of the divergence",
    )


class NMF(LinearModel):
    """Non-negative fields that add up; the data may be negative, by the noise.

    Candidates are the causes whose fields stay below y: the upper bound of ET eq. 28, in logarithms.
    """

    Options = NMFOptions
    first_job = FROM_MOMENTS
    params = {**LinearModel.params, "W": W._replace(low=0.0)}
    steps = 20

    def __new__(cls, options: Any, dims: int) -> "NMF":
        return super().__new__(NMFOfCounts if options.noise == "poisson" else cls)

    @classmethod
    def keys_told_by(cls, arrays: Params) -> dict[str, Any]:
        return {"noise": "gauss" if "sigma" in arrays else "poisson"}

    def start(self, name: str, summary: Summary) -> tuple[float, float]:
        mean = max(summary.mean, summary.rms / 3) or 1.0
        return mean, mean / 3

    def select(self, ready: Ready, seen: Seen, count: int) -> np.ndarray:
        return best(overshoot(seen.Y, ready.WT), count)

    def new_fields(self, WT: np.ndarray, sums: Moments, points: float, knobs: Knobs) -> tuple[np.ndarray, np.ndarray]:
        nowhere = np.zeros(self.H, bool)  # the fields are clamped
        if self.options.mstep == "multiplicative":
            return self._multiplied(WT, sums.ys, sums.ss, points), nowhere
        new = solve_sums(WT, sums, points, knobs.deal if self.dealt else None)[0]
        if knobs.undisturbed:
            # what is clamped may be worse than what was there; multiplicative steps never are
            new, ys, ss = np.maximum(new, 0.0), sums.ys, sums.ss
            worse = ~improved(WT, new, ys, ss)
            new[:, worse] = self._multiplied(WT[:, worse], ys[:, worse], ss, points)
        return new, nowhere

    def _multiplied(self, WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float) -> np.ndarray:
        """Fields after the steps of ET eq. 27."""
        data, new = np.maximum(ys, 0.0), WT
        for _ in range(self.steps):
            model = ss @ new
            new = np.where(model > 0, new * data / np.where(model > 0, model, 1.0), new)
        return np.where(np.diag(ss)[:, None] > UNUSED * points, new, WT)


class NMFOfCounts(NMF):
    """Non-negative fields that add up to the means of counts: y_d ~ Poisson((W s)_d).

    The M-step is that of EM with the counts of each cause hidden as well, by which a count is shared among the active
    causes by their rates: a multiplicative step of the divergence. The logarithm of a sum has no Gram form, and all is
    computed over explicit states, as for any model.
    """

    noise: Any
    prepare, observe, observe_states, log_singles = (
        Model.prepare,
        Model.observe,
        Model.observe_states,
        Model.log_singles,
    )
    observe_chains, sample = Model.observe_chains, Model.sample
    log_states, over_table, best, reconstruct = Model.log_states, Model.over_table, Model.best, Model.reconstruct
    over_listed, carried = Model.over_listed, Model.carried
    collect, usage, nanoseconds = Model.collect, Model.usage, Model.nanoseconds

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.noise, self.params, self.dealt = Poisson(), without_sigma(self.params, options), False

    def check(self, summary: Summary) -> None:
        self.noise.check(summary)

    def log_joint(self, ready: Any, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        mean = np.maximum(self.mean(ready, states), counts.LEAST)
        return self.prior.log(ready, states) + self.noise.log(ready, Y, mean)

    def select(self, ready: Any, seen: Any, count: int) -> np.ndarray:
        return best(bounds_of_counts(seen.rows, ready["W"]), count)

    def sums(self, stage: str) -> Mapping[str, Sum]:
        return {"shares": Sum((self.H, self.D), lambda params, summary: summary.largest), "active": Sum((self.H,))}

    def statistics(self, stage: str, ready: Any, Y: np.ndarray, states: np.ndarray, q: np.ndarray) -> Totals:
        surprise = q[:, None] * Y / np.maximum(self.mean(ready, states), counts.LEAST)
        return {
            "shares": sums_by_atom(states, surprise, self.H) * ready["W"].T,
            "active": sums_by_atom(states, q, self.H),
        }

    def maximise(self, stage: str, params: Params, sums: Totals, knobs: Knobs, summary: Summary) -> Params:
        active, points = sums["active"], float(sums["points"])
        used = active > UNUSED * points
        fields = np.where(used, sums["shares"].T / np.where(used, active, 1.0), params["W"])
        return {"W": fields, "pi": self.prior.learn(params, active, points, knobs)}


def improved(old: np.ndarray, new: np.ndarray, ys: np.ndarray, ss: np.ndarray) -> np.ndarray:
    """Return the dimensions in which fields ``new`` (H, D) have a squared error below that of the ``old``, (D,) bool.

    A difference within ``TIE`` of the terms that make it counts as none, so that rounding does not decide.
    """
    change = new - old
    gain = (change * (2 * (ys - ss @ old) - ss @ change)).sum(0)
    return gain > TIE * (np.abs(change) * np.abs(ys)).sum(0)


def bounds_of_counts(Y: np.ndarray, W: np.ndarray) -> np.ndarray:
    """The same for Poisson noise, up to what is y's alone, of points Y (n, width) and fields (D, H); (n, H)."""
    fields, scores = np.maximum(W, counts.LEAST), np.empty((len(Y), W.shape[1]))
    counts.overshoot(Y, rows_of({"W": fields}), rows_of({"W": np.log(fields)}), scores)
    return scores


MODEL = NMF
