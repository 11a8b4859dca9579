"""Gaussian sparse coding (GSC), or spike-and-slab sparse coding: causes add up, each with its own strength.

    b_h ~ Bernoulli(pi_h),    z_h ~ Gauss(mu_h, psi_h),    s_h = b_h z_h,    p(y | s) = Gauss(y; W s, sigma^2 I)

A state is the support b. Its joint p(b, y) is a Gaussian integral over the strengths z, in closed form.
The model suits data in which the strength of a pattern varies: patches of natural images, sounds.
See TH sec. 4.5.1.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from parallel_et.core.latent_states import Table, best_atoms, binary
from parallel_et.core.model import UNUSED, Evaluator
from parallel_et.core.posterior import Singletons, Sparse, ValueMoments, better_states, weigh
from parallel_et.core.types import Param, Params, Rule, Settings, Statistic, Summary, Sums, Totals
from parallel_et.kernels import VACANT, gsc, linear, listed_states, residuals, select
from parallel_et.models.components.fields import block_norms, divide_or_keep, with_empty_row
from parallel_et.models.components.linear import FINITE_BOUND, GaussView, LinearMean
from parallel_et.models.components.moments import Moments, moment_statistics
from parallel_et.models.components.rounding import imprecise_points

REFINEMENT_STEPS = 3
"""Number of solutions of a least-squares problem: the first, and refinements by the residual."""
MAX_VALUE_MOMENT = 1e50
"""Largest magnitude of the mean and the variance of a strength."""
MU = Param(
    "",
    "mean strength of an active cause, or its initial value",
    Rule(lambda causes, summary: 0.0, "0, or 1 if fields are initialised from moments"),
    -MAX_VALUE_MOMENT,
    MAX_VALUE_MOMENT,
    each=True,
)
PSI = Param(
    "", "variance of the strength of an active cause, or its initial value", 1.0, 0.0, MAX_VALUE_MOMENT, each=True
)


class GSCEvaluator(Evaluator):
    """GSC with its parameters bound.

    Attributes
    ----------
    WT : (H, width) the fields as rows
    gram : (H, H) W^T W
    precision : 1 / sigma^2
    empty : log joint of the empty support and a point of zeros
    slab : (3, H) psi, mu and log odds
    single : (3, H) coefficients of a polynomial in W^T y, lowest power first: the log joint of a single cause minus
        that of the empty support
    """

    def __init__(self, model: "GSC", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        self.WT = settings.algebra.rows(params["W"])
        self.precision, self.empty = model.scales(params)
        self.gram = settings.algebra.gram(self.WT)
        every = (params["psi"], params["mu"], model.prior.odds(params))
        psi, mu, odds = (np.broadcast_to(one, model.H) for one in every)
        k = self.precision * np.diag(self.gram)
        e = 1 + psi * k
        low, middle = odds - 0.5 * np.log(e) - 0.5 * k * mu**2 / e, self.precision * mu / e
        self.slab = np.stack([psi, mu, odds])
        self.single = np.stack([low, middle, 0.5 * self.precision**2 * psi / e])

    def log_joint(self, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return log p(b, y) of supports, with the strengths integrated out, (...)."""
        lead = np.broadcast_shapes(Y.shape[:-1], states.shape[:-1])
        rows = np.broadcast_to(states, (*lead, states.shape[-1])).reshape(-1, states.shape[-1])
        points = np.broadcast_to(Y, (*lead, Y.shape[-1])).reshape(-1, Y.shape[-1])
        return fit_supports(self, points, rows).log_joint.reshape(lead)

    def log_odds_of_singletons(self, product: np.ndarray) -> np.ndarray:
        """Return log p({h}, y) - log p({}, y) of each single cause h, (n, H), from the products Y W (n, H)."""
        low, middle, high = self.single
        found = product * high
        found += middle
        found *= product
        found += low
        return found


class GSCView(GaussView):
    """A block of points under GSC, with closed forms for the strengths given a support."""

    evaluator: GSCEvaluator

    def best(self, posterior: ValueMoments) -> np.ndarray:
        return posterior.best()

    def select(self, count: int) -> np.ndarray:
        return best_atoms(self.evaluator.log_odds_of_singletons(self.product), count)

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> ValueMoments:
        by = self.evaluator
        n, C = candidates.shape
        if len(imprecise_points(self.base)):
            return self._by_residuals(candidates, table, beta)
        products = np.empty((n, C))
        select.pick(self.product, candidates, products)
        others = by.log_odds_of_singletons(self.product) if self.singletons else np.empty((n, 0))
        evidence, probability, values, moments, errors = (
            np.empty(n),
            np.empty((C, n)),
            np.empty((C, n)),
            np.empty((C * (C + 1) // 2, n)),
            np.empty(n),
        )
        chosen, weight = np.empty(n, np.int32), np.empty(n)
        gsc.posterior(
            products,
            self.base,
            by.slab,
            by.gram,
            by.precision,
            beta,
            candidates,
            table.inner,
            len(table),
            others,
            evidence,
            probability,
            values,
            moments,
            chosen,
            weight,
        )
        squares, none = np.diagonal(by.gram).copy(), np.empty((n, 0))
        residuals.errors_of_moments(self.norms, products, squares, by.gram, none, candidates, values, moments, errors)
        outside = Sparse.of(others)
        single = self._singletons_with_moments(outside)
        row, h = outside.row, outside.column
        errors += np.bincount(row, squares[h] * single.square - 2 * self.product[row, h] * single.mean, n)
        atom, most = outside.heaviest()
        found = better_states(table.states_at(candidates, chosen), atom, most > weight)
        return ValueMoments(evidence, candidates, probability, values, moments, single, found, errors)

    def _by_residuals(self, candidates: np.ndarray, table: Table, beta: float) -> ValueMoments:
        """Return the posterior of a block from a least-squares fit for each point and support."""
        n, H = len(candidates), self.model.H
        states = table.states(candidates)
        if self.singletons:
            every = np.broadcast_to(np.arange(H, dtype=np.int32)[:, None], (n, H, 1)).copy()
            np.put_along_axis(every[..., 0], candidates, VACANT, 1)
            wide = np.full((n, H, states.shape[-1]), -1, np.int32)
            wide[..., :1] = every
            states = np.concatenate([states, wide], 1)
        evidence, q = weigh(super().log_joint(states), beta)
        return self.over_listed(evidence, np.ascontiguousarray(states), Sparse.of(q))

    def over_listed(self, evidence: np.ndarray, states: np.ndarray, q: Sparse) -> ValueMoments:
        by = self.evaluator
        candidates, members = listed_states.candidates_and_members(states, q.start, q.column, self.model.H)
        n, C = candidates.shape
        probability, values, moments, errors = (
            np.empty((C, n)),
            np.empty((C, n)),
            np.empty((C * (C + 1) // 2, n)),
            np.empty(n),
        )
        if len(imprecise_points(self.base)):
            write_fitted_moments(by, self.block.Y, states, members, q, probability, values, moments, errors)
        else:
            products = np.take_along_axis(self.product, candidates, 1)
            squares, none = np.diagonal(by.gram).copy(), np.empty((n, 0))
            gsc.moments_of_states(
                self.product,
                by.slab,
                by.gram,
                by.precision,
                states,
                candidates,
                members,
                *q,
                probability,
                values,
                moments,
            )
            residuals.errors_of_moments(
                self.norms, products, squares, by.gram, none, candidates, values, moments, errors
            )
        single = Singletons(Sparse.of(np.empty((n, 0))), np.empty(0), np.empty(0))
        found = states[np.arange(n), q.heaviest()[0]]
        return ValueMoments(evidence, candidates, probability, values, moments, single, found, errors)

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        if len(imprecise_points(self.base)):
            return super().log_joint(states)
        by, logs = self.evaluator, np.empty(states.shape[:2])
        rows = np.ascontiguousarray(states, np.int32)
        gsc.log_states(self.product, self.base, by.slab, by.gram, by.precision, rows, logs)
        return logs

    def log_singletons(self) -> np.ndarray:
        if len(imprecise_points(self.base)):
            return super().log_singletons()
        return self.evaluator.log_odds_of_singletons(self.product) + self.base[:, None]

    def _singletons_with_moments(self, weight: Sparse) -> Singletons:
        """Return single causes with these weights and the moments of their strengths."""
        by = self.evaluator
        row, h = weight.row, weight.column
        psi, mu, _ = by.slab[:, h]
        e = 1 + psi * by.precision * by.gram[h, h]
        mean = (psi * by.precision * self.product[row, h] + mu) / e
        return Singletons(weight, weight.value * mean, weight.value * (mean**2 + psi / e))

    def accumulate(self, stage: str, posterior: ValueMoments, used: np.ndarray, total: Sums) -> None:
        block, H = self.block, self.model.H
        single, (start, cause, weight) = posterior.singletons, posterior.singletons.weight
        means = gsc.means_by_cause(posterior.candidates, posterior.values, start, cause, single.mean, used, H)
        gsc.add_pairs(posterior.candidates, posterior.moments, start, cause, single.square, used, *total.words("ss"))
        linear.add_cross_moments(block.rows, *means, 1, *total.words("ys"))
        total.add("yy", block_norms(block.rows)[used].sum())
        total.add("error", posterior.errors[used].sum())
        outside = np.repeat(used, np.diff(start))
        for name, inside, outer in (("active", posterior.probability, weight), ("s", posterior.values, single.mean)):
            within = np.bincount(posterior.candidates[used].reshape(-1), inside.T[used].reshape(-1), H)
            total.add(name, within + np.bincount(cause[outside], outer[outside], H))


class GSC(LinearMean):
    """Fields that add up with strengths s_h = b_h z_h, z_h ~ Gauss(mu_h, psi_h).

    Annealing tempers the supports, q(b) ~ p(b, y)^(1 / T), but not the strengths given a support.
    The candidates are the single causes with the largest joint.
    """

    params = {**LinearMean.params, "mu": MU, "psi": PSI}
    View = GSCView
    valued = True
    first_job = {"data": {"std": 2.5}}

    def values_with_moments(self, probability: float, summary: Summary) -> Mapping[str, float]:
        return {
            **super().values_with_moments(probability, summary),
            "mu": 1.0,
        }  # these fields are for strengths around 1

    def nanoseconds(self, states: int) -> float:
        return 0.04 * self.H * self.D + 15.0 * states

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return (binary(states, self.H) * params["mu"]) @ params["W"].T

    def cause_images(self, params: Params) -> np.ndarray:
        """Return each cause alone with its root-mean-square strength as a point, (D, H)."""
        size = np.sqrt(params["mu"] ** 2 + params["psi"])
        return params["W"] * np.where(params["mu"] < 0, -size, size)

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        states = self.prior.draw(params, rng, count)
        mu, psi = (np.broadcast_to(params[name], self.H) for name in ("mu", "psi"))
        values = with_empty_row(mu)[states] + np.sqrt(with_empty_row(psi)[states]) * rng.standard_normal(states.shape)
        clean = np.einsum("ng,ngd->nd", values, with_empty_row(params["W"].T)[states])
        return self.noise.draw(params, rng, clean), states

    def evaluator(self, params: Params, settings: Settings) -> GSCEvaluator:
        return GSCEvaluator(self, params, settings)

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        H = self.H
        return {
            "yy": Statistic((), lambda params, summary: summary.dims * summary.largest**2),
            "error": Statistic((), largest_error),
            **moment_statistics(H, self.width, largest_product, largest_square),
            "s": Statistic((H,), largest_value),
            "active": Statistic((H,)),
        }

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        points, active, s = float(sums["points"]), sums["active"], sums["s"]
        moments = Moments.from_sums(sums, self.H, self.D)
        squares = moments.active
        # in units in which strengths have the mean square 1, the solver is that of binary causes
        some = (active > UNUSED * points) & (squares > 0)
        unit = np.sqrt(np.where(some, squares / np.where(some, active, 1.0), 1.0))
        scaled = {**params, "W": params["W"] * unit}
        new = dict(self.learn(scaled, moments.scaled(unit), sums, settings, summary))
        new["W"] = new["W"] / unit if "W" in self.options.learn else params["W"]
        if "pi" in self.options.learn:
            new["pi"] = self.prior.learn(params, active, points, settings)
        if "mu" in self.options.learn:
            new["mu"] = pooled_mean(params["mu"], s, active, points)
        if "psi" in self.options.learn:
            mu = new["mu"]
            new["psi"] = np.maximum(
                pooled_mean(params["psi"], squares - 2 * mu * s + mu**2 * active, active, points), 0.0
            )
        return new

    def usage(self, sums: Totals) -> np.ndarray:
        return sums["active"]


def pooled_mean(old: np.ndarray, sums: np.ndarray, active: np.ndarray, points: float) -> np.ndarray:
    """Return means per active cause from ``sums`` (H,), pooled if ``old`` is one number; unused causes keep ``old``."""
    if old.ndim == 0:
        sums, active = sums.sum(), active.sum()
    return divide_or_keep(sums, active, UNUSED * points, old)


def largest_value(params: Params, summary: Summary) -> float:
    """Return the largest magnitude of the mean of a strength given any support.

    The means z of the strengths minimise |y - W z|^2 / sigma^2 + sum_h (z_h - mu_h)^2 / psi_h.
    At z = mu this is at most (|y| + sum_h |W_h mu_h|)^2 / sigma^2.
    """
    length = np.sqrt(summary.dims) * summary.largest + np.sum(
        np.abs(params["mu"]) * np.linalg.norm(params["W"], axis=0)
    )
    return float(np.max(np.abs(params["mu"])) + np.sqrt(np.max(params["psi"])) * length / params["sigma"])


def largest_product(params: Params, summary: Summary) -> float:
    """Return the largest magnitude of the product of a mean strength, given any support, and a value of the data."""
    return summary.largest * largest_value(params, summary)


def largest_square(params: Params, summary: Summary) -> float:
    """Return the largest mean square of a strength given any support."""
    return float(largest_value(params, summary) ** 2 + np.max(params["psi"]))


def largest_error(params: Params, summary: Summary) -> float:
    """Return the largest <|y - W s|^2> given any support.

    At the mean strengths it is at most the minimum of |y - W z|^2 + sigma^2 sum_h (z_h - mu_h)^2 / psi_h over z.
    The value at z = mu bounds this minimum. The spread of the strengths adds at most sigma^2 for each active cause.
    """
    mean = np.sum(np.abs(params["mu"]) * np.linalg.norm(params["W"], axis=0))
    length = np.sqrt(summary.dims) * summary.largest + mean
    return float(
        np.nan_to_num(length**2 + params["W"].shape[1] * params["sigma"] ** 2, nan=FINITE_BOUND, posinf=FINITE_BOUND)
    )


class LeastSquares(NamedTuple):
    """Least-squares fits of m points by the fields of supports (m, g).

    Attributes
    ----------
    log_joint : (m,) log p(b, y)
    value : (m, g) posterior means of the strengths, 0 for padding
    covariance : (m, g, g) posterior covariance of the strengths
    error : (m,) <|y - W s|^2>
    """

    log_joint: np.ndarray
    value: np.ndarray
    covariance: np.ndarray
    error: np.ndarray


def fit_supports(by: GSCEvaluator, Y: np.ndarray, states: np.ndarray) -> LeastSquares:
    """Fit points Y (m, D) by supports (m, g), without differences of large products.

    The strengths are z = mu + sqrt(psi) u, and u minimises |(y - W mu) / sigma - W sqrt(psi) / sigma u|^2 + |u|^2.
    The triangle R of a QR decomposition of this problem gives means, covariances and the determinant.
    Costs about 2 g^2 D operations per point.
    """
    (m, g), D = states.shape, Y.shape[1]
    psi, mu, odds = (with_empty_row(row)[states] for row in by.slab)
    root = np.sqrt(psi)
    fields = with_empty_row(by.WT[:, :D])[states].swapaxes(1, 2)
    scale = np.sqrt(by.precision)
    stacked = np.concatenate([fields * (scale * root)[:, None], np.broadcast_to(np.eye(g), (m, g, g))], 1)
    target = np.zeros((m, D + g))
    target[:, :D] = scale * (Y - np.einsum("mdg,mg->md", fields, mu))
    order = np.argsort(-np.abs(stacked).max(2), axis=1, kind="stable")  # large rows first keep the digits of small ones
    stacked, target = (np.take_along_axis(a, o, 1) for a, o in ((stacked, order[..., None]), (target, order)))
    Q, R = np.linalg.qr(stacked)
    inverse = np.linalg.inv(R)
    u, rest = np.zeros((m, g)), target
    for _ in range(REFINEMENT_STEPS):
        u = u + np.einsum("mij,mkj,mk->mi", inverse, Q, rest)
        rest = target - np.einsum("mdg,mg->md", stacked, u)
    log_root = np.log(np.abs(np.diagonal(R, axis1=1, axis2=2))).sum(1)
    log_joint = by.empty + odds.sum(1) - log_root - 0.5 * (rest * rest).sum(1)
    factor = root[:, :, None] * inverse
    spread = np.einsum("mdi,mij->mdj", fields, factor)
    error = (rest * rest * (order < D)).sum(1) / by.precision + (spread * spread).sum((1, 2))
    return LeastSquares(log_joint, mu + root * u, factor @ factor.swapaxes(1, 2), error)


def write_fitted_moments(
    by: GSCEvaluator,
    Y: np.ndarray,
    states: np.ndarray,
    members: np.ndarray,
    q: Sparse,
    probability: np.ndarray,
    values: np.ndarray,
    moments: np.ndarray,
    errors: np.ndarray,
) -> None:
    """Write the moments over candidates of states (n, K, g) by ``fit_supports``; see ``gsc.moments_of_states``."""
    for out in (probability, values, moments, errors):
        out[:] = 0.0
    row, index, weight = q.row, q.column, q.value
    found = fit_supports(by, Y[row], states[row, index])
    np.add.at(errors, row, weight * found.error)
    square = found.covariance + found.value[:, :, None] * found.value[:, None]
    for i in range(members.shape[1]):
        some = members[:, i] >= 0
        here = members[some, i]
        np.add.at(probability, (here, row[some]), weight[some])
        np.add.at(values, (here, row[some]), (weight * found.value[:, i])[some])
        for j in range(i + 1):
            high, low = np.maximum(here, members[some, j]), np.minimum(here, members[some, j])
            np.add.at(moments, (high * (high + 1) // 2 + low, row[some]), (weight * square[:, i, j])[some])


MODEL = GSC
