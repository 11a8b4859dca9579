"""The evaluation that all models with mean W s and Gaussian noise share (ET eq. 24, 25), in Gram form."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parallel_et.core.contract import Block, Knobs, Model, Params, Sum, Summary, Totals
from parallel_et.core.gibbs import Chains, Sweeps, distinct
from parallel_et.core.posterior import Listed, Posterior, SampledMoments, Sparse, TabledMoments, best_of
from parallel_et.core.states import Table, binary
from parallel_et.core.terms import Deal, alone
from parallel_et.kernels import (
    linear,
    select,
    triangles,  # noqa: F401  what solves for fields uses it
)
from parallel_et.kernels.rows import LANES, writable
from parallel_et.models.parts.fields import W, all_products, block_norms, rows_of
from parallel_et.models.parts.moments import Moments
from parallel_et.models.parts.noises import SIGMA, Gauss
from parallel_et.models.parts.priors import PI, Bernoulli
from parallel_et.models.parts.solve import dealt_gram, solve_sums
from parallel_et.models.parts.starts import sure_start

Linear = TabledMoments | SampledMoments | Listed
"""The posteriors of a linear model."""
LARGE = 1 << 27
"""Products of the M-step from which on it is worth to share them."""
COSTS = 3
"""How much longer an element of W^T W takes for a point than among all of them."""
WIDE = 100
"""Candidates whose moments are kept at most: of more their draws are listed, which takes less memory."""


@dataclass(frozen=True)
class Ready:
    """Of one iteration: W^T (H, width), the diagonal of G = W^T W, 1 / sigma^2, and the constants of the log joint.

    ``all_pairs`` is G where it was computed; ``in_single`` are the ``units`` where ranks share them.
    """

    WT: np.ndarray
    all_pairs: np.ndarray | None
    squares: np.ndarray
    precision: float
    bias: np.ndarray
    empty: float
    in_single: np.ndarray | None = None

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
            explained = moments.explained(new["W"].T, solved, self.sharing(knobs))
            error = float(sums["yy"]) - explained
            new["sigma"] = self.noise.learn(params, error, points, summary)
        if "pi" in learn:
            new["pi"] = self.prior.learn(params, moments.active, points, knobs)
        return new

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
        squares = self.squares(WT, knobs) if gram is None else np.diag(gram)
        return Ready(WT, gram, squares, precision, self.prior.odds(params) - 0.5 * precision * squares, empty)

    def squares(self, WT: np.ndarray, knobs: Knobs) -> np.ndarray:
        """The diagonal of W^T W, (H,), of a model whose M-step is dealt out."""
        found = knobs.deal.room("squares of fields", (self.H,))
        knobs.deal.here(self.H, lambda first, last: select.square_norms(WT[first:last], found[first:last]))
        return found

    def log_joint(self, ready: Ready, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        s = binary(states, self.H).astype(np.float64)
        gain = (s * (Y @ ready.WT[:, : self.D].T)).sum(-1) - 0.5 * ((s @ ready.gram) * s).sum(-1)
        odds = ready.bias + 0.5 * ready.precision * ready.squares
        return ready.empty + s @ odds + ready.precision * (gain - 0.5 * (Y * Y).sum(-1))

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
        products = np.empty((n, C))
        if singles:
            select.pick(seen.product, candidates, products)
        else:
            select.products(seen.Y, ready.WT, candidates, products)
        evidence, moments = np.empty(n), np.empty((C * (C + 1) // 2, n))
        linear.posterior(
            products,
            seen.base,
            ready.bias,
            *ready.pairs(candidates),
            ready.precision,
            beta,
            candidates,
            table.inner,
            len(table),
            seen.product,
            evidence,
            moments,
        )
        return TabledMoments(evidence, candidates, moments, seen.norms, Sparse.of(seen.product), table)

    def observe_states(self, ready: Ready, block: Block) -> Seen:
        return self.observe(ready, block, True)

    def observe_chains(self, ready: Ready, block: Block) -> Seen:
        return self.observe(ready, block, False)

    def sample(self, ready: Ready, seen: Seen, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Posterior:
        from parallel_et.kernels import gibbs  # the scheme imports it first: only jobs that sample load it

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
            return Listed(evidence, states, Sparse.of(q))
        moments = np.empty((C * (C + 1) // 2, n))
        gibbs.moments_of(draws.view(np.uint64), float(sweeps.draws), moments)
        return SampledMoments(evidence, candidates, moments, seen.norms, Sparse.of(np.empty((n, 0))), found)

    def log_states(self, ready: Ready, seen: Seen, states: np.ndarray) -> np.ndarray:
        logs = np.empty(states.shape[:2])
        linear.log_states(seen.product, seen.base, ready.bias, ready.gram, ready.precision, states, logs)
        return logs

    def log_singles(self, ready: Ready, block: Block) -> np.ndarray:
        base = ready.empty - 0.5 * ready.precision * block_norms(block.rows)
        return all_products(block.rows, ready.WT) * ready.precision + ready.bias + base[:, None]

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
        return best_of(table.chosen(candidates, best), outside, alone)

    def sums(self, stage: str) -> Mapping[str, Sum]:
        return {
            "yy": Sum((), lambda params, summary: summary.dims * summary.largest**2),
            "ys": Sum((self.width * self.H,), lambda params, summary: summary.largest),
            "ss": Sum((self.H * (self.H + 1) // 2,)),
        }

    def collect(self, stage: str, ready: Ready, block: Block, posterior: Linear, used: np.ndarray, total: Any) -> None:
        blocks = [slice(first, first + block.size) for first in range(0, len(block), block.size)]
        if isinstance(posterior, Listed):
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

    def usage(self, sums: Totals) -> np.ndarray:
        h = np.arange(self.H)
        return sums["ss"][h * (h + 1) // 2 + h]
