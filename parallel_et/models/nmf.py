"""Non-negative matrix factorisation with binary causes (ET sec. 4.1, App. D)."""

from typing import Literal

import numpy as np
from pydantic import Field

from parallel_et.core.contract import UNUSED, Summary
from parallel_et.core.options import ModelOptions
from parallel_et.core.states import best
from parallel_et.models.parts.fields import W, overshoot
from parallel_et.models.parts.linear import LinearModel, Ready, Seen
from parallel_et.models.parts.solve import solve_fields


class NMFOptions(ModelOptions):
    """The keys of [model] for nmf."""

    mstep: Literal["clamp", "multiplicative"] = Field(
        "clamp", description="the solution clamped at zero (ET eq. 26), or 20 multiplicative steps (eq. 27)"
    )


class NMF(LinearModel):
    """Non-negative fields that add up; the data may be negative, by the noise.

    Candidates are the causes whose fields stay below y: the upper bound of ET eq. 28, in logarithms.
    """

    Options = NMFOptions
    params = {**LinearModel.params, "W": W._replace(low=0.0)}
    steps = 20

    def start(self, name: str, summary: Summary) -> tuple[float, float]:
        mean = max(summary.mean, summary.rms / 3) or 1.0
        return mean, mean / 3

    def select(self, ready: Ready, seen: Seen, count: int) -> np.ndarray:
        return best(overshoot(seen.Y, ready.WT), count)

    def new_fields(
        self, WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float, undisturbed: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        nowhere = np.zeros(self.H, bool)  # the fields are clamped
        if self.options.mstep == "multiplicative":
            return self._multiplied(WT, ys, ss, points), nowhere
        new = solve_fields(WT, ys, ss, points)[0]
        if undisturbed:
            # what is clamped may be worse than what was there; multiplicative steps never are
            new = np.maximum(new, 0.0)
            worse = errors(new, ys, ss) > errors(WT, ys, ss)
            new[:, worse] = self._multiplied(WT[:, worse], ys[:, worse], ss, points)
        return new, nowhere

    def _multiplied(self, WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float) -> np.ndarray:
        """Fields after the steps of ET eq. 27."""
        data, new = np.maximum(ys, 0.0), WT
        for _ in range(self.steps):
            model = ss @ new
            new = np.where(model > 0, new * data / np.where(model > 0, model, 1.0), new)
        return np.where(np.diag(ss)[:, None] > UNUSED * points, new, WT)


def errors(WT: np.ndarray, ys: np.ndarray, ss: np.ndarray) -> np.ndarray:
    """Sum of <|y - W s|^2> of each dimension, but for that of y alone; (D,)."""
    return (WT * (ss @ WT - 2 * ys)).sum(0)


MODEL = NMF
