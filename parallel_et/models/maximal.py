"""The evaluation that all models with mean max_h s_h W_h and Gaussian noise share (ET eq. 29 to 31)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parallel_et.kernels import maximal, truncated
from parallel_et.models.base import (
    UNUSED,
    GaussModel,
    Knobs,
    Params,
    Summary,
    Sums,
    all_products,
    best,
    block_norms,
    fields_of,
    overshoot,
)
from parallel_et.posterior.states import Posterior, Sparse, States
from parallel_et.rows import aligned


@dataclass(frozen=True)
class Ready:
    """Of one iteration: W^T (H, width), the powers of W for the M-step, and the constants of the log joint.

    ``power`` and ``lower`` (H, width) are what the shares of the M-step are made of: the powers rho and rho - 1 of
    W / max_h W, or its logarithm where these would underflow.
    """

    WT: np.ndarray
    power: np.ndarray
    lower: np.ndarray
    rho: float
    precision: float
    bias: np.ndarray
    odds: float
    empty: float


@dataclass(frozen=True)
class Seen:
    """Of a block: Y (n, width), the log joint of the empty state (n,), and Y W (n, H) or (n, 0)."""

    Y: np.ndarray
    base: np.ndarray
    product: np.ndarray


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

    def nanoseconds(self, states: int) -> float:
        return 0.1 * self.D * (self.H + states)

    def prepare(self, params: Params, knobs: Knobs) -> Ready:
        empty, odds = self.log_prior(params)
        rho, precision = knobs.model["rho"], 1 / float(params.sigma) ** 2
        WT = fields_of(params)
        bias = odds - 0.5 * precision * block_norms(WT)
        return Ready(WT, *powers(WT, rho), rho, precision, bias, odds, empty)

    def observe(self, ready: Ready, Y: np.ndarray, singletons: bool) -> Seen:
        base = ready.empty - 0.5 * ready.precision * block_norms(Y)
        return Seen(Y, base, all_products(Y, ready.WT) if singletons else np.empty((len(Y), 0)))

    def select(self, ready: Ready, seen: Seen, count: int) -> np.ndarray:
        return best(overshoot(seen.Y, ready.WT), count)

    def posterior(self, ready: Ready, seen: Seen, candidates: np.ndarray, states: States, beta: float) -> Posterior:
        n = len(candidates)
        evidence, weights = np.empty(n), np.empty((n, len(states)))
        maximal.posterior(
            seen.Y,
            ready.WT,
            ready.empty,
            seen.base,
            ready.bias,
            ready.odds,
            ready.precision,
            beta,
            candidates,
            states.size,
            states.inner,
            seen.product,
            evidence,
            weights,
        )
        matter, alone = (Sparse(*truncated.significant(q)) for q in (weights, seen.product))
        return Posterior(evidence, candidates, alone, weights=matter)

    def log_singletons(self, ready: Ready, seen: Seen) -> np.ndarray:
        return all_products(seen.Y, ready.WT) * ready.precision + ready.bias + seen.base[:, None]

    def means(self, posterior: Posterior, states: States) -> np.ndarray:
        means = np.empty((len(posterior.candidates), self.H))
        truncated.means(*self.weighted(posterior, states), means)
        return means

    def reconstruction(self, ready: Ready, posterior: Posterior, states: States) -> np.ndarray:
        means = aligned((len(posterior.candidates), self.width))
        maximal.expected_means(ready.WT, *self.weighted(posterior, states), means)
        return means[:, : self.D]

    def best_states(self, ready: Ready, Y: np.ndarray, posterior: Posterior, states: States) -> np.ndarray:
        assert posterior.weights is not None
        best, weight = posterior.weights.heaviest()
        outside, single = posterior.singletons.heaviest()
        return states.causes(posterior.candidates, best, np.where(single > weight, outside, -1))

    def weighted(self, posterior: Posterior, states: States) -> tuple[np.ndarray, ...]:
        """The states of a block and their weights, as the kernels take them."""
        assert posterior.weights is not None
        return posterior.candidates, states.members, *posterior.weights, *posterior.singletons

    def statistics_like(self, stage: str) -> Mapping[str, tuple[int, ...]]:
        if stage == "sigma":
            return {"points": (), "error": ()}
        field = (self.H, self.width)
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
        self,
        stage: str,
        ready: Ready,
        Y: np.ndarray,
        posterior: Posterior,
        used: np.ndarray,
        states: States,
        total: Sums,
    ) -> None:
        total.add("points", used.sum())
        q = self.weighted(posterior, states)
        if stage == "sigma":
            errors = np.empty(len(Y))
            maximal.expected_errors(Y, ready.WT, *q, errors)
            total.add("error", errors[used].sum())
            return
        fields, causes = np.zeros((2, self.H, self.width)), np.zeros((2, self.H))
        maximal.weighted_sums(Y, ready.power, ready.lower, ready.rho, *q, used, *fields, *causes)
        for name, values in zip(("numerator", "denominator", "alone", "active"), (*fields, *causes), strict=True):
            total.add(name, values)

    def maximise(
        self, stage: str, params: Params, total: Mapping[str, np.ndarray], knobs: Knobs, gamma: int, summary: Summary
    ) -> Params:
        points = float(total["points"])
        if stage == "sigma":
            return self.learn_sigma(params, float(total["error"]), points, summary)
        new = params
        if "W" in self.options.learn and points > 0:
            weight = total["denominator"][:, : self.D] + total["alone"][:, None]
            known = weight > UNUSED * points
            WT = np.where(known, total["numerator"][:, : self.D] / np.where(known, weight, 1.0), params.W.T)
            new = self.constrain(replace(params, W=WT.T))
        return self.learn_pi(new, float(total["active"].sum()), points, knobs, gamma)

    def usage(self, total: Mapping[str, np.ndarray]) -> np.ndarray:
        return total["active"]

    def mean(self, params: Params, s: np.ndarray) -> np.ndarray:
        return np.array([params.W[:, on].max(1, initial=0.0) for on in s.astype(bool)])


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
