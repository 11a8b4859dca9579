"""The E-step and the M-step of models with the mean W s and Gaussian noise (ET eq. 24 to 26).

    |y - W s|^2 = |y|^2 - 2 s^T W^T y + s^T G s,    G = W^T W

In this Gram form, a state costs a few additions, whatever D is. The M-step minimises sum_n <|y_n - W s|^2> over W.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from parallel_et.core.gibbs import Chains, Sweeps, distinct_states
from parallel_et.core.latent_states import Table, binary
from parallel_et.core.model import EnumeratingView, Evaluator, Model
from parallel_et.core.posterior import (
    ListedErrors,
    Posterior,
    SampledMoments,
    Sparse,
    Tabled,
    TabledMoments,
    better_states,
)
from parallel_et.core.types import Params, Settings, Statistic, Summary, Sums, Totals
from parallel_et.kernels import (
    linear,
    residuals,
    select,
    triangles,  # noqa: F401  used by the linear algebra of these models
)
from parallel_et.kernels.rows import LANES
from parallel_et.models.components.fields import W, all_products, block_norms, with_empty_row
from parallel_et.models.components.initial_fields import initial_sigma_and_pi
from parallel_et.models.components.moments import Moments, moment_statistics
from parallel_et.models.components.noises import SIGMA, Gauss
from parallel_et.models.components.priors import PI, Bernoulli
from parallel_et.models.components.rounding import MIN_ERROR_FRACTION, imprecise_points

Linear = TabledMoments | SampledMoments | ListedErrors
"""Posteriors of a linear model."""
DISTRIBUTED_M_STEP_PRODUCTS = 1 << 27
"""Number of products H^2 D from which on all ranks share the M-step."""
PAIR_COST_RATIO = 3
"""Time for one element of G computed for a point, relative to its time in the full product."""
FINITE_BOUND = 1e300
"""Bound of statistics in place of one that is not finite. The M-step refuses parameters that are not finite."""
MAX_MOMENT_CANDIDATES = 100
"""Largest number of candidates whose moments are stored. For more candidates, listed draws need less memory."""


class LinearEvaluator(Evaluator):
    """A linear model with its parameters bound.

    Attributes
    ----------
    WT : (H, width) the fields as rows
    all_pairs : (H, H) G = W^T W, or None if only the entries of candidates are computed
    squares : (H,) the diagonal of G
    precision : 1 / sigma^2
    odds : (H,) log odds that a cause is active
    empty : log joint of no active cause and a point of zeros
    """

    model: "LinearModel"
    all_pairs: np.ndarray | None

    def __init__(self, model: "LinearModel", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        H = model.H
        self.WT = settings.algebra.rows(params["W"])
        self.precision, self.empty = model.scales(params)
        self.odds = np.broadcast_to(model.prior.odds(params), H)
        only_candidates = model.distributed and 0 < PAIR_COST_RATIO * settings.pairs < H * (H - 1) // 2
        self.all_pairs = None if only_candidates else settings.algebra.gram(self.WT)
        self.squares = settings.algebra.square_norms(self.WT) if only_candidates else np.diagonal(self.gram).copy()

    @cached_property
    def bias(self) -> np.ndarray:
        """Log odds of each cause minus the energy of its field, (H,)."""
        return self.odds - 0.5 * self.precision * self.squares

    @cached_property
    def gram(self) -> np.ndarray:
        """The Gram matrix G, (H, H)."""
        return self.WT @ self.WT.T if self.all_pairs is None else self.all_pairs

    def pairs(self, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return G (H, H), or its entries for pairs of candidates (n, C), (n, C (C - 1) / 2); the other is empty."""
        n, C = candidates.shape
        if self.all_pairs is not None:
            return self.all_pairs, np.empty((n, 0))
        found = np.empty((n, C * (C - 1) // 2))
        select.gram_of_candidates(self.WT, candidates, found)
        return np.empty((0, 0)), found

    def log_joint(self, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y) from the residual y - W s, (...)."""
        odds = with_empty_row(self.odds)[states].sum(-1)
        return self.empty + odds - 0.5 * self.precision * squared_residuals(self.WT[:, : self.model.D], Y, states)


class GaussView(EnumeratingView):
    """A block of points with Gaussian noise around W s."""

    evaluator: Any

    @cached_property
    def norms(self) -> np.ndarray:
        """Squared lengths |y_n|^2, (n,)."""
        return block_norms(self.block.rows)

    @cached_property
    def base(self) -> np.ndarray:
        """Log joint of the empty state, (n,)."""
        return self.evaluator.empty - 0.5 * self.evaluator.precision * self.norms

    @cached_property
    def product(self) -> np.ndarray:
        """Products Y W, (n, H)."""
        return all_products(self.block.rows, self.evaluator.WT)

    def reconstruct(self, posterior: Posterior) -> np.ndarray:
        return posterior.means(self.model.H) @ self.evaluator.WT[:, : self.model.D]


class LinearView(GaussView):
    """A block of points under a linear model. Log joints have Gram form, or use residuals where that loses digits."""

    evaluator: LinearEvaluator

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> Posterior:
        model, by, singletons, rows = self.model, self.evaluator, self.singletons, self.block.rows
        n, C = candidates.shape
        products, errors = np.empty((n, C)), np.empty(n)
        if singletons:
            outside = self.product.copy()
            select.pick(outside, candidates, products)
        else:
            outside = np.empty((n, 0))
            select.products(rows, by.WT, candidates, products)
        evidence, moments = np.empty(n), np.empty((C * (C + 1) // 2, n))
        pairs = by.pairs(candidates)
        linear.posterior(
            products,
            self.base,
            by.bias,
            *pairs,
            by.precision,
            beta,
            candidates,
            table.inner,
            len(table),
            outside,
            evidence,
            moments,
        )
        means = diagonals(moments, C)
        residuals.errors_of_moments(self.norms, products, by.squares, *pairs, candidates, means, moments, errors)
        if singletons:
            errors += np.einsum("nh,nh->n", outside, by.squares - 2 * self.product)
        some = imprecise_points(self.base)
        if len(some):
            subset = self.subset(some)
            found = subset.by_residuals(candidates[some], table, beta)
            evidence[some], moments[:, some], errors[some] = subset.moments_of(found)
            if singletons:
                outside[some] = found.singletons.dense(model.H)
        return TabledMoments(evidence, candidates, moments, self.norms, errors, Sparse.of(outside), table)

    def by_residuals(self, candidates: np.ndarray, table: Table, beta: float) -> Tabled:
        """Return the posterior from the residuals of explicit states. Costs D operations per state."""
        found = super().over_table(candidates, table, beta)
        assert isinstance(found, Tabled)
        return found

    def moments_of(self, found: Tabled) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the evidence (n,), the moments (C (C + 1) / 2, n) and the expected squared residuals (n,)."""
        C = found.candidates.shape[1]
        member = binary(found.table.members, C)
        rows = [member[:, i] & member[:, j] for j in range(C) for i in range(j + 1)]
        point, states, q = found.pairs(np.ones(len(self), bool))
        error = squared_residuals(self.evaluator.WT[:, : self.model.D], self.block.Y[point], states)
        errors = np.bincount(point, q * error, len(self))
        return found.evidence, np.stack(rows).astype(float) @ found.q.dense(len(found.table)).T, errors

    def sample(self, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Posterior:
        from parallel_et.kernels import gibbs  # loaded only by jobs that sample

        if len(imprecise_points(self.base)):
            return super().sample(candidates, sweeps, beta)
        by = self.evaluator
        n, C = candidates.shape
        burn = 0 if sweeps.joint else sweeps.burn
        kept, groups = sweeps.length - burn, -(-sweeps.chains // LANES)
        products, evidence, found = np.empty((n, C)), np.empty(n), np.empty((n, C), bool)
        select.products(self.block.rows, by.WT, candidates, products)
        draws = np.empty((n, C, -(-kept * groups // 8) * 8), np.uint8)
        gibbs.sample(
            products,
            self.base,
            by.bias,
            by.gram,
            by.precision,
            beta,
            candidates,
            sweeps.random.key("chains"),
            sweeps.first,
            sweeps.order(C),
            sweeps.betas(beta),
            burn,
            sweeps.chains,
            evidence,
            found,
            draws,
        )
        if C > MAX_MOMENT_CANDIDATES or sweeps.joint:
            bits = np.unpackbits(draws[..., : kept * groups], -1, bitorder="little").reshape(n, C, kept, groups * LANES)
            active = bits[..., : sweeps.chains].reshape(n, C, -1).swapaxes(1, 2).astype(bool)
            states, q, first = distinct_states(
                Chains(candidates, active), np.full(active.shape[:2], 1 / active.shape[1])
            )
            if sweeps.joint:
                s = np.take_along_axis(active, np.maximum(first, 0)[..., None], 1).astype(float)
                pair = by.precision * by.gram[candidates[:, :, None], candidates[:, None]]
                pair[:, np.arange(C), np.arange(C)] = 0.0
                gain = products * by.precision + by.bias[candidates]
                logs = self.base[:, None] + (s * (gain[:, None] - 0.5 * (s @ pair))).sum(-1)
                q = np.where(first < 0, 0.0, np.exp(beta * logs - evidence[:, None]))
            return self.over_listed(evidence, states, Sparse.of(q))
        moments, errors = np.empty((C * (C + 1) // 2, n)), np.empty(n)
        gibbs.moments_of_draws(draws.view(np.uint64), float(sweeps.draws), moments)
        means, none = diagonals(moments, C), np.empty((n, 0))
        residuals.errors_of_moments(self.norms, products, by.squares, by.gram, none, candidates, means, moments, errors)
        return SampledMoments(evidence, candidates, moments, self.norms, errors, Sparse.of(none), found)

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        by = self.evaluator
        logs, some = np.empty(states.shape[:2]), imprecise_points(self.base)
        linear.log_states(self.product, self.base, by.bias, by.gram, by.precision, states, logs)
        if len(some):
            logs[some] = super(LinearView, self.subset(some)).log_joint(states[some])
        return logs

    def over_listed(self, evidence: np.ndarray, states: np.ndarray, q: Sparse) -> Posterior:
        errors, some = np.empty(len(states)), imprecise_points(self.base)
        residuals.errors_of_states(self.norms, self.product, self.evaluator.gram, states, *q, errors)
        if len(some):
            row, index, weight = q.within(np.isin(np.arange(len(states)), some))
            error = squared_residuals(self.evaluator.WT[:, : self.model.D], self.block.Y[row], states[row, index])
            errors[some] = np.bincount(row, weight * error, len(states))[some]
        return ListedErrors(evidence, states, q, errors)

    def log_singletons(self) -> np.ndarray:
        by = self.evaluator
        base = by.empty - 0.5 * by.precision * block_norms(self.block.rows)
        logs, some = self.product * by.precision + by.bias + base[:, None], imprecise_points(base)
        if len(some):
            logs[some] = super(LinearView, self.subset(some)).log_singletons()
        return logs

    def best(self, posterior: Linear) -> np.ndarray:
        if not isinstance(posterior, TabledMoments):
            return posterior.best()
        by, candidates, table = self.evaluator, posterior.candidates, posterior.table
        outside, _ = posterior.singletons.heaviest()
        causes = np.column_stack([candidates, np.maximum(outside, 0)])
        products = np.empty(causes.shape)
        select.products(
            self.block.rows, by.WT, causes, products
        )  # computed in one call, so that equal products are bit-identical
        best, gain = np.empty(len(self), np.int32), np.empty(len(self))
        linear.best_states(
            np.ascontiguousarray(products[:, :-1]),
            by.bias,
            *by.pairs(candidates),
            by.precision,
            candidates,
            table.inner,
            len(table),
            best,
            gain,
        )
        is_single = (outside >= 0) & (products[:, -1] * by.precision + by.bias[outside] > gain)
        found = better_states(table.states_at(candidates, best), outside, is_single)
        some = imprecise_points(by.empty - 0.5 * by.precision * posterior.norms)
        if len(some):
            subset = self.subset(some)
            subset.singletons = len(posterior.singletons.value) > 0
            found[some] = subset.by_residuals(candidates[some], table, 1.0).best()
        return found

    def accumulate(self, stage: str, posterior: Linear, used: np.ndarray, total: Sums) -> None:
        block, H = self.block, self.model.H
        blocks = [slice(first, first + block.size) for first in range(0, len(block), block.size)]
        if isinstance(posterior, ListedErrors):
            norms, q = block_norms(block.rows), (posterior.states, *posterior.q, used)
            means = linear.means_of_states(*q, H)
            linear.add_pairs_of_states(*q, *total.words("ss"))
        else:
            norms, candidates, moments = posterior.norms, posterior.candidates, posterior.moments
            means = linear.means_by_cause(candidates, moments, *posterior.singletons, used, H, block.size)
            linear.add_pairs(candidates, moments, used, *total.words("ss"))
        linear.add_cross_moments(block.rows, *means, len(blocks), *total.words("ys"))
        linear.add_means(means[0], means[2], len(blocks), *total.words("ss"))
        for one in blocks:
            total.add("yy", norms[one][used[one]].sum())
            total.add("error", posterior.errors[one][used[one]].sum())


class LinearMean(Model):
    """A model with the mean W s and Gaussian noise: the M-step from the moments of s, for any values of s."""

    prior: Bernoulli
    noise: Gauss
    params = {"W": W, "sigma": SIGMA, "pi": PI}

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Gauss()
        self.distributed = self.H * self.H * self.D >= DISTRIBUTED_M_STEP_PRODUCTS

    def values_with_moments(self, probability: float, summary: Summary) -> Mapping[str, float]:
        return initial_sigma_and_pi(self, probability, summary)

    def scales(self, params: Params) -> tuple[float, float]:
        """Return 1 / sigma^2, and the log joint of the empty state and a point of zeros."""
        variance = float(params["sigma"]) ** 2
        return 1 / variance, self.prior.empty(params) - 0.5 * self.D * np.log(2 * np.pi * variance)

    def decode(self, params: Params, active: np.ndarray) -> np.ndarray:
        return active @ params["W"].T

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        return self.learn(params, Moments.from_sums(sums, self.H, self.D), sums, settings, summary)

    def learn(self, params: Params, moments: Moments, sums: Totals, settings: Settings, summary: Summary) -> Params:
        """Return the parameters that follow from the moments, and from the sums of squares in ``sums``."""
        points, learn = float(sums["points"]), self.options.learn
        new, solved = dict(params), np.zeros(self.H, bool)
        if "W" in learn:
            WT, solved = self.new_fields(params["W"].T, moments, points, settings)
            new |= self.constrain({"W": WT.T})
        if "sigma" in learn:
            squares = float(sums["yy"])
            error = squares - moments.explained(new["W"].T, solved, settings)
            if not error > MIN_ERROR_FRACTION * squares:
                error = moments.changed_error(float(sums["error"]), params["W"].T, new["W"].T)
            new["sigma"] = self.noise.learn(params, error, points, summary)
        if "pi" in learn:
            new["pi"] = self.prior.learn(params, moments.active, points, settings)
        return new

    def adjust_sums(self, stage: str, sums: Totals, old: Params, new: Params) -> Totals:
        if sums["error"] > MIN_ERROR_FRACTION**0.5 * sums["yy"]:  # ``error`` is used only where it is much smaller
            return sums
        moments = Moments.from_sums(sums, self.H, self.D)
        error = moments.changed_error(float(sums["error"]), old["W"].T, new["W"].T)
        return {"error": np.array(error)}

    def new_fields(
        self, WT: np.ndarray, sums: Moments, points: float, settings: Settings
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the fields (sum <s s^T>)^-1 (sum <s> y^T), ET eq. 26, and the causes that they solve, (H,) bool."""
        return settings.algebra.solve(WT, sums, points)


class LinearModel(LinearMean):
    """A model with the mean W s, Gaussian noise and binary causes."""

    View: ClassVar[type[LinearView]] = LinearView

    def evaluator(self, params: Params, settings: Settings) -> LinearEvaluator:
        return LinearEvaluator(self, params, settings)

    def nanoseconds(self, states: int) -> float:
        return 0.04 * self.H * self.D + 3.0 * states

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return binary(states, self.H) @ params["W"].T

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        return {
            "yy": Statistic((), lambda params, summary: summary.dims * summary.largest**2),
            "error": Statistic((), largest_error),
            **moment_statistics(self.H, self.width, ys=lambda params, summary: summary.largest),
        }

    def usage(self, sums: Totals) -> np.ndarray:
        return Moments.from_sums(sums, self.H, self.D).active


def largest_error(params: Params, summary: Summary) -> float:
    """Return the largest |y - W s|^2 of any point and any state of zeros and ones."""
    residual = np.abs(params["W"]).sum(1) + summary.largest
    return float(np.nan_to_num(residual @ residual, nan=FINITE_BOUND, posinf=FINITE_BOUND))


def squared_residuals(WT: np.ndarray, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return |y - W s|^2, (...), of fields (H, D), points (..., D) and states (..., g)."""
    table = with_empty_row(WT)
    gap = Y - table[states[..., 0]]
    for i in range(1, states.shape[-1]):
        gap -= table[states[..., i]]
    return np.einsum("...d,...d->...", gap, gap)


def diagonals(moments: np.ndarray, C: int) -> np.ndarray:
    """Return the rows <s_i^2> of moments (C (C + 1) / 2, n) of C candidates, (C, n)."""
    i = np.arange(C)
    return moments[i * (i + 1) // 2 + i]
