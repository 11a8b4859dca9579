"""The evaluation that all models with mean max_h s_h W_h and Gaussian noise share (ET eq. 29 to 31)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_et.core.contract import UNUSED, Block, Knobs, Model, Params, Sum, Summary, Totals
from parallel_et.core.options import number_of
from parallel_et.core.posterior import Listed, Sparse, Tabled
from parallel_et.core.states import Table, best
from parallel_et.kernels import maximal
from parallel_et.kernels.rows import aligned
from parallel_et.models.parts.fields import W, all_products, block_norms, overshoot, rows_of, with_none
from parallel_et.models.parts.noises import SIGMA, Gauss
from parallel_et.models.parts.priors import PI, Bernoulli
from parallel_et.models.parts.starts import sure_start


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
    odds: np.ndarray
    empty: float


@dataclass(frozen=True)
class Seen:
    """Of a block: Y (n, width), the log joint of the empty state (n,), and Y W (n, H) or (n, 0)."""

    Y: np.ndarray
    base: np.ndarray
    product: np.ndarray


class MaximalModel(Model):
    """Non-negative fields of which the largest counts; the joint has the true maximum, the M-step a soft one."""

    prior: Bernoulli
    noise: Gauss
    params = {"W": W._replace(low=0.0), "sigma": SIGMA, "pi": PI}

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Gauss()
        self.stages = ("W", "sigma") if "sigma" in options.learn else ("W",)

    def start(self, name: str, summary: Summary) -> tuple[float, float]:
        # as bright as the sum of the active causes would be: fields do not add up here
        active = max(1.0, min(2.0, self.H * number_of(self, "pi", summary)))
        mean = active * max(summary.mean, summary.rms / 3) or 1.0
        return mean, mean / 3

    def beside_moments(self, probability: float, summary: Summary) -> Mapping[str, float]:
        return sure_start(self, probability, summary)

    def nanoseconds(self, states: int) -> float:
        return 0.1 * self.D * (self.H + states)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return with_none(params["W"].T)[states].max(-2)

    def prepare(self, params: Params, knobs: Knobs) -> Ready:
        sigma = float(params["sigma"])
        empty, odds = self.prior.empty(params) - 0.5 * self.D * np.log(2 * np.pi * sigma**2), self.prior.odds(params)
        rho, precision = knobs.model["rho"], 1 / sigma**2
        WT = rows_of(params)
        bias = odds - 0.5 * precision * block_norms(WT)
        return Ready(WT, *powers(WT, rho), rho, precision, bias, np.atleast_1d(odds), empty)

    def log_joint(self, ready: Ready, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        odds = with_none(np.broadcast_to(ready.odds, self.H))[states].sum(-1)
        gap = Y - with_none(ready.WT[:, : self.D])[states].max(-2)
        return ready.empty + odds - 0.5 * ready.precision * (gap * gap).sum(-1)

    def observe(self, ready: Ready, block: Block, singles: bool) -> Seen:
        Y = block.rows
        base = ready.empty - 0.5 * ready.precision * block_norms(Y)
        return Seen(Y, base, all_products(Y, ready.WT) if singles else np.empty((len(Y), 0)))

    def select(self, ready: Ready, seen: Seen, count: int) -> np.ndarray:
        return best(overshoot(seen.Y, ready.WT), count)

    def over_table(
        self, ready: Ready, seen: Seen, candidates: np.ndarray, table: Table, beta: float, singles: bool
    ) -> Tabled:
        n = len(candidates)
        evidence, weights = np.empty(n), np.empty((n, len(table)))
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
            table.size,
            table.inner,
            seen.product,
            evidence,
            weights,
        )
        return Tabled(evidence, candidates, table, Sparse.of(weights), Sparse.of(seen.product))

    def log_states(self, ready: Ready, seen: Seen, states: np.ndarray) -> np.ndarray:
        logs = np.empty(states.shape[:2])
        maximal.log_states(seen.Y, ready.WT, ready.empty, ready.odds, ready.precision, states, logs)
        return logs

    def log_singles(self, ready: Ready, block: Block) -> np.ndarray:
        base = ready.empty - 0.5 * ready.precision * block_norms(block.rows)
        return all_products(block.rows, ready.WT) * ready.precision + ready.bias + base[:, None]

    def reconstruct(self, ready: Ready, params: Params, posterior: Tabled | Listed) -> np.ndarray:
        means = aligned((len(posterior.evidence), self.width))
        maximal.expected_means(ready.WT, *weighted(posterior, self.H), means)
        return means[:, : self.D]

    def sums(self, stage: str) -> Mapping[str, Sum]:
        if stage == "sigma":
            return {"error": Sum((), lambda params, summary: self.D * (summary.largest + params["W"].max()) ** 2)}
        field = (self.H, self.width)
        return {
            "numerator": Sum(field, lambda params, summary: summary.largest),
            "denominator": Sum(field),
            "alone": Sum((self.H,)),
            "active": Sum((self.H,)),
        }

    def collect(
        self, stage: str, ready: Ready, block: Block, posterior: Tabled | Listed, used: np.ndarray, total: Any
    ) -> None:
        Y, q = block.rows, weighted(posterior, self.H)
        if stage == "sigma":
            errors = np.empty(len(Y))
            maximal.expected_errors(Y, ready.WT, *q, errors)
            total.add("error", errors[used].sum())
            return
        found = (*np.zeros((2, self.H, self.width)), *np.zeros((2, self.H)))
        maximal.weighted_sums(Y, ready.power, ready.lower, ready.rho, *q, used, *found)
        for name, values in zip(self.sums(stage), found, strict=True):
            total.add(name, values)

    def maximise(self, stage: str, params: Params, sums: Totals, knobs: Knobs, summary: Summary) -> Params:
        points = float(sums["points"])
        new: dict[str, np.ndarray] = {}
        if stage == "sigma":
            return {"sigma": self.noise.learn(params, float(sums["error"]), points, summary)}
        if "W" in self.options.learn:
            weight = sums["denominator"][:, : self.D] + sums["alone"][:, None]
            known = weight > UNUSED * points
            WT = np.where(known, sums["numerator"][:, : self.D] / np.where(known, weight, 1.0), params["W"].T)
            if knobs.undisturbed:
                WT = in_order(params["W"].T, WT, np.where(known, weight, UNUSED**2 * points))
            new |= self.constrain({"W": WT.T})
        if "pi" in self.options.learn:
            new["pi"] = self.prior.learn(params, sums["active"], points, knobs)
        return new


def weighted(posterior: Tabled | Listed, H: int) -> tuple[np.ndarray, ...]:
    """The states of a block and their weights, as the kernels take them."""
    if isinstance(posterior, Listed):
        start, state, weight = posterior.q
        none = Sparse(np.zeros(len(start), np.int64), np.empty(0, np.int32), np.empty(0))
        each = np.arange(len(state), dtype=np.int32)
        return *maximal.over_candidates(posterior.states, start, state, H), start, each, weight, *none
    return posterior.candidates, posterior.table.members, *posterior.q, *posterior.alone


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


def in_order(old: np.ndarray, new: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The fields (H, D) nearest to the new ones, by their weights, whose values stand as the old ones did.

    The shares of the M-step hold as long as in no dimension a field overtakes another; among such fields these are
    the best, so that the free energy does not fall. Fields that meet are moved apart by a hair, the one that was
    larger below the other, by which they pass each other in the next iteration.
    """
    from scipy.optimize import isotonic_regression  # takes memory, and is used in here alone

    found, hair = np.empty_like(new), 1e-14 * max(float(np.max(new)), 0.0)
    for d in range(new.shape[1]):
        order = np.argsort(old[:, d], kind="stable")
        _, group = np.unique(old[order, d], return_inverse=True)  # equal ones had equal shares: they stay together
        weights = np.bincount(group, weight[order, d])
        means = np.bincount(group, weight[order, d] * new[order, d]) / weights
        fit = isotonic_regression(means, weights=weights)
        place = np.repeat(np.arange(len(fit.blocks) - 1), np.diff(fit.blocks))[group]
        found[order, d] = fit.x[group] - hair * (np.arange(len(order)) - np.searchsorted(place, place))
    return found
