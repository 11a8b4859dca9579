"""The evaluation that all models with mean W s and Gaussian noise share (ET eq. 24, 25), in Gram form."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parallel_et.core.contract import Block, Knobs, Model, Params, Sum, Summary, Totals
from parallel_et.core.gibbs import Chains, Sweeps, distinct
from parallel_et.core.posterior import (
    ListedErrors,
    Posterior,
    SampledMoments,
    Sparse,
    Tabled,
    TabledMoments,
    best_of,
)
from parallel_et.core.states import Table, binary
from parallel_et.core.terms import Deal, alone
from parallel_et.kernels import (
    linear,
    residuals,
    select,
    triangles,  # noqa: F401  what solves for fields uses it
)
from parallel_et.kernels.rows import LANES, writable
from parallel_et.models.parts.fields import W, all_products, block_norms, rows_of, with_none
from parallel_et.models.parts.moments import Moments
from parallel_et.models.parts.noises import SIGMA, Gauss
from parallel_et.models.parts.priors import PI, Bernoulli
from parallel_et.models.parts.rounding import SHARP, far
from parallel_et.models.parts.solve import dealt_gram, solve_sums
from parallel_et.models.parts.starts import sure_start

Linear = TabledMoments | SampledMoments | ListedErrors
"""The posteriors of a linear model."""
LARGE = 1 << 27
"""Products of the M-step from which on it is worth to share them."""
COSTS = 3
"""How much longer an element of W^T W takes for a point than among all of them."""
HUGE = 1e300
"""Bound of sums over parameters that are not finite, which the M-step refuses."""
WIDE = 100
"""Candidates whose moments are kept at most: of more their draws are listed, which takes less memory."""


@dataclass(frozen=True)
class Ready:
    """Parameters of one iteration and what follows from them.

    Attributes
    ----------
    WT : (H, width) the fields as rows
    all_pairs : (H, H) G = W^T W where it was computed
    squares : (H,) the diagonal of G
    precision : 1 / sigma^2
    odds : (H,) log odds that a cause is active
    empty : log joint of no active cause and a point of zeros
    in_single : the ``units`` where ranks share them
    """

    WT: np.ndarray
    all_pairs: np.ndarray | None
    squares: np.ndarray
    precision: float
    odds: np.ndarray
    empty: float
    in_single: np.ndarray | None = None

    @cached_property
    def bias(self) -> np.ndarray:
        """Log odds of each cause, less the energy of its field, (H,)."""
        return self.odds - 0.5 * self.precision * self.squares

    @cached_property
    def gram(self) -> np.ndarray:
        """G (H, H)."""
        return self.WT @ self.WT.T if self.all_pairs is None else self.all_pairs

    @cached_property
    def lengths(self) -> np.ndarray:
        """Of the fields; 1 for those that are zero, (H,)."""
        length = np.sqrt(self.squares)
        return np.where(length > 0, length, 1.0)

    @cached_property
    def units(self) -> np.ndarray:
        """The fields at length 1 in single precision, (H, width)."""
        if self.in_single is not None:
            return self.in_single
        return (self.WT / self.lengths[:, None]).astype(np.float32)

    def pairs(self, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """G (H, H), or of the pairs of candidates (n, C) of each point, (n, C (C - 1) / 2); the other is empty."""
        n, C = candidates.shape
        if self.all_pairs is not None:
            return self.all_pairs, np.empty((n, 0))
        found = np.empty((n, C * (C - 1) // 2))
        select.pairs_of_fields(self.WT, candidates, found)
        return np.empty((0, 0)), found


@dataclass(frozen=True)
class Seen:
    """Of a block: Y (n, width), |y|^2 (n,), the log joint of the empty state (n,), and its products with the fields.

    ``product`` is Y W (n, H), or (n, 0) where it is not needed; ``units`` is Y in single precision at length 1.
    """

    Y: np.ndarray
    norms: np.ndarray
    base: np.ndarray
    product: np.ndarray
    units: np.ndarray | None = None


class LinearMean(Model):
    """Mean W s, Gaussian noise: what the M-step makes of the moments of s, whatever its values are."""

    prior: Bernoulli
    noise: Gauss
    params = {"W": W, "sigma": SIGMA, "pi": PI}

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Gauss()
        self.dealt = self.H * self.H * self.D >= LARGE

    def beside_moments(self, probability: float, summary: Summary) -> Mapping[str, float]:
        return sure_start(self, probability, summary)

    def sharing(self, knobs: Knobs) -> Deal:
        """How its works are shared out: over all ranks if it is large, else each rank does them."""
        return knobs.deal if self.dealt else alone

    def gram(self, WT: np.ndarray, knobs: Knobs) -> np.ndarray:
        """W^T W (H, H)."""
        return dealt_gram(WT, knobs.deal) if self.dealt else WT @ WT.T

    def scales(self, params: Params) -> tuple[float, float]:
        """1 / sigma^2, and the log joint of no active cause and a point of zeros."""
        variance = float(params["sigma"]) ** 2
        return 1 / variance, self.prior.empty(params) - 0.5 * self.D * np.log(2 * np.pi * variance)

    def reconstruct(self, ready: Any, params: Params, posterior: Posterior) -> np.ndarray:
        return posterior.means(self.H) @ ready.WT[:, : self.D]

    def decode(self, params: Params, active: np.ndarray) -> np.ndarray:
        return active @ params["W"].T

    def maximise(self, stage: str, params: Params, sums: Totals, knobs: Knobs, summary: Summary) -> Params:
        points, learn = float(sums["points"]), self.options.learn
        moments = Moments(writable(sums["ys"]), writable(sums["ss"]), self.H, self.D)
        new, solved = dict(params), np.zeros(self.H, bool)
        if "W" in learn:
            WT, solved = self.new_fields(params["W"].T, moments, points, knobs)
            new |= self.constrain({"W": WT.T})
        if "sigma" in learn:
            squares = float(sums["yy"])
            error = squares - moments.explained(new["W"].T, solved, self.sharing(knobs))
            if not error > SHARP * squares:
                error = moments.changed_error(float(sums["error"]), params["W"].T, new["W"].T)
            new["sigma"] = self.noise.learn(params, error, points, summary)
        if "pi" in learn:
            new["pi"] = self.prior.learn(params, moments.active, points, knobs)
        return new

    def carried(self, stage: str, sums: Totals, old: Params, new: Params) -> Totals:
        if sums["error"] > SHARP**0.5 * sums["yy"]:  # far from where it is used
            return sums
        moments = Moments(sums["ys"], sums["ss"], self.H, self.D)
        error = moments.changed_error(float(sums["error"]), old["W"].T, new["W"].T)
        return {"error": np.array(error)}

    def new_fields(self, WT: np.ndarray, sums: Moments, points: float, knobs: Knobs) -> tuple[np.ndarray, np.ndarray]:
        """(sum <s s^T>)^-1 (sum <s> y^T), ET eq. 26, and for which causes ss W^T = ys holds then, (H,) bool."""
        return solve_sums(WT, sums, points, knobs.deal if self.dealt else None)


class LinearModel(LinearMean):
    """Active causes are 1: |y - W s|^2 = |y|^2 - 2 s^T W^T y + s^T G s, nothing in D but products with fields."""

    def nanoseconds(self, states: int) -> float:
        return 0.04 * self.H * self.D + 3.0 * states

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return binary(states, self.H) @ params["W"].T

    def prepare(self, params: Params, knobs: Knobs) -> Ready:
        WT, (precision, empty) = rows_of(params, "W", self.sharing(knobs)), self.scales(params)
        few = self.dealt and 0 < COSTS * knobs.pairs < self.H * (self.H - 1) // 2
        gram = None if few else self.gram(WT, knobs)
        squares = self.squares(WT, knobs) if gram is None else np.diagonal(gram).copy()
        return Ready(WT, gram, squares, precision, np.broadcast_to(self.prior.odds(params), self.H), empty)

    def squares(self, WT: np.ndarray, knobs: Knobs) -> np.ndarray:
        """The diagonal of W^T W, (H,), of a model whose M-step is dealt out."""
        found = knobs.deal.room("squares of fields", (self.H,))
        knobs.deal.here(self.H, lambda first, last: select.square_norms(WT[first:last], found[first:last]))
        return found

    def log_joint(self, ready: Ready, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """log p(s, y) from the residual y - W s, (...)."""
        odds = with_none(ready.odds)[states].sum(-1)
        return ready.empty + odds - 0.5 * ready.precision * squared_residuals(ready.WT[:, : self.D], Y, states)

    def observe(self, ready: Ready, block: Block, singles: bool) -> Seen:
        Y = block.rows
        return self.seen(ready, Y, block_norms(Y), all_products(Y, ready.WT) if singles else None)

    def seen(
        self,
        ready: Ready,
        Y: np.ndarray,
        norms: np.ndarray,
        product: np.ndarray | None = None,
        units: np.ndarray | None = None,
    ) -> Seen:
        """What was seen of a block, its squared norms among it."""
        base = ready.empty - 0.5 * ready.precision * norms
        return Seen(Y, norms, base, np.empty((len(Y), 0)) if product is None else product, units)

    def over_table(
        self, ready: Ready, seen: Seen, candidates: np.ndarray, table: Table, beta: float, singles: bool
    ) -> Posterior:
        n, C = candidates.shape
        products, errors = np.empty((n, C)), np.empty(n)
        if singles:
            select.pick(seen.product, candidates, products)
        else:
            select.products(seen.Y, ready.WT, candidates, products)
        every = seen.product.copy() if singles else seen.product
        evidence, moments = np.empty(n), np.empty((C * (C + 1) // 2, n))
        pairs = ready.pairs(candidates)
        linear.posterior(
            products,
            seen.base,
            ready.bias,
            *pairs,
            ready.precision,
            beta,
            candidates,
            table.inner,
            len(table),
            seen.product,
            evidence,
            moments,
        )
        means = diagonals(moments, C)
        residuals.errors_of_moments(seen.norms, products, ready.squares, *pairs, candidates, means, moments, errors)
        if singles:
            errors += np.einsum("nh,nh->n", seen.product, ready.squares - 2 * every)
        some = far(seen.base)
        if len(some):
            found = self.by_residuals(ready, seen.Y[some], candidates[some], table, beta, singles)
            evidence[some], moments[:, some], errors[some] = self.moments_of(ready, seen.Y[some], found)
            if singles:
                seen.product[some] = found.alone.dense(self.H)
        return TabledMoments(evidence, candidates, moments, seen.norms, errors, Sparse.of(seen.product), table)

    def by_residuals(
        self, ready: Ready, Y: np.ndarray, candidates: np.ndarray, table: Table, beta: float, singles: bool
    ) -> Tabled:
        """Return the posterior of points (n, width) by residuals of explicit states, at D operations a state."""
        found = super().over_table(ready, Block(Y, self.D, 0), candidates, table, beta, singles)
        assert isinstance(found, Tabled)
        return found

    def moments_of(self, ready: Ready, Y: np.ndarray, found: Tabled) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the evidence (n,), the moments (C (C + 1) / 2, n) and the expected squared residuals (n,)."""
        C = found.candidates.shape[1]
        member = binary(found.table.members, C)
        rows = [member[:, i] & member[:, j] for j in range(C) for i in range(j + 1)]
        point, states, q = found.pairs(np.ones(len(Y), bool))
        error = squared_residuals(ready.WT[:, : self.D], Y[point, : self.D], states)
        errors = np.bincount(point, q * error, len(Y))
        return found.evidence, np.stack(rows).astype(float) @ found.q.dense(len(found.table)).T, errors

    def observe_states(self, ready: Ready, block: Block) -> Seen:
        return self.observe(ready, block, True)

    def observe_chains(self, ready: Ready, block: Block) -> Seen:
        return self.observe(ready, block, False)

    def sample(self, ready: Ready, seen: Seen, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Posterior:
        from parallel_et.kernels import gibbs  # the scheme imports it first: only jobs that sample load it

        if len(far(seen.base)):
            everything = self.seen(ready, seen.Y, seen.norms, all_products(seen.Y, ready.WT))
            return super().sample(ready, everything, candidates, sweeps, beta)
        n, C = candidates.shape
        burn = 0 if sweeps.joint else sweeps.burn
        kept, groups = sweeps.length - burn, -(-sweeps.chains // LANES)
        products, evidence, found = np.empty((n, C)), np.empty(n), np.empty((n, C), bool)
        select.products(seen.Y, ready.WT, candidates, products)
        draws = np.empty((n, C, -(-kept * groups // 8) * 8), np.uint8)
        gibbs.sample(
            products,
            seen.base,
            ready.bias,
            ready.gram,
            ready.precision,
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
        if C > WIDE or sweeps.joint:
            bits = np.unpackbits(draws[..., : kept * groups], -1, bitorder="little").reshape(n, C, kept, groups * LANES)
            active = bits[..., : sweeps.chains].reshape(n, C, -1).swapaxes(1, 2).astype(bool)
            states, q, first = distinct(Chains(candidates, active), np.full(active.shape[:2], 1 / active.shape[1]))
            if sweeps.joint:
                s = np.take_along_axis(active, np.maximum(first, 0)[..., None], 1).astype(float)
                pair = ready.precision * ready.gram[candidates[:, :, None], candidates[:, None]]
                pair[:, np.arange(C), np.arange(C)] = 0.0
                gain = products * ready.precision + ready.bias[candidates]
                logs = seen.base[:, None] + (s * (gain[:, None] - 0.5 * (s @ pair))).sum(-1)
                q = np.where(first < 0, 0.0, np.exp(beta * logs - evidence[:, None]))
            everything = self.seen(ready, seen.Y, seen.norms, all_products(seen.Y, ready.WT))
            return self.over_listed(ready, everything, evidence, states, Sparse.of(q))
        moments, errors = np.empty((C * (C + 1) // 2, n)), np.empty(n)
        gibbs.moments_of(draws.view(np.uint64), float(sweeps.draws), moments)
        means, none = diagonals(moments, C), np.empty((n, 0))
        residuals.errors_of_moments(
            seen.norms, products, ready.squares, ready.gram, none, candidates, means, moments, errors
        )
        return SampledMoments(evidence, candidates, moments, seen.norms, errors, Sparse.of(none), found)

    def log_states(self, ready: Ready, seen: Seen, states: np.ndarray) -> np.ndarray:
        logs, some = np.empty(states.shape[:2]), far(seen.base)
        linear.log_states(seen.product, seen.base, ready.bias, ready.gram, ready.precision, states, logs)
        if len(some):
            logs[some] = super().log_states(ready, Block(seen.Y[some], self.D, 0), states[some])
        return logs

    def over_listed(self, ready: Ready, seen: Seen, evidence: np.ndarray, states: np.ndarray, q: Sparse) -> Posterior:
        errors, some = np.empty(len(states)), far(seen.base)
        residuals.errors_of_states(seen.norms, seen.product, ready.gram, states, *q, errors)
        if len(some):
            row, index, weight = q.within(np.isin(np.arange(len(states)), some))
            error = squared_residuals(ready.WT[:, : self.D], seen.Y[row, : self.D], states[row, index])
            errors[some] = np.bincount(row, weight * error, len(states))[some]
        return ListedErrors(evidence, states, q, errors)

    def log_singles(self, ready: Ready, block: Block) -> np.ndarray:
        base = ready.empty - 0.5 * ready.precision * block_norms(block.rows)
        logs, some = all_products(block.rows, ready.WT) * ready.precision + ready.bias + base[:, None], far(base)
        if len(some):
            logs[some] = super().log_singles(ready, Block(block.rows[some], self.D, 0))
        return logs

    def best(self, ready: Ready, block: Block, posterior: Linear) -> np.ndarray:
        if not isinstance(posterior, TabledMoments):
            return posterior.best()
        candidates, table = posterior.candidates, posterior.table
        outside, _ = posterior.alone.heaviest()
        causes = np.column_stack([candidates, np.maximum(outside, 0)])
        products = np.empty(causes.shape)
        select.products(block.rows, ready.WT, causes, products)  # of all in one way: what is equal stays so to the bit
        best, gain = np.empty(len(block), np.int32), np.empty(len(block))
        linear.best_states(
            np.ascontiguousarray(products[:, :-1]),
            ready.bias,
            *ready.pairs(candidates),
            ready.precision,
            candidates,
            table.inner,
            len(table),
            best,
            gain,
        )
        alone = (outside >= 0) & (products[:, -1] * ready.precision + ready.bias[outside] > gain)
        found = best_of(table.chosen(candidates, best), outside, alone)
        some = far(ready.empty - 0.5 * ready.precision * posterior.norms)
        if len(some):
            singles = len(posterior.alone.value) > 0
            found[some] = self.by_residuals(ready, block.rows[some], candidates[some], table, 1.0, singles).best()
        return found

    def sums(self, stage: str) -> Mapping[str, Sum]:
        return {
            "yy": Sum((), lambda params, summary: summary.dims * summary.largest**2),
            "error": Sum((), largest_error),
            "ys": Sum((self.width * self.H,), lambda params, summary: summary.largest),
            "ss": Sum((self.H * (self.H + 1) // 2,)),
        }

    def collect(self, stage: str, ready: Ready, block: Block, posterior: Linear, used: np.ndarray, total: Any) -> None:
        blocks = [slice(first, first + block.size) for first in range(0, len(block), block.size)]
        if isinstance(posterior, ListedErrors):
            norms, q = block_norms(block.rows), (posterior.states, *posterior.q, used)
            means = linear.means_of_states(*q, self.H)
            linear.add_pairs_of_states(*q, *total.words("ss"))
        else:
            norms, candidates, moments = posterior.norms, posterior.candidates, posterior.moments
            means = linear.means_by_cause(candidates, moments, *posterior.alone, used, self.H, block.size)
            linear.add_pairs(candidates, moments, used, *total.words("ss"))
        linear.add_fields(block.rows, *means, len(blocks), *total.words("ys"))
        linear.add_means(means[0], means[2], len(blocks), *total.words("ss"))
        for one in blocks:
            total.add("yy", norms[one][used[one]].sum())
            total.add("error", posterior.errors[one][used[one]].sum())

    def usage(self, sums: Totals) -> np.ndarray:
        h = np.arange(self.H)
        return sums["ss"][h * (h + 1) // 2 + h]


def largest_error(params: Params, summary: Summary) -> float:
    """Return the largest |y - W s|^2 of any point and any state of zeros and ones."""
    reach = np.abs(params["W"]).sum(1) + summary.largest
    return float(np.nan_to_num(reach @ reach, nan=HUGE, posinf=HUGE))


def squared_residuals(WT: np.ndarray, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return |y - W s|^2, (...), of fields (H, D), points (..., D) and states (..., g)."""
    table = with_none(WT)
    gap = Y - table[states[..., 0]]
    for i in range(1, states.shape[-1]):
        gap -= table[states[..., i]]
    return np.einsum("...d,...d->...", gap, gap)


def diagonals(moments: np.ndarray, C: int) -> np.ndarray:
    """Return the rows <s_i^2> of moments (C (C + 1) / 2, n) of C candidates, (C, n)."""
    i = np.arange(C)
    return moments[i * (i + 1) // 2 + i]
