"""The evaluation that all models with mean max_h s_h W_h and Gaussian noise share (ET eq. 29 to 31)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parallel_et.kernels import maximal, select
from parallel_et.models.base import UNUSED, GaussModel, Knobs, Params, Summary, block_norms
from parallel_et.posterior.states import Posterior, States


@dataclass(frozen=True)
class Ready:
    """Of one iteration: W (D, H) and its transpose, the powers of W for the M-step, and the constants of the log joint.

    ``power`` and ``lower`` (H, D) are what the shares of the M-step are made of: the powers rho and rho - 1 of
    W / max_h W, or its logarithm where these would underflow.
    """

    W: np.ndarray
    WT: np.ndarray
    norms: np.ndarray
    power: np.ndarray
    lower: np.ndarray
    rho: float
    precision: float
    odds: float
    empty: float


@dataclass(frozen=True)
class Seen:
    """Of a block: Y (n, D) and |y|^2 (n,)."""

    Y: np.ndarray
    norms: np.ndarray


class MaximalModel(GaussModel):
    """Non-negative fields of which the largest counts; the joint has the true maximum, the M-step a soft one."""

    nonnegative = True

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.stages = ("W", "sigma") if "sigma" in options.learn else ("W",)

    def initial_fields(self, summary: Summary) -> tuple[float, float]:
        # as bright as the sum of the active causes would be: fields do not add up here
        active = max(1.0, min(2.0, self.H * self.options.pi))
        mean = active * max(summary.mean, summary.rms / 3) or 1.0
        return mean, mean / 3

    def prepare(self, params: Params, knobs: Knobs) -> Ready:
        empty, odds = self.log_prior(params)
        rho = knobs.model["rho"]
        WT = np.ascontiguousarray(params.W.T)
        power, lower = powers(WT, rho)
        return Ready(
            params.W,
            WT,
            np.einsum("dh,dh->h", params.W, params.W),
            power,
            lower,
            rho,
            1 / float(params.sigma) ** 2,
            odds,
            empty,
        )

    def observe(self, ready: Ready, Y: np.ndarray) -> Seen:
        return Seen(Y, block_norms(Y))

    def scores(self, ready: Ready, seen: Seen) -> np.ndarray:
        scores = np.empty((len(seen.Y), self.H))
        select.overshoot(seen.Y, ready.WT, scores)
        return scores

    def errors(self, ready: Ready, Y: np.ndarray, candidates: np.ndarray, states: States) -> np.ndarray:
        """|y_n - mean(s)|^2 of all states over the candidates, (K, n)."""
        out = np.empty((len(states), len(Y)))
        maximal.square_errors(Y, ready.WT, candidates, states.size, states.last, out)
        return out

    def singleton_errors(self, ready: Ready, Y: np.ndarray, norms: np.ndarray) -> np.ndarray:
        """|y_n - W_h|^2 of all causes, (n, H)."""
        return norms[:, None] - 2 * (Y @ ready.W) + ready.norms

    def log_joint(self, ready: Ready, seen: Seen, candidates: np.ndarray, states: States) -> np.ndarray:
        out = self.errors(ready, seen.Y, candidates, states)
        out *= -0.5 * ready.precision
        out += (ready.empty + ready.odds * states.size)[:, None]
        return out

    def log_singletons(self, ready: Ready, seen: Seen) -> np.ndarray:
        errors = self.singleton_errors(ready, seen.Y, seen.norms)
        return ready.empty + ready.odds - 0.5 * ready.precision * errors

    def statistics_like(self, stage: str) -> Mapping[str, tuple[int, ...]]:
        if stage == "sigma":
            return {"points": (), "error": ()}
        field = (self.H, self.D)
        return {"points": (), "numerator": field, "denominator": field, "alone": (self.H,), "active": (self.H,)}

    def bounds(self, stage: str, params: Params, summary: Summary) -> Mapping[str, float]:
        return {
            "points": 1.0,
            "error": self.D * (summary.largest + float(params.W.max())) ** 2,
            "numerator": summary.largest,
            "denominator": 1.0,
            "alone": 1.0,
            "active": 1.0,
        }

    def statistics(
        self, stage: str, ready: Ready, Y: np.ndarray, posterior: Posterior, used: np.ndarray, states: States
    ) -> Mapping[str, np.ndarray]:
        q, single, candidates = posterior.weights, posterior.singletons, posterior.candidates
        if stage == "sigma":
            error = (q * self.errors(ready, Y, candidates, states)).sum(0)
            if single.size:
                error += (single * self.singleton_errors(ready, Y, block_norms(Y))).sum(1)
            return {"points": used.sum(), "error": error[used].sum()}
        numerator, denominator = np.zeros((self.H, self.D)), np.zeros((self.H, self.D))
        alone = np.zeros(self.H)
        maximal.weighted_sums(
            Y,
            ready.power,
            ready.lower,
            ready.rho,
            q,
            single,
            candidates,
            used,
            states.size,
            states.members,
            numerator,
            denominator,
            alone,
        )
        active = np.zeros(self.H)
        for i in range(candidates.shape[1]):
            containing = (states.members == i).any(1)
            np.add.at(active, candidates[used, i], q[containing].sum(0)[used])
        if single.size:
            active += single[used].sum(0)
        return {
            "points": used.sum(),
            "numerator": numerator,
            "denominator": denominator,
            "alone": alone,
            "active": active,
        }

    def maximise(
        self, stage: str, params: Params, total: Mapping[str, np.ndarray], knobs: Knobs, gamma: int, summary: Summary
    ) -> Params:
        points = float(total["points"])
        if stage == "sigma":
            return self.learn_sigma(params, float(total["error"]), points, summary)
        new = params
        if "W" in self.options.learn and points > 0:
            weight = (total["denominator"] + total["alone"][:, None]).T
            known = weight > UNUSED * points
            W = np.where(known, total["numerator"].T / np.where(known, weight, 1.0), params.W)
            new = self.constrain(replace(params, W=W))
        return self.learn_pi(new, float(total["active"].sum()), points, knobs, gamma)

    def usage(self, total: Mapping[str, np.ndarray]) -> np.ndarray:
        return total["active"]

    def mean(self, params: Params, s: np.ndarray) -> np.ndarray:
        return (s[:, None, :] * params.W).max(2)


def powers(WT: np.ndarray, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """The fields (H, D) as the kernel of the M-step wants them; what is tiny beside the largest counts as zero."""
    top = WT.max(0)
    relative = WT / np.where(top > 0, top, 1.0)
    if rho >= maximal.STEEP:
        logs = np.log(np.maximum(relative, 1e-300))
        return logs, logs
    power = relative**rho
    power[power < 1e-290] = 0.0
    return power, np.where(power > 0, relative ** (rho - 1), 0.0)
