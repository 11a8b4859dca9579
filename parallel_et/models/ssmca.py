"""Spike-and-slab maximal causes: the maximum of causes that have strengths, by exact Gibbs sampling (TH ch. 3)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from parallel_et.core.gibbs import Chains, Sweeps
from parallel_et.core.latent_states import best
from parallel_et.core.model import PIECE, UNUSED, BlockView, Evaluator, Model
from parallel_et.core.posterior import Draws, Sparse, sum_rows
from parallel_et.core.types import Param, Params, Rule, Settings, Statistic, Summary, Sums, Totals
from parallel_et.kernels import slabs
from parallel_et.models.components.fields import W, all_products, block_norms, divided, rows_of, with_none
from parallel_et.models.components.initial_fields import lower_envelopes, sure_start
from parallel_et.models.components.noises import SIGMA, Gauss, sigma_floor
from parallel_et.models.components.priors import PI, Bernoulli

FLOOR = 0.02
"""Least value of a field beside its mean: what is not above 0 could be the maximum for negative strengths only."""
NARROW = 1e-8
"""Least variance of the strengths beside their mean square."""
ROUNDS = 50
"""How often one mu and the psi of each cause are computed, each given the other."""
MU = Param(
    "",
    "mean strength of an active cause, or where it begins",
    Rule(lambda causes, summary: summary.mean if summary.mean > 0 else summary.rms or 1.0, "the mean of the data"),
    -1e50,
    1e50,
    each=True,
)
PSI = Param(
    "",
    "variance of the strengths of active causes, or where it begins",
    Rule(
        lambda causes, summary: max(summary.spread, sigma_floor(summary)) ** 2,
        "the variance of the data: the square of what sigma begins with",
    ),
    1e-50,
    1e50,
    each=True,
)


class SSMCAEvaluator(Evaluator):
    """SSMCA with its parameters bound.

    Attributes
    ----------
    WT, inverse : (H, width) the fields as rows, and 1 / W
    precision : 1 / sigma^2
    odds, mu, psi : (H,) log odds that a cause is active, mean and variance of its strength
    empty : log joint of no active cause and a point of zeros
    """

    model: "SSMCA"

    def __init__(self, model: "SSMCA", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        variance = float(params["sigma"]) ** 2
        self.WT, self.precision = rows_of(params), 1 / variance
        self.inverse = np.divide(1.0, self.WT, out=np.full_like(self.WT, np.inf), where=self.WT > 0)
        self.odds, self.mu, self.psi = (
            np.array(np.broadcast_to(one, model.H)) for one in (model.prior.odds(params), params["mu"], params["psi"])
        )
        self.empty = model.prior.empty(params) - 0.5 * model.D * np.log(2 * np.pi * variance)


class SSMCAView(BlockView):
    """A block of points under SSMCA, whose posterior can only be sampled: a state alone has no closed joint."""

    evaluator: SSMCAEvaluator
    model: "SSMCA"

    def log_singles(self) -> np.ndarray:
        by, Y, logs = self.evaluator, self.block.rows, np.empty((len(self), self.model.H))
        slabs.log_odds_of_singles(Y, by.WT, by.inverse, by.precision, by.odds, by.mu, by.psi, logs)
        return logs + (by.empty - 0.5 * by.precision * block_norms(Y))[:, None]

    def select(self, count: int) -> np.ndarray:
        WT = self.evaluator.WT
        return best(all_products(self.block.rows, WT) / np.sqrt(block_norms(WT)), count)

    def begin(self, chains: Chains) -> Chains:
        """Return the chains with values before the first sweep."""
        return chains._replace(values=np.ones(chains.active.shape))

    def redraw(self, chains: Chains, site: int, beta: float, uniforms: np.ndarray) -> Chains:
        """Draw candidate ``site`` of each chain and its strength given all others, by numbers (n, chains)."""
        assert chains.values is not None
        order, begin = np.full((1, 1), site, np.int32), np.where(chains.active, chains.values, 0.0)
        drawn, _ = self._run(chains.candidates, order, np.full(1, beta), begin, 0, uniforms, np.uint64(0))
        return Chains(chains.candidates, drawn != 0, drawn)

    def sample(self, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Draws:
        """Return the posterior by Gibbs sampling over candidates (n, C) in rising order."""
        n, C = candidates.shape
        chance = sweeps.random.uniforms("chains", sweeps.first, (n, sweeps.chains))
        active = (chance * C).astype(int)[..., None] == np.arange(C)
        begin = np.where(active, self.evaluator.mu[candidates][:, None], 0.0)
        order, betas, none = sweeps.order(C), sweeps.betas(beta), np.empty((n, 0))
        key = sweeps.random.key("strengths")
        draws, joint = self._run(candidates, order, betas, begin, sweeps.burn, none, key)
        chains = Chains(candidates, draws != 0, draws)
        weights = np.full(draws.shape[:2], 1.0 / sweeps.draws)
        return Draws(joint, chains.states(), Sparse.of(weights), chains.listed_values())

    def _run(
        self,
        candidates: np.ndarray,
        order: np.ndarray,
        betas: np.ndarray,
        begin: np.ndarray,
        burn: int,
        uniforms: np.ndarray,
        key: np.uint64,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return draws (n, (sweeps - burn) chains, C) of chains from ``begin`` on, and their mean log joints (n,)."""
        by = self.evaluator
        n, chains, C = begin.shape
        joint, draws = np.empty(n), np.empty((n, (len(order) - burn) * chains, C))
        slabs.sample(
            self.block.rows,
            by.WT,
            by.inverse,
            by.precision,
            by.odds,
            by.mu,
            by.psi,
            by.empty,
            candidates,
            order,
            betas,
            key,
            self.block.first,
            uniforms,
            begin,
            burn,
            joint,
            draws,
        )
        return draws, joint

    def reconstruct(self, posterior: Draws) -> np.ndarray:
        everything = np.ones(len(self), bool)
        (point, states, q), values = posterior.pairs(everything), posterior.drawn(everything)
        total = np.zeros((len(self), self.model.D))
        step = max(1, PIECE // (states.shape[1] * self.model.D))
        for first in range(0, len(q), step):
            some = slice(first, first + step)
            largest = self.model._largest(self.evaluator.params, states[some], values[some])
            total += sum_rows(point[some], q[some, None] * largest, len(total))
        return total

    def accumulate(self, stage: str, posterior: Draws, used: np.ndarray, total: Sums) -> None:
        rows, H, field = self.block.rows, self.model.H, (self.model.H, self.model.width)
        (_, states, q), values = posterior.pairs(used), posterior.drawn(used)
        weighted = q[:, None] * values
        for name, each in (("active", q[:, None]), ("values", weighted), ("value_squares", weighted * values)):
            total.add(name, by_cause(states, np.broadcast_to(each, values.shape), H))
        products, squares = np.zeros(field), np.zeros(field)
        weights = posterior.q.dense(posterior.states.shape[1])
        slabs.sums_of_maxima(
            rows, self.evaluator.WT, posterior.states, posterior.values, weights, used, products, squares
        )
        total.add("products", products)
        total.add("squares", squares)
        total.add("data", block_norms(rows)[used].sum())


class SSMCA(Model):
    """y_d = max_h s_h W_dh + noise, s_h = b_h z_h, b_h ~ Bernoulli(pi), z_h ~ N(mu, psi); nothing is below zero.

    Causes are drawn with their strengths, each given all others; no evidence is known. Where mu is learned, so is the
    scale of the strengths, and fields have the mean 1; where it is held, fields have that of the data.
    """

    View: ClassVar[type[BlockView]] = SSMCAView
    params = {"W": W._replace(low=0.0), "sigma": SIGMA, "pi": PI, "mu": MU, "psi": PSI}
    evidence = False
    valued = True
    first_job = {
        "data": {"overlap": "max", "std": 2.5},
        "inference": {"scheme": "sample", "samples": 300, "chains": 1},
        "anneal": {"iterations": 30, "temperature": 1.0},
    }
    prior: Bernoulli
    noise: Gauss

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Gauss()
        self.free = "mu" in options.learn

    def evaluator(self, params: Params, settings: Settings) -> SSMCAEvaluator:
        return SSMCAEvaluator(self, params, settings)

    def initial_value(self, name: str, summary: Summary) -> tuple[float, float]:
        mean = 1.0 if self.free else 2 * max(summary.mean, summary.rms / 3) / abs(self.options.mu or 1.0) or 1.0
        return mean, mean / 3

    def fields_from_points(self, points: np.ndarray) -> np.ndarray:
        positive = np.maximum(points, 0.0)
        mean = positive.mean(0)
        return positive / np.where(mean > 0, mean, 1.0) if self.free else positive

    def fields_from_directions(self, fields: np.ndarray, points: np.ndarray, along: np.ndarray) -> np.ndarray:
        return self.fields_from_points(lower_envelopes(fields, points, along))

    def values_with_moments(self, probability: float, summary: Summary) -> Mapping[str, float]:
        # as if causes added up; a slab as wide as the data would take many iterations to become narrow
        strength = summary.mean / (self.H * probability)
        slab = {"mu": strength, "psi": (strength / 2) ** 2} if self.free and strength > 0 else {}
        return {**sure_start(self, probability, summary), **slab}

    def constrain(self, params: Params) -> Params:
        inside = dict(super().constrain(params))
        if "W" in inside:
            inside["W"] = above_floor(inside["W"])
        return inside

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        """Return the mean of a point whose active causes have their mean strengths, (..., D)."""
        return self._largest(params, states, np.broadcast_to(params["mu"], self.H)[states])

    def pictures(self, params: Params) -> np.ndarray:
        return params["W"] * params["mu"]

    def _largest(self, params: Params, states: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the maximum (..., D) of zero and of causes with strengths ``values`` (..., g)."""
        return np.maximum((with_none(params["W"].T)[states] * values[..., None]).max(-2), 0.0)

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        states = self.prior.draw(params, rng, count)
        mu, psi = (np.broadcast_to(params[name], self.H)[states] for name in ("mu", "psi"))
        values = mu + np.sqrt(psi) * rng.standard_normal(states.shape)
        return self.noise.draw(params, rng, self._largest(params, states, values)), states

    def decode(self, params: Params, active: np.ndarray) -> np.ndarray:
        """Return the mean of y, (n, D), of causes with the strengths ``active`` (n, H)."""
        every = np.broadcast_to(np.arange(self.H), active.shape)
        return self._largest(params, every, active)

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        def most(params: Params, summary: Summary) -> float:
            """No strength is larger: beyond, it explains every value too large, and the slab falls by 50 nats."""
            needed = summary.largest / params["W"].min()
            return float(max(needed, np.abs(params["mu"]).max()) + 10 * np.sqrt(np.max(params["psi"])))

        field = (self.H, self.width)
        return {
            "active": Statistic((self.H,)),
            "values": Statistic((self.H,), most),
            "value_squares": Statistic((self.H,), lambda params, summary: most(params, summary) ** 2),
            "products": Statistic(field, lambda params, summary: most(params, summary) * summary.largest),
            "squares": Statistic(field, lambda params, summary: most(params, summary) ** 2),
            "data": Statistic((), lambda params, summary: self.D * summary.largest**2),
        }

    def carried(self, stage: str, sums: Totals, old: Params, new: Params) -> Totals:
        if not self.free or "W" not in self.options.learn or np.array_equal(old["W"], new["W"]):
            return sums
        by = self._fields(old, sums)[1]
        factors = {"values": by, "value_squares": by**2, "products": by[:, None], "squares": by[:, None] ** 2}
        return {name: value * factors.get(name, 1.0) for name, value in sums.items()}

    def _fields(self, params: Params, sums: Totals) -> tuple[np.ndarray, np.ndarray]:
        """New fields W^T (H, D) for strengths as they were drawn, and by what these grow as fields get their mean."""
        WT = params["W"].T
        if "W" in self.options.learn:
            products, squares = sums["products"][:, : self.D], sums["squares"][:, : self.D]
            least = UNUSED * sums["value_squares"].sum()
            WT = above_floor(divided(products, squares, least, WT).T).T
        return WT, WT.mean(1) if self.free and "W" in self.options.learn else np.ones(self.H)

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        points, active = float(sums["points"]), sums["active"]
        WT, by = (params["W"].T, np.ones(self.H)) if settings.held else self._fields(params, sums)
        error = float(sums["data"] + (WT**2 * sums["squares"][:, : self.D]).sum())
        error -= 2 * float((WT * sums["products"][:, : self.D]).sum())
        first, second = by * sums["values"], by**2 * sums["value_squares"]
        mu, psi = self._slab(params, first, second, active)
        return {
            "W": np.asfortranarray((WT / by[:, None]).T),
            "sigma": self.noise.learn(params, error, points, summary),
            "pi": self.prior.learn(params, active, points, settings),
            "mu": mu,
            "psi": psi,
        }

    def _slab(
        self, params: Params, first: np.ndarray, second: np.ndarray, active: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """mu and psi of most likelihood, by the sums of strengths and of their squares (H,).

        One mu of causes that have a psi each is a mean weighted by 1 / psi, which depends on mu in turn.
        """
        one_of_many = params["mu"].ndim == 0 and params["psi"].ndim == 1 and "mu" in self.options.learn
        held = one_of_many and "psi" not in self.options.learn
        mu, weight = params["mu"], params["psi"].min() / params["psi"] if held else np.ones(self.H)
        for _ in range(ROUNDS if one_of_many and not held else 1):
            if "mu" in self.options.learn:
                mu = self._pooled("mu", params, first * weight, active * weight)
            square = self._pooled("psi", params, second - 2 * mu * first + mu**2 * active, active)
            psi = np.maximum(square, NARROW * self._pooled("psi", params, second, active))
            weight = psi.min() / psi if one_of_many else weight
        return mu, psi

    def _pooled(self, name: str, params: Params, sums: np.ndarray, active: np.ndarray) -> np.ndarray:
        """The mean of what is summed up by cause (H,) over the active ones, of all or of each."""
        if params[name].ndim == 0:
            sums, active = sums.sum(), active.sum()
        return divided(sums, active, UNUSED, params[name])


def by_cause(states: np.ndarray, values: np.ndarray, H: int) -> np.ndarray:
    """Values (m, g) of the active causes of states (m, g), added up; (H,)."""
    return np.bincount(np.where(states < 0, H, states).ravel(), values.ravel(), H + 1)[:H]


def above_floor(fields: np.ndarray) -> np.ndarray:
    """Fields (D, H) that are nowhere below a small part of their means; those that are nowhere positive are even."""
    positive = np.maximum(fields, 0.0)
    mean = positive.mean(0)
    return np.maximum(positive, np.where(mean > 0, FLOOR * mean, 1.0))


MODEL = SSMCA
