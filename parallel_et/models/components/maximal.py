"""The evaluation that all models with mean max_h s_h W_h share, under Gaussian or Poisson noise (ET eq. 29 to 31)."""

import sys
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

from parallel_et.core.latent_states import Table
from parallel_et.core.model import UNUSED, BlockView, EnumeratingView, Evaluator, Model
from parallel_et.core.options import ModelOptions, number_of
from parallel_et.core.posterior import Listed, Posterior, Sparse, Tabled
from parallel_et.core.types import Params, Settings, Statistic, Summary, Sums, Totals
from parallel_et.kernels import counts, maximal, responsibilities, truncated
from parallel_et.kernels.rows import LANES, aligned
from parallel_et.models.components.fields import (
    W,
    all_products,
    best_below,
    block_norms,
    divided,
    overshoot,
    overshoot_of_counts,
    rows_of,
    with_none,
)
from parallel_et.models.components.initial_fields import LOW, lower_envelopes, sure_start
from parallel_et.models.components.noises import SIGMA, Gauss, NoiseOptions, Poisson, without_sigma
from parallel_et.models.components.priors import PI, Bernoulli
from parallel_et.models.components.residual_cause import fields_beside
from parallel_et.models.components.rounding import far
from parallel_et.models.components.weighted_states import weighted

DENSE = 0.2
"""Share of the single causes from which on a product with all of them is faster than a loop over those that matter."""
MANY = 16
"""Points of a block from which on all that is the same for them is computed first."""
MOST_ROOM = 1 << 21
"""Numbers that what is computed first may be: means of states, or weights of a block."""
NONE = np.empty(0)
DEEPEST = -600.0
"""Logarithm of the least number whose inverse is one too."""


class Softness(NamedTuple):
    """How the shares of the M-step are computed of the fields.

    Attributes
    ----------
    soft : (4, H, wide) the powers rho and rho - 1 of W / max_h W and their inverses, or (1, H, wide) its logarithm
        where these would underflow
    curve : how a power of a sum of powers is computed
    rho, outer : the exponents, outer = (rho - 1) / rho
    """

    soft: np.ndarray
    curve: np.ndarray
    rho: float
    outer: float


FEW = 20
"""Points with a cause from which on their quantile says something of its field."""


class MaximalEvaluator(Evaluator):
    """A maximal model with its parameters bound.

    Attributes
    ----------
    WT : (H, width) the fields as rows; for counts at least ``LEAST``
    factors : (H, width) W, or log W for counts; products of points with them give the log joints of single causes
    softness : how the M-step shares points among causes
    precision : 1 / sigma^2; 1 for counts
    bias : (H,) log odds of each cause, less what its field alone costs
    odds : (H,) or (1,) log odds that a cause is active
    empty : log joint of no active cause and a point of zeros
    """

    model: "MaximalModel"

    def __init__(self, model: "MaximalModel", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        empty, odds = model.prior.empty(params), model.prior.odds(params)
        if model.counts:
            fields = np.maximum(params["W"], counts.LEAST)
            self.WT, self.factors, self.precision = rows_of({"W": fields}), rows_of({"W": np.log(fields)}), 1.0
            self.empty, self.bias = empty, odds - fields.sum(0)
        else:
            variance = float(params["sigma"]) ** 2
            self.WT = self.factors = rows_of(params)
            self.empty, self.precision = empty - 0.5 * model.D * np.log(2 * np.pi * variance), 1 / variance
            self.bias = odds - 0.5 * self.precision * block_norms(self.WT)
        self.odds = np.atleast_1d(odds)
        self.softness = model.softness(self.WT, settings)

    def log_joint(self, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y) from the maximum of the fields, (...)."""
        model = self.model
        odds = with_none(np.broadcast_to(self.odds, model.H))[states].sum(-1)
        mean = with_none(self.WT[:, : model.D])[states].max(-2)
        if model.counts:
            return self.empty + odds + model.noise.log({}, Y, np.maximum(mean, counts.LEAST))
        return self.empty + odds - 0.5 * self.precision * ((Y - mean) ** 2).sum(-1)


class MaximalView(EnumeratingView):
    """A block of points under a maximal model: log joints by residuals, those of single causes by products."""

    evaluator: MaximalEvaluator
    model: "MaximalModel"

    @cached_property
    def level(self) -> np.ndarray:
        """The part of the log joint that does not depend on the mean, (n,)."""
        if self.model.counts:
            return self.evaluator.empty - log_factorials(self.block.rows)
        return np.full(len(self), self.evaluator.empty)

    @cached_property
    def base(self) -> np.ndarray:
        """Log joint of the empty state, (n,); for counts the level, to which products with the factors add the rest."""
        if self.model.counts:
            return self.level
        return self.evaluator.empty - 0.5 * self.evaluator.precision * block_norms(self.block.rows)

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        if self._coarse(False):
            return super().log_joint(states)
        by, logs = self.evaluator, np.empty(states.shape[:2])
        maximal.log_states(
            self.block.rows, by.WT, by.factors, self.model.counts, self.level, by.odds, by.precision, states, logs
        )
        return logs

    def log_singles(self) -> np.ndarray:
        if self._coarse(True):
            return super().log_singles()
        by = self.evaluator
        return all_products(self.block.rows, by.factors) * by.precision + by.bias + self.base[:, None]

    def select(self, count: int) -> np.ndarray:
        by, rows = self.evaluator, self.block.rows
        scores = overshoot_of_counts(rows, by.WT, by.factors) if self.model.counts else overshoot(rows, by.WT)
        return best_below(scores, count, rows, by.factors, by.precision, by.bias)

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> Posterior:
        model, by, rows, n = self.model, self.evaluator, self.block.rows, len(candidates)
        if self._coarse(self.singles):
            return super().over_table(candidates, table, beta)
        if model.counts and candidates.shape[1] == model.H and n >= MANY and len(table) * model.width <= MOST_ROOM:
            return self._over_all(candidates, table, beta)
        alone = all_products(rows, by.factors) if self.singles else np.empty((n, 0))
        evidence, weights = np.empty(n), np.empty((n, len(table)))
        maximal.posterior(
            rows,
            by.WT,
            by.factors,
            model.counts,
            self.level,
            self.base,
            by.bias,
            by.odds,
            by.precision,
            beta,
            candidates,
            table.size,
            table.inner,
            alone,
            evidence,
            weights,
        )
        return Tabled(evidence, candidates, table, Sparse.of(weights), Sparse.of(alone))

    def _coarse(self, singles: bool) -> bool:
        """Return whether products with points lose digits, so that log joints come from residuals."""
        return (self.model.counts or singles) and len(far(self.base)) > 0

    def _over_all(self, candidates: np.ndarray, table: Table, beta: float) -> Tabled:
        """Return the posterior of counts if all causes are candidates: their log joints are products with log means."""
        by, width = self.evaluator, self.model.width
        tops, top_logs = aligned((len(table), width)), aligned((len(table), width))
        counts.fields_of_states(by.WT, by.factors, table.inner, tops, top_logs)
        odds = np.append(np.broadcast_to(by.odds, self.model.H), 0.0)[table.members].sum(1)
        evidence, logs = np.empty(len(candidates)), all_products(self.block.rows, top_logs)
        logs += odds - tops[:, : self.model.D].sum(1)
        logs += self.level[:, None]
        truncated.weigh(logs, beta, evidence)
        return Tabled(evidence, candidates, table, Sparse.of(logs), Sparse.of(np.empty((len(self), 0))))

    def reconstruct(self, posterior: Tabled | Listed) -> np.ndarray:
        means = aligned((len(self), self.model.width))
        maximal.expected_means(self.evaluator.WT, *weighted(posterior, self.model.H), means)
        return means[:, : self.model.D]

    def accumulate(self, stage: str, posterior: Tabled | Listed, used: np.ndarray, total: Sums) -> None:
        model, by, Y, H = self.model, self.evaluator, self.block.rows, self.model.H
        candidates, members, *q = weighted(posterior, H)
        if stage == "sigma":
            errors = np.empty(len(Y))
            maximal.expected_errors(Y, by.WT, candidates, members, *q, errors)
            total.add("error", errors[used].sum())
            return
        found = {name: np.zeros(one.shape) for name, one in model.statistics(stage).items()}
        numerator, alone, active = found["numerator"], found["alone"], found["active"]
        inner = posterior.table.inner if isinstance(posterior, Tabled) else np.empty((0, 4), np.int32)
        weights, singles = Sparse(*q[:3]), Sparse(*q[3:])
        points, every = Y, used
        worthwhile = len(members) < len(weights.value) and len(Y) * len(members) <= MOST_ROOM
        if isinstance(posterior, Tabled) and candidates.shape[1] == H and worthwhile:
            points, candidates, weights = self._by_state(posterior.table, weights, used)
            inner, every = inner[:0], np.ones(len(points), bool)
        responsibilities.weighted_sums(
            points,
            *by.softness,
            min(model.shared, members.shape[1]),
            candidates,
            members,
            inner,
            *weights,
            every,
            *(found.get(name, NONE) for name in ("numerator", "denominator", "alone", "active", "many")),
        )
        if len(singles.value) > DENSE * len(Y) * H:
            table = np.empty((len(Y), H))
            responsibilities.spread(*singles, used, table)
            by_cause = table.sum(0)
            numerator += table.T @ Y
            alone += by_cause
            active += by_cause
        else:
            responsibilities.sums_of_singles(Y, *singles, used, numerator, alone, active)
        for name, values in found.items():
            total.add(name, values)

    def _by_state(self, table: Table, weights: Sparse, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, Sparse]:
        """Return one point for each of m states, with candidates and weights, that add to all sums what the block adds.

        If all causes are candidates, the share of a cause in a state is the same for all points. The points of a state
        then add as much as their mean, (m, width).
        """
        Y = self.block.rows
        q = np.empty((len(Y), len(table)))
        responsibilities.spread(*weights, used, q)
        mass = q.sum(0)
        some = np.flatnonzero(mass).astype(np.int32)
        learned = table.size[some] <= self.model.shared
        means = aligned((len(some), self.model.width))
        means[learned] = q[:, some[learned]].T @ Y / mass[some[learned], None]
        means[~learned] = 0.0
        each = np.arange(len(some) + 1)
        every = np.tile(np.arange(self.model.H, dtype=np.int32), (len(some), 1))
        return means, every, Sparse(each, some, mass[some])


class MaximalModel(Model):
    """Non-negative fields of which the largest counts; the joint has the true maximum, the M-step a soft one."""

    View: ClassVar[type[BlockView]] = MaximalView
    Options: ClassVar[type[ModelOptions]] = NoiseOptions
    prior: Bernoulli
    noise: Gauss | Poisson
    params = {"W": W._replace(low=0.0), "sigma": SIGMA, "pi": PI}
    first_job = {"data": {"overlap": "max"}}
    shared = sys.maxsize
    """Most causes of the states that fields are learned of."""

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.counts = Bernoulli(self.H), options.noise == "poisson"
        self.noise = Poisson() if self.counts else Gauss()
        self.stages = ("W", "sigma") if "sigma" in options.learn else ("W",)
        if self.counts and "sigma" in self.params:
            self.params = without_sigma(self.params, options)

    def evaluator(self, params: Params, settings: Settings) -> MaximalEvaluator:
        return MaximalEvaluator(self, params, settings)

    @classmethod
    def keys_in(cls, arrays: Params) -> dict[str, Any]:
        return {"noise": "gauss" if "sigma" in arrays else "poisson"} if "sigma" in cls.params else {}

    def initial_value(self, name: str, summary: Summary) -> tuple[float, float]:
        # as bright as the sum of the active causes would be: fields do not add up here
        active = max(1.0, min(2.0, self.H * number_of(self, "pi", summary)))
        mean = active * max(summary.mean, summary.rms / 3) or 1.0
        return mean, mean / 3

    def fields_from_directions(self, fields: np.ndarray, points: np.ndarray, along: np.ndarray) -> np.ndarray:
        return lower_envelopes(fields, points, along)

    def propose_fields(
        self, params: Params, fields: np.ndarray, points: np.ndarray, rest: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        return fields_beside(self.noise, params, fields, points, rest)

    def release_fields(self, W: np.ndarray, points: np.ndarray, active: np.ndarray) -> np.ndarray:
        # a value that never is the largest is never learned: others, active in its stead, hide that it is too small
        raised = W.copy()
        for h in np.flatnonzero((active > 0.5).sum(0) >= FEW):
            raised[:, h] = np.maximum(W[:, h], np.quantile(points[active[:, h] > 0.5], LOW, axis=0))
        return raised

    def values_with_moments(self, probability: float, summary: Summary) -> Mapping[str, float]:
        return sure_start(self, probability, summary)

    def nanoseconds(self, states: int) -> float:
        return 0.1 * self.D * (self.H + states)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return with_none(params["W"].T)[states].max(-2)

    def softness(self, WT: np.ndarray, settings: Settings) -> Softness:
        """Return how fields (H, width) share points in the M-step."""
        return powers(WT, settings.model["rho"], settings.most)

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        if stage == "sigma":
            return {"error": Statistic((), lambda params, summary: self.D * (summary.largest + params["W"].max()) ** 2)}
        field = (self.H, self.width)
        return {
            "numerator": Statistic(field, lambda params, summary: summary.largest),
            "denominator": Statistic(field),
            "alone": Statistic((self.H,)),
            "active": Statistic((self.H,)),
        }

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        points = float(sums["points"])
        new: dict[str, np.ndarray] = {}
        if stage == "sigma":
            assert isinstance(self.noise, Gauss)
            return {"sigma": self.noise.learn(params, float(sums["error"]), points, summary)}
        if "W" in self.options.learn:
            weight = sums["denominator"][:, : self.D] + sums["alone"][:, None]
            known = weight > UNUSED * points
            WT = divided(sums["numerator"][:, : self.D], weight, UNUSED * points, params["W"].T)
            if settings.undisturbed and self.shared >= settings.most:
                WT = in_order(params["W"].T, WT, np.where(known, weight, UNUSED**2 * points))
            new |= self.constrain({"W": WT.T})
        if "pi" in self.options.learn:
            new["pi"] = self.prior.learn(params, sums["active"], points, settings)
        return new


def log_factorials(Y: np.ndarray) -> np.ndarray:
    """Return the sum of log(y!) of each row, (n,)."""
    found = np.empty(len(Y))
    counts.log_factorials(Y, found)
    return found


def powers(WT: np.ndarray, rho: float, most: int) -> Softness:
    """Shares A^rho (ET eq. 36) of the fields (H, D) in states of at most ``most`` causes.

    What is tiny beside the largest counts as zero, which is a number so small that it adds nothing to any other, and
    whose inverse is one.
    """
    outer, top = 1.0 if rho >= responsibilities.HARD else (rho - 1) / rho, WT.max(0)
    relative = wide(WT / np.where(top > 0, top, 1.0))
    if rho >= responsibilities.STEEP:
        return Softness(np.log(np.maximum(relative, 1e-300))[None], np.empty(0), rho, outer)
    power = relative**rho
    zero = power < 1e-280
    power[zero] = 1e-300
    lower = np.where(zero, 1e-300, relative ** (rho - 1))
    soft = np.stack([power, lower, 1 / power, 1 / lower], out=aligned((4, *power.shape)))
    return Softness(soft, falling_curve(outer, most), rho, outer)


def exponentials(WT: np.ndarray, slope: float, most: int) -> Softness:
    """Shares exp(slope W_h) / sum_h' exp(slope W_h') of fields (H, D): of two causes the sigmoid of MCA eq. 35."""
    fields = wide(WT)
    below = slope * (fields - fields.max(0))
    if slope >= responsibilities.HARD or below.min() < DEEPEST:
        return Softness(fields[None], np.empty(0), slope, 1.0)
    part = np.exp(below)
    soft = np.stack([part, part, 1 / part, 1 / part], out=aligned((4, *part.shape)))
    return Softness(soft, falling_curve(1.0, most), slope, 1.0)


def wide(WT: np.ndarray) -> np.ndarray:
    """Fields (H, D) as the kernel of the M-step wants them, with ones behind."""
    H, D = WT.shape
    found = np.ones((H, -(-D // (2 * LANES)) * 2 * LANES))
    found[:, :D] = WT
    return found


@lru_cache
def falling_curve(outer: float, most: int) -> np.ndarray:
    """What makes u^-outer of 1 <= u <= most, the most causes that a state has, by two steps and a polynomial.

    Powers of fields add up to u times the largest. Where u is above c^2, c = most^(1/4), it is divided by c^2, then
    where it is above c by c: the first two threes are bound, divisor's inverse and the factor that follows of the
    result. Then slope and offset that bring 1 to c to -1 to 1, and the coefficients, an even number, that keep the
    error below 1e-13.
    """
    c = max(2, most) ** 0.25
    steps = [c**2, c**-2, c ** (-2 * outer), c, 1 / c, c**-outer, 2 / (c - 1), -(c + 1) / (c - 1)]
    middle, half, x = (c + 1) / 2, (c - 1) / 2, np.linspace(-1, 1, 101)
    for count in range(4, 64, 2):
        series = chebyshev.chebinterpolate(lambda x: (middle + half * x) ** -outer, count - 1)
        if np.abs(chebyshev.chebval(x, series) - (middle + half * x) ** -outer).max() < 1e-13:
            break
    coefficients = np.zeros(count)
    found = chebyshev.cheb2poly(series)
    coefficients[: len(found)] = found
    return np.array([*steps, *coefficients])


def in_order(old: np.ndarray, new: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The fields (H, D) nearest to the new ones, by their weights, whose values stand as the old ones did.

    The shares of the M-step hold as long as in no dimension a field overtakes another; among such fields these are
    the best, under either noise, as both are best at means where nothing else is asked for; so the free energy does
    not fall. Fields that meet are moved apart by a hair, the one that was larger below the other, by which they pass
    each other in the next iteration.
    """
    from scipy.optimize import isotonic_regression  # takes memory, and is used in here alone

    found, hairs = np.empty_like(new), 1e-14 * np.maximum(new.max(0), 0.0)
    for d, hair in enumerate(hairs):
        order = np.argsort(old[:, d], kind="stable")
        _, group = np.unique(old[order, d], return_inverse=True)  # equal ones had equal shares: they stay together
        weights = np.bincount(group, weight[order, d])
        means = np.bincount(group, weight[order, d] * new[order, d]) / weights
        fit = isotonic_regression(means, weights=weights)
        place = np.repeat(np.arange(len(fit.blocks) - 1), np.diff(fit.blocks))[group]
        found[order, d] = fit.x[group] - hair * (np.arange(len(order)) - np.searchsorted(place, place))
    return found
