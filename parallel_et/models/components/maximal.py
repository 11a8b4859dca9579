"""The E-step and the M-step of models with the mean max_h s_h W_h and Gaussian or Poisson noise (ET eq. 29 to 31).

The E-step uses the maximum. The M-step divides a point among the active causes by a soft maximum.
"""

import sys
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

from parallel_et.core.latent_states import Table
from parallel_et.core.model import UNUSED, BlockView, EnumeratingView, Evaluator, Model
from parallel_et.core.options import ModelOptions, initial_number
from parallel_et.core.posterior import Listed, Posterior, Sparse, Tabled
from parallel_et.core.types import Params, Settings, Statistic, Summary, Sums, Totals
from parallel_et.kernels import counts, maximal, responsibilities, truncated
from parallel_et.kernels.rows import LANES, aligned
from parallel_et.models.components.fields import (
    W,
    all_products,
    best_below,
    block_norms,
    divide_or_keep,
    overshoot,
    overshoot_of_counts,
    rows_of,
    with_empty_row,
)
from parallel_et.models.components.initial_fields import ENVELOPE_QUANTILE, initial_sigma_and_pi, lower_envelopes
from parallel_et.models.components.noises import SIGMA, Gauss, NoiseOptions, Poisson, without_sigma
from parallel_et.models.components.priors import PI, Bernoulli
from parallel_et.models.components.residual_cause import fields_of_residual
from parallel_et.models.components.rounding import imprecise_points
from parallel_et.models.components.weighted_states import weighted_states

DENSE_FRACTION = 0.2
"""Fraction of non-negligible single causes from which on a product with all causes is faster than a loop."""
MIN_TABLE_POINTS = 16
"""Smallest number of points of a block for which the means of all states are computed once."""
MAX_TABLE_NUMBERS = 1 << 21
"""Largest size, in numbers, of a table of the means of all states, or of all weights of a block."""
EMPTY = np.empty(0)
MIN_EXPONENT = -600.0
"""Smallest exponent for which exp and its inverse are finite and positive."""


class Softness(NamedTuple):
    """The soft maximum of the M-step: the responsibilities of causes for the values of a point.

    Attributes
    ----------
    soft : (4, H, wide) powers rho and rho - 1 of W / max_h W and their inverses; or (1, H, wide) log(W / max_h W)
        where the powers would underflow
    curve : coefficients of ``power_curve``
    rho, outer : exponents, outer = (rho - 1) / rho
    """

    soft: np.ndarray
    curve: np.ndarray
    rho: float
    outer: float


MIN_POINTS_FOR_QUANTILE = 20
"""Smallest number of points with a cause for a quantile that is used for its field."""


class MaximalEvaluator(Evaluator):
    """A maximal model with its parameters bound.

    Attributes
    ----------
    WT : (H, width) the fields as rows; for counts with a positive lower limit
    factors : (H, width) W, or log W for counts, whose products with points give the log joints of single causes
    softness : the soft maximum of the M-step
    precision : 1 / sigma^2; 1 for counts
    bias : (H,) log joint of each single cause without the terms that depend on the point
    odds : (H,) or (1,) log odds that a cause is active
    empty : log joint of no active cause and a point of zeros
    """

    model: "MaximalModel"

    def __init__(self, model: "MaximalModel", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        empty, odds = model.prior.empty(params), model.prior.odds(params)
        if model.counts:
            fields = np.maximum(params["W"], counts.LEAST_MEAN)
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
        odds = with_empty_row(np.broadcast_to(self.odds, model.H))[states].sum(-1)
        mean = with_empty_row(self.WT[:, : model.D])[states].max(-2)
        if model.counts:
            return self.empty + odds + model.noise.log({}, Y, np.maximum(mean, counts.LEAST_MEAN))
        return self.empty + odds - 0.5 * self.precision * ((Y - mean) ** 2).sum(-1)


class MaximalView(EnumeratingView):
    """A block of points under a maximal model. Log joints use residuals, and those of single causes products."""

    evaluator: MaximalEvaluator
    model: "MaximalModel"

    @cached_property
    def level(self) -> np.ndarray:
        """Terms of the log joint that do not depend on the mean, (n,)."""
        if self.model.counts:
            return self.evaluator.empty - log_factorials(self.block.rows)
        return np.full(len(self), self.evaluator.empty)

    @cached_property
    def base(self) -> np.ndarray:
        """Log joint of the empty state, (n,); for counts ``level``, to which products with the factors are added."""
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

    def log_singletons(self) -> np.ndarray:
        if self._coarse(True):
            return super().log_singletons()
        by = self.evaluator
        return all_products(self.block.rows, by.factors) * by.precision + by.bias + self.base[:, None]

    def select(self, count: int) -> np.ndarray:
        by, rows = self.evaluator, self.block.rows
        scores = overshoot_of_counts(rows, by.WT, by.factors) if self.model.counts else overshoot(rows, by.WT)
        return best_below(scores, count, rows, by.factors, by.precision, by.bias)

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> Posterior:
        model, by, rows, n = self.model, self.evaluator, self.block.rows, len(candidates)
        if self._coarse(self.singletons):
            return super().over_table(candidates, table, beta)
        if (
            model.counts
            and candidates.shape[1] == model.H
            and n >= MIN_TABLE_POINTS
            and len(table) * model.width <= MAX_TABLE_NUMBERS
        ):
            return self._over_all(candidates, table, beta)
        singletons = all_products(rows, by.factors) if self.singletons else np.empty((n, 0))
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
            singletons,
            evidence,
            weights,
        )
        return Tabled(evidence, candidates, table, Sparse.of(weights), Sparse.of(singletons))

    def _coarse(self, singletons: bool) -> bool:
        """Return whether products with points lose digits, so that log joints come from residuals."""
        return (self.model.counts or singletons) and len(imprecise_points(self.base)) > 0

    def _over_all(self, candidates: np.ndarray, table: Table, beta: float) -> Tabled:
        """Return the posterior of counts if all causes are candidates: log joints are products with log means."""
        by, width = self.evaluator, self.model.width
        maxima, log_maxima = aligned((len(table), width)), aligned((len(table), width))
        counts.maxima_of_states(by.WT, by.factors, table.inner, maxima, log_maxima)
        odds = np.append(np.broadcast_to(by.odds, self.model.H), 0.0)[table.members].sum(1)
        evidence, logs = np.empty(len(candidates)), all_products(self.block.rows, log_maxima)
        logs += odds - maxima[:, : self.model.D].sum(1)
        logs += self.level[:, None]
        truncated.weigh(logs, beta, evidence)
        return Tabled(evidence, candidates, table, Sparse.of(logs), Sparse.of(np.empty((len(self), 0))))

    def reconstruct(self, posterior: Tabled | Listed) -> np.ndarray:
        means = aligned((len(self), self.model.width))
        maximal.expected_means(self.evaluator.WT, *weighted_states(posterior, self.model.H), means)
        return means[:, : self.model.D]

    def accumulate(self, stage: str, posterior: Tabled | Listed, used: np.ndarray, total: Sums) -> None:
        model, by, Y, H = self.model, self.evaluator, self.block.rows, self.model.H
        candidates, members, *q = weighted_states(posterior, H)
        if stage == "sigma":
            errors = np.empty(len(Y))
            maximal.expected_errors(Y, by.WT, candidates, members, *q, errors)
            total.add("error", errors[used].sum())
            return
        found = {name: np.zeros(one.shape) for name, one in model.statistics(stage).items()}
        numerator, single_weights, active = found["numerator"], found["singletons"], found["active"]
        inner = posterior.table.inner if isinstance(posterior, Tabled) else np.empty((0, 4), np.int32)
        weights, singletons = Sparse(*q[:3]), Sparse(*q[3:])
        points, used_points = Y, used
        worthwhile = len(members) < len(weights.value) and len(Y) * len(members) <= MAX_TABLE_NUMBERS
        if isinstance(posterior, Tabled) and candidates.shape[1] == H and worthwhile:
            points, candidates, weights = self._by_state(posterior.table, weights, used)
            inner, used_points = inner[:0], np.ones(len(points), bool)
        responsibilities.weighted_sums(
            points,
            *by.softness,
            min(model.max_learned_causes, members.shape[1]),
            candidates,
            members,
            inner,
            *weights,
            used_points,
            *(found.get(name, EMPTY) for name in ("numerator", "denominator", "singletons", "active", "many")),
        )
        if len(singletons.value) > DENSE_FRACTION * len(Y) * H:
            table = np.empty((len(Y), H))
            responsibilities.table_of_singletons(*singletons, used, table)
            by_cause = table.sum(0)
            numerator += table.T @ Y
            single_weights += by_cause
            active += by_cause
        else:
            responsibilities.sums_of_singletons(Y, *singletons, used, numerator, single_weights, active)
        for name, values in found.items():
            total.add(name, values)

    def _by_state(self, table: Table, weights: Sparse, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, Sparse]:
        """Return m points with candidates and weights, one for each state, that have the same statistics as the block.

        If all causes are candidates, the responsibility of a cause in a state is the same for all points.
        The points of a state can then be replaced by their mean, (m, width).
        """
        Y = self.block.rows
        q = np.empty((len(Y), len(table)))
        responsibilities.table_of_singletons(*weights, used, q)
        mass = q.sum(0)
        some = np.flatnonzero(mass).astype(np.int32)
        learned = table.size[some] <= self.model.max_learned_causes
        means = aligned((len(some), self.model.width))
        means[learned] = q[:, some[learned]].T @ Y / mass[some[learned], None]
        means[~learned] = 0.0
        each = np.arange(len(some) + 1)
        every = np.tile(np.arange(self.model.H, dtype=np.int32), (len(some), 1))
        return means, every, Sparse(each, some, mass[some])


class MaximalModel(Model):
    """A model with the mean max_h s_h W_h. The joint uses the true maximum, the M-step a soft maximum."""

    View: ClassVar[type[BlockView]] = MaximalView
    Options: ClassVar[type[ModelOptions]] = NoiseOptions
    prior: Bernoulli
    noise: Gauss | Poisson
    params = {"W": W._replace(low=0.0), "sigma": SIGMA, "pi": PI}
    first_job = {"data": {"overlap": "max"}}
    max_learned_causes = sys.maxsize
    """Largest number of causes in a state in the M-step of the fields."""

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
        # fields do not add up, so each is as bright as the sum of the active causes would be
        active = max(1.0, min(2.0, self.H * initial_number(self, "pi", summary)))
        mean = active * max(summary.mean, summary.rms / 3) or 1.0
        return mean, mean / 3

    def fields_from_directions(self, fields: np.ndarray, points: np.ndarray, along: np.ndarray) -> np.ndarray:
        return lower_envelopes(fields, points, along)

    def propose_fields(
        self, params: Params, fields: np.ndarray, points: np.ndarray, rest: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        return fields_of_residual(self.noise, params, fields, points, rest)

    def release_fields(self, W: np.ndarray, points: np.ndarray, active: np.ndarray) -> np.ndarray:
        # a value that is never the largest is never learned: other active causes hide that it is too small
        released = W.copy()
        for h in np.flatnonzero((active > 0.5).sum(0) >= MIN_POINTS_FOR_QUANTILE):
            released[:, h] = np.maximum(W[:, h], np.quantile(points[active[:, h] > 0.5], ENVELOPE_QUANTILE, axis=0))
        return released

    def values_with_moments(self, probability: float, summary: Summary) -> Mapping[str, float]:
        return initial_sigma_and_pi(self, probability, summary)

    def nanoseconds(self, states: int) -> float:
        return 0.1 * self.D * (self.H + states)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return with_empty_row(params["W"].T)[states].max(-2)

    def softness(self, WT: np.ndarray, settings: Settings) -> Softness:
        """Return the soft maximum of the M-step for fields (H, width)."""
        return power_softness(WT, settings.model["rho"], settings.max_active)

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        if stage == "sigma":
            return {"error": Statistic((), lambda params, summary: self.D * (summary.largest + params["W"].max()) ** 2)}
        field = (self.H, self.width)
        return {
            "numerator": Statistic(field, lambda params, summary: summary.largest),
            "denominator": Statistic(field),
            "singletons": Statistic((self.H,)),
            "active": Statistic((self.H,)),
        }

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        points = float(sums["points"])
        new: dict[str, np.ndarray] = {}
        if stage == "sigma":
            assert isinstance(self.noise, Gauss)
            return {"sigma": self.noise.learn(params, float(sums["error"]), points, summary)}
        if "W" in self.options.learn:
            weight = sums["denominator"][:, : self.D] + sums["singletons"][:, None]
            known = weight > UNUSED * points
            WT = divide_or_keep(sums["numerator"][:, : self.D], weight, UNUSED * points, params["W"].T)
            if settings.undisturbed and self.max_learned_causes >= settings.max_active:
                WT = keep_order(params["W"].T, WT, np.where(known, weight, UNUSED**2 * points))
            new |= self.constrain({"W": WT.T})
        if "pi" in self.options.learn:
            new["pi"] = self.prior.learn(params, sums["active"], points, settings)
        return new


def log_factorials(Y: np.ndarray) -> np.ndarray:
    """Return the sum of log(y!) of each row, (n,)."""
    found = np.empty(len(Y))
    counts.log_factorials(Y, found)
    return found


def power_softness(WT: np.ndarray, rho: float, max_active: int) -> Softness:
    """Return the soft maximum A^rho (ET eq. 36) of fields (H, D) in states of at most ``max_active`` causes.

    Values that are tiny relative to the largest are replaced by 1e-300, which has an inverse and adds nothing to sums.
    """
    outer, top = 1.0 if rho >= responsibilities.HARD_RHO else (rho - 1) / rho, WT.max(0)
    relative = pad_for_responsibilities(WT / np.where(top > 0, top, 1.0))
    if rho >= responsibilities.STEEP_RHO:
        return Softness(np.log(np.maximum(relative, 1e-300))[None], np.empty(0), rho, outer)
    power = relative**rho
    zero = power < 1e-280
    power[zero] = 1e-300
    lower = np.where(zero, 1e-300, relative ** (rho - 1))
    soft = np.stack([power, lower, 1 / power, 1 / lower], out=aligned((4, *power.shape)))
    return Softness(soft, power_curve(outer, max_active), rho, outer)


def exponential_softness(WT: np.ndarray, slope: float, max_active: int) -> Softness:
    """Return the soft maximum exp(slope W_h) / sum_h' exp(slope W_h') of fields (H, D), for two causes MCA eq. 35."""
    fields = pad_for_responsibilities(WT)
    below = slope * (fields - fields.max(0))
    if slope >= responsibilities.HARD_RHO or below.min() < MIN_EXPONENT:
        return Softness(fields[None], np.empty(0), slope, 1.0)
    power = np.exp(below)
    soft = np.stack([power, power, 1 / power, 1 / power], out=aligned((4, *power.shape)))
    return Softness(soft, power_curve(1.0, max_active), slope, 1.0)


def pad_for_responsibilities(WT: np.ndarray) -> np.ndarray:
    """Pad fields (H, D) with ones to the width of the M-step kernel."""
    H, D = WT.shape
    found = np.ones((H, -(-D // (2 * LANES)) * 2 * LANES))
    found[:, :D] = WT
    return found


@lru_cache
def power_curve(outer: float, max_active: int) -> np.ndarray:
    """Return coefficients of u^-outer for 1 <= u <= max_active: two reduction steps and a polynomial.

    The sum of powers of fields is u times the largest power, with u up to the largest number of active causes.
    A first step divides u > c^2 by c^2, c = max_active^(1/4), and a second step divides u > c by c.
    The result contains:

    * two times three numbers: bound, inverse of the divisor, factor of the result
    * slope and offset that map 1 to c to -1 to 1
    * an even number of polynomial coefficients with an error below 1e-13
    """
    c = max(2, max_active) ** 0.25
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


def keep_order(old: np.ndarray, new: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the fields (H, D) nearest to ``new`` whose values are ordered as in ``old`` in each dimension.

    The responsibilities of the M-step are exact as long as no field overtakes another in any dimension.
    A weighted isotonic regression gives the optimal fields with this property, for Gaussian and for Poisson noise.
    The free energy therefore does not fall.
    Fields that meet are separated by a tiny gap, with the formerly larger field below.
    They can then pass each other in the next iteration.
    """
    from scipy.optimize import isotonic_regression  # takes memory, and is used only here

    found, hairs = np.empty_like(new), 1e-14 * np.maximum(new.max(0), 0.0)
    for d, hair in enumerate(hairs):
        order = np.argsort(old[:, d], kind="stable")
        _, group = np.unique(
            old[order, d], return_inverse=True
        )  # equal fields had equal responsibilities and stay together
        weights = np.bincount(group, weight[order, d])
        means = np.bincount(group, weight[order, d] * new[order, d]) / weights
        fit = isotonic_regression(means, weights=weights)
        place = np.repeat(np.arange(len(fit.blocks) - 1), np.diff(fit.blocks))[group]
        found[order, d] = fit.x[group] - hair * (np.arange(len(order)) - np.searchsorted(place, place))
    return found
