"""Spike-and-slab maximal causes analysis (SSMCA): the largest active field times its strength sets each value.

    b_h ~ Bernoulli(pi_h),    z_h ~ Gauss(mu_h, psi_h),    s_h = b_h z_h,    W >= 0
    p(y | s) = Gauss(y; m(s), sigma^2 I),    m_d(s) = max(0, max_h s_h W_dh)

The E-step draws each cause with its strength from its exact conditional distribution (Gibbs sampling).
The model suits patterns that hide each other with varying strengths: strokes, log-spectrograms, image patches.
See TH ch. 3.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from parallel_et.core.gibbs import Chains, Sweeps
from parallel_et.core.latent_states import best_atoms
from parallel_et.core.model import UNUSED, VALUES_AT_ONCE, BlockView, Evaluator, Model
from parallel_et.core.posterior import Draws, Sparse, sum_rows
from parallel_et.core.types import Param, Params, Rule, Settings, Statistic, Summary, Sums, Totals
from parallel_et.kernels import slabs
from parallel_et.models.components.fields import W, all_products, block_norms, divide_or_keep, rows_of, with_empty_row
from parallel_et.models.components.initial_fields import initial_sigma_and_pi, lower_envelopes
from parallel_et.models.components.noises import SIGMA, Gauss, sigma_floor
from parallel_et.models.components.priors import PI, Bernoulli

MIN_FIELD_FRACTION = 0.02
"""Smallest value of a field as a fraction of its mean. Values of 0 or less would need negative strengths."""
MIN_VARIANCE_FRACTION = 1e-8
"""Smallest variance of the strengths as a fraction of their mean square."""
SLAB_ITERATIONS = 50
"""Number of alternating updates of one mu for all causes and of one psi for each cause."""
MU = Param(
    "",
    "mean strength of an active cause, or its initial value",
    Rule(lambda causes, summary: summary.mean if summary.mean > 0 else summary.rms or 1.0, "the mean of the data"),
    -1e50,
    1e50,
    each=True,
)
PSI = Param(
    "",
    "variance of the strengths of active causes, or its initial value",
    Rule(
        lambda causes, summary: max(summary.spread, sigma_floor(summary)) ** 2,
        "the variance of the data, the square of the initial sigma",
    ),
    1e-50,
    1e50,
    each=True,
)


class SSMCAEvaluator(Evaluator):
    """SSMCA with its parameters bound.

    Attributes
    ----------
    WT : (H, width) the fields as rows
    inverse : (H, width) 1 / W
    precision : 1 / sigma^2
    odds : (H,) log odds that a cause is active
    mu, psi : (H,) mean and variance of the strength of a cause
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
    """A block of points under SSMCA. The posterior is sampled, because a state has no joint in closed form."""

    evaluator: SSMCAEvaluator
    model: "SSMCA"

    def log_singletons(self) -> np.ndarray:
        by, Y, logs = self.evaluator, self.block.rows, np.empty((len(self), self.model.H))
        slabs.log_odds_of_singletons(Y, by.WT, by.inverse, by.precision, by.odds, by.mu, by.psi, logs)
        return logs + (by.empty - 0.5 * by.precision * block_norms(Y))[:, None]

    def select(self, count: int) -> np.ndarray:
        WT = self.evaluator.WT
        return best_atoms(all_products(self.block.rows, WT) / np.sqrt(block_norms(WT)), count)

    def initial_chains(self, chains: Chains) -> Chains:
        """Return the chains with initial strengths."""
        return chains._replace(values=np.ones(chains.active.shape))

    def redraw(self, chains: Chains, site: int, beta: float, uniforms: np.ndarray) -> Chains:
        """Draw candidate ``site`` of each chain and its strength given all other candidates; uniforms (n, chains)."""
        assert chains.values is not None
        order, initial = np.full((1, 1), site, np.int32), np.where(chains.active, chains.values, 0.0)
        drawn, _ = self._run(chains.candidates, order, np.full(1, beta), initial, 0, uniforms, np.uint64(0))
        return Chains(chains.candidates, drawn != 0, drawn)

    def sample(self, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Draws:
        """Return the posterior from Gibbs sampling over candidates (n, C) in ascending order."""
        n, C = candidates.shape
        chance = sweeps.random.uniforms("chains", sweeps.first, (n, sweeps.chains))
        active = (chance * C).astype(int)[..., None] == np.arange(C)
        initial = np.where(active, self.evaluator.mu[candidates][:, None], 0.0)
        order, betas, none = sweeps.order(C), sweeps.betas(beta), np.empty((n, 0))
        key = sweeps.random.key("strengths")
        draws, joint = self._run(candidates, order, betas, initial, sweeps.burn, none, key)
        chains = Chains(candidates, draws != 0, draws)
        weights = np.full(draws.shape[:2], 1.0 / sweeps.draws)
        return Draws(joint, chains.states(), Sparse.of(weights), chains.listed_values())

    def _run(
        self,
        candidates: np.ndarray,
        order: np.ndarray,
        betas: np.ndarray,
        initial: np.ndarray,
        burn: int,
        uniforms: np.ndarray,
        key: np.uint64,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return draws (n, (sweeps - burn) chains, C) of chains with initial strengths, and mean log joints (n,)."""
        by = self.evaluator
        n, chains, C = initial.shape
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
            initial,
            burn,
            joint,
            draws,
        )
        return draws, joint

    def reconstruct(self, posterior: Draws) -> np.ndarray:
        everything = np.ones(len(self), bool)
        (point, states, q), values = posterior.pairs(everything), posterior.drawn(everything)
        total = np.zeros((len(self), self.model.D))
        step = max(1, VALUES_AT_ONCE // (states.shape[1] * self.model.D))
        for first in range(0, len(q), step):
            some = slice(first, first + step)
            largest = self.model._largest(self.evaluator.params, states[some], values[some])
            total += sum_rows(point[some], q[some, None] * largest, len(total))
        return total

    def accumulate(self, stage: str, posterior: Draws, used: np.ndarray, total: Sums) -> None:
        rows, H, field = self.block.rows, self.model.H, (self.model.H, self.model.width)
        (_, states, q), values = posterior.pairs(used), posterior.drawn(used)
        weighted_states = q[:, None] * values
        for name, each in (
            ("active", q[:, None]),
            ("values", weighted_states),
            ("value_squares", weighted_states * values),
        ):
            total.add(name, sum_by_cause(states, np.broadcast_to(each, values.shape), H))
        products, squares = np.zeros(field), np.zeros(field)
        weights = posterior.q.dense(posterior.states.shape[1])
        slabs.sums_of_maxima(
            rows, self.evaluator.WT, posterior.states, posterior.values, weights, used, products, squares
        )
        total.add("products", products)
        total.add("squares", squares)
        total.add("data", block_norms(rows)[used].sum())


class SSMCA(Model):
    """Non-negative fields with strengths; the largest product of both sets a value.

    The scheme must be ``sample``, and no evidence is available.
    If mu is learned, each field has the mean 1. If mu is fixed, the fields are on the scale of the data.
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
        # as if causes added up; a slab as wide as the data would narrow only over many iterations
        strength = summary.mean / (self.H * probability)
        slab = {"mu": strength, "psi": (strength / 2) ** 2} if self.free and strength > 0 else {}
        return {**initial_sigma_and_pi(self, probability, summary), **slab}

    def constrain(self, params: Params) -> Params:
        inside = dict(super().constrain(params))
        if "W" in inside:
            inside["W"] = apply_floor(inside["W"])
        return inside

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        """Return the mean of a point whose active causes have their mean strengths, (..., D)."""
        return self._largest(params, states, np.broadcast_to(params["mu"], self.H)[states])

    def cause_images(self, params: Params) -> np.ndarray:
        return params["W"] * params["mu"]

    def _largest(self, params: Params, states: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the maximum (..., D) of zero and of causes with strengths ``values`` (..., g)."""
        return np.maximum((with_empty_row(params["W"].T)[states] * values[..., None]).max(-2), 0.0)

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
            """Return the bound of strengths: a larger one exceeds every value, and its log density is 50 nats lower."""
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

    def adjust_sums(self, stage: str, sums: Totals, old: Params, new: Params) -> Totals:
        if not self.free or "W" not in self.options.learn or np.array_equal(old["W"], new["W"]):
            return sums
        scale = self._fields(old, sums)[1]
        column = scale[:, None]
        factors = {"values": scale, "value_squares": scale**2, "products": column, "squares": column**2}
        return {name: value * factors.get(name, 1.0) for name, value in sums.items()}

    def _fields(self, params: Params, sums: Totals) -> tuple[np.ndarray, np.ndarray]:
        """Return fields W^T (H, D) for the drawn strengths, and the factors (H,) that give the fields the mean 1."""
        WT = params["W"].T
        if "W" in self.options.learn:
            products, squares = sums["products"][:, : self.D], sums["squares"][:, : self.D]
            least = UNUSED * sums["value_squares"].sum()
            WT = apply_floor(divide_or_keep(products, squares, least, WT).T).T
        return WT, WT.mean(1) if self.free and "W" in self.options.learn else np.ones(self.H)

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        points, active = float(sums["points"]), sums["active"]
        WT, scale = (params["W"].T, np.ones(self.H)) if settings.fields_frozen else self._fields(params, sums)
        error = float(sums["data"] + (WT**2 * sums["squares"][:, : self.D]).sum())
        error -= 2 * float((WT * sums["products"][:, : self.D]).sum())
        first, second = scale * sums["values"], scale**2 * sums["value_squares"]
        mu, psi = self._slab(params, first, second, active)
        return {
            "W": np.asfortranarray((WT / scale[:, None]).T),
            "sigma": self.noise.learn(params, error, points, summary),
            "pi": self.prior.learn(params, active, points, settings),
            "mu": mu,
            "psi": psi,
        }

    def _slab(
        self, params: Params, first: np.ndarray, second: np.ndarray, active: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the mu and psi of maximum likelihood, from the sums of strengths and of their squares (H,).

        One mu for causes with a psi each is a mean weighted by 1 / psi, and psi depends on mu.
        """
        one_mu_many_psi = params["mu"].ndim == 0 and params["psi"].ndim == 1 and "mu" in self.options.learn
        psi_fixed = one_mu_many_psi and "psi" not in self.options.learn
        mu, weight = params["mu"], params["psi"].min() / params["psi"] if psi_fixed else np.ones(self.H)
        for _ in range(SLAB_ITERATIONS if one_mu_many_psi and not psi_fixed else 1):
            if "mu" in self.options.learn:
                mu = self._pooled("mu", params, first * weight, active * weight)
            square = self._pooled("psi", params, second - 2 * mu * first + mu**2 * active, active)
            psi = np.maximum(square, MIN_VARIANCE_FRACTION * self._pooled("psi", params, second, active))
            weight = psi.min() / psi if one_mu_many_psi else weight
        return mu, psi

    def _pooled(self, name: str, params: Params, sums: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Return the mean of ``sums`` (H,) per active cause, pooled over all causes or for each cause."""
        if params[name].ndim == 0:
            sums, active = sums.sum(), active.sum()
        return divide_or_keep(sums, active, UNUSED, params[name])


def sum_by_cause(states: np.ndarray, values: np.ndarray, H: int) -> np.ndarray:
    """Return the sums (H,) of values (m, g) over the active causes of states (m, g)."""
    return np.bincount(np.where(states < 0, H, states).ravel(), values.ravel(), H + 1)[:H]


def apply_floor(fields: np.ndarray) -> np.ndarray:
    """Return fields (D, H) of at least a small fraction of their means. Fields without positive values become flat."""
    positive = np.maximum(fields, 0.0)
    mean = positive.mean(0)
    return np.maximum(positive, np.where(mean > 0, MIN_FIELD_FRACTION * mean, 1.0))


MODEL = SSMCA
