"""Gaussian sparse coding with spike and slab (GSC): fields that add up, of a strength in each point (TH 4.5.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parallel_et.core.contract import UNUSED, Block, Knobs, Param, Params, Sum, Summary, Totals
from parallel_et.core.posterior import Alone, Sparse, ValueMoments, best_of, weigh
from parallel_et.core.states import Table, best, binary
from parallel_et.core.terms import Rule
from parallel_et.kernels import VACANT, gsc, linear, listed, residuals, select
from parallel_et.models.parts.fields import all_products, block_norms, rows_of, with_none
from parallel_et.models.parts.linear import HUGE, LinearMean, Seen
from parallel_et.models.parts.rounding import far

REFINED = 3
"""Solutions of a least-squares problem, each of the residual of the ones before, which keeps rows of any size."""
WIDEST = 1e50
"""Magnitude that mean and variance of a value may have."""
MU = Param(
    "",
    "mean of the value of an active cause, or where it begins",
    Rule(lambda causes, summary: 0.0, "0, and 1 if fields begin by moments"),
    -WIDEST,
    WIDEST,
    each=True,
)
PSI = Param("", "variance of the value of an active cause, or where it begins", 1.0, 0.0, WIDEST, each=True)


@dataclass(frozen=True)
class Ready:
    """Of one iteration: W^T (H, width), G = W^T W, 1 / sigma^2, and the log joint of the empty support at zero.

    ``slab`` (3, H) are psi, mu and log odds. The log joint of a single cause above the empty support is a polynomial
    in W^T y, whose coefficients are ``single`` (3, H), the lowest power first.
    """

    WT: np.ndarray
    gram: np.ndarray
    precision: float
    empty: float
    slab: np.ndarray
    single: np.ndarray


class GSC(LinearMean):
    """y = W s + noise, s_h = b_h z_h: b_h is 1 with probability pi, z_h normal with the mean mu and the variance psi.

    A state is the support b, its joint p(b, y) has the values integrated out, at any temperature: q ~ p(b, y)^(1 / T),
    and given b the values are distributed as they are. Candidates are the causes that are most probable alone.
    """

    params = {**LinearMean.params, "mu": MU, "psi": PSI}
    valued = True
    first_job = {"data": {"std": 2.5}}

    def beside_moments(self, probability: float, summary: Summary) -> Mapping[str, float]:
        return {**super().beside_moments(probability, summary), "mu": 1.0}  # which is what their fields are for

    def nanoseconds(self, states: int) -> float:
        return 0.04 * self.H * self.D + 15.0 * states

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return (binary(states, self.H) * params["mu"]) @ params["W"].T

    def pictures(self, params: Params) -> np.ndarray:
        """Each cause alone with a value of typical size, the root of its mean square."""
        size = np.sqrt(params["mu"] ** 2 + params["psi"])
        return params["W"] * np.where(params["mu"] < 0, -size, size)

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        states = self.prior.draw(params, rng, count)
        mu, psi = (np.broadcast_to(params[name], self.H) for name in ("mu", "psi"))
        values = with_none(mu)[states] + np.sqrt(with_none(psi)[states]) * rng.standard_normal(states.shape)
        clean = np.einsum("ng,ngd->nd", values, with_none(params["W"].T)[states])
        return self.noise.draw(params, rng, clean), states

    def prepare(self, params: Params, knobs: Knobs) -> Ready:
        WT, (precision, empty) = rows_of(params, "W", self.sharing(knobs)), self.scales(params)
        gram = self.gram(WT, knobs)
        psi, mu, odds = (np.broadcast_to(x, self.H) for x in (params["psi"], params["mu"], self.prior.odds(params)))
        k = precision * np.diag(gram)
        e = 1 + psi * k
        single = [odds - 0.5 * np.log(e) - 0.5 * k * mu**2 / e, precision * mu / e, 0.5 * precision**2 * psi / e]
        return Ready(WT, gram, precision, empty, np.stack([psi, mu, odds]), np.stack(single))

    def log_joint(self, ready: Ready, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """log p(b, y) of supports, the values integrated out, (...)."""
        lead = np.broadcast_shapes(Y.shape[:-1], states.shape[:-1])
        rows = np.broadcast_to(states, (*lead, states.shape[-1])).reshape(-1, states.shape[-1])
        points = np.broadcast_to(Y, (*lead, Y.shape[-1])).reshape(-1, Y.shape[-1])
        return fits(ready, points, rows).log_joint.reshape(lead)

    def observe(self, ready: Ready, block: Block, singles: bool) -> Seen:
        norms = block_norms(block.rows)
        base = ready.empty - 0.5 * ready.precision * norms
        return Seen(block.rows, norms, base, all_products(block.rows, ready.WT))

    def select(self, ready: Ready, seen: Seen, count: int) -> np.ndarray:
        return best(alone(ready, seen.product), count)

    def over_table(
        self, ready: Ready, seen: Seen, candidates: np.ndarray, table: Table, beta: float, singles: bool
    ) -> ValueMoments:
        n, C = candidates.shape
        if len(far(seen.base)):
            return self._by_residuals(ready, seen, candidates, table, beta, singles)
        products = np.empty((n, C))
        select.pick(seen.product, candidates, products)
        others = alone(ready, seen.product) if singles else np.empty((n, 0))
        evidence, chance, values, moments, errors = (
            np.empty(n),
            np.empty((C, n)),
            np.empty((C, n)),
            np.empty((C * (C + 1) // 2, n)),
            np.empty(n),
        )
        chosen, weight = np.empty(n, np.int32), np.empty(n)
        gsc.posterior(
            products,
            seen.base,
            ready.slab,
            ready.gram,
            ready.precision,
            beta,
            candidates,
            table.inner,
            len(table),
            others,
            evidence,
            chance,
            values,
            moments,
            chosen,
            weight,
        )
        squares, none = np.diagonal(ready.gram).copy(), np.empty((n, 0))
        residuals.errors_of_moments(
            seen.norms, products, squares, ready.gram, none, candidates, values, moments, errors
        )
        outside = Sparse.of(others)
        single = given_alone(ready, seen, outside)
        row, h = outside.row, outside.column
        errors += np.bincount(row, squares[h] * single.square - 2 * seen.product[row, h] * single.mean, n)
        atom, most = outside.heaviest()
        found = best_of(table.chosen(candidates, chosen), atom, most > weight)
        return ValueMoments(evidence, candidates, chance, values, moments, single, found, errors)

    def _by_residuals(
        self, ready: Ready, seen: Seen, candidates: np.ndarray, table: Table, beta: float, singles: bool
    ) -> ValueMoments:
        """Return the posterior of a block by least squares for each point and support."""
        n = len(candidates)
        states = table.states(candidates)
        if singles:
            every = np.broadcast_to(np.arange(self.H, dtype=np.int32)[:, None], (n, self.H, 1)).copy()
            np.put_along_axis(every[..., 0], candidates, VACANT, 1)
            wide = np.full((n, self.H, states.shape[-1]), -1, np.int32)
            wide[..., :1] = every
            states = np.concatenate([states, wide], 1)
        evidence, q = weigh(super().log_states(ready, Block(seen.Y, self.D, 0), states), beta)
        return self.over_listed(ready, seen, evidence, np.ascontiguousarray(states), Sparse.of(q))

    def over_listed(
        self, ready: Ready, seen: Seen, evidence: np.ndarray, states: np.ndarray, q: Sparse
    ) -> ValueMoments:
        candidates, members = listed.over_candidates(states, q.start, q.column, self.H)
        n, C = candidates.shape
        chance, values, moments, errors = (
            np.empty((C, n)),
            np.empty((C, n)),
            np.empty((C * (C + 1) // 2, n)),
            np.empty(n),
        )
        if len(far(seen.base)):
            add_fits(ready, seen.Y[:, : self.D], states, members, q, chance, values, moments, errors)
        else:
            products = np.take_along_axis(seen.product, candidates, 1)
            squares, none = np.diagonal(ready.gram).copy(), np.empty((n, 0))
            gsc.moments_of_states(
                seen.product,
                ready.slab,
                ready.gram,
                ready.precision,
                states,
                candidates,
                members,
                *q,
                chance,
                values,
                moments,
            )
            residuals.errors_of_moments(
                seen.norms, products, squares, ready.gram, none, candidates, values, moments, errors
            )
        single = Alone(Sparse.of(np.empty((n, 0))), np.empty(0), np.empty(0))
        found = states[np.arange(n), q.heaviest()[0]]
        return ValueMoments(evidence, candidates, chance, values, moments, single, found, errors)

    def log_states(self, ready: Ready, seen: Seen, states: np.ndarray) -> np.ndarray:
        if len(far(seen.base)):
            return super().log_states(ready, Block(seen.Y, self.D, 0), states)
        logs = np.empty(states.shape[:2])
        rows = np.ascontiguousarray(states, np.int32)
        gsc.log_states(seen.product, seen.base, ready.slab, ready.gram, ready.precision, rows, logs)
        return logs

    def log_singles(self, ready: Ready, block: Block) -> np.ndarray:
        base = ready.empty - 0.5 * ready.precision * block_norms(block.rows)
        if len(far(base)):
            return super().log_singles(ready, block)
        return alone(ready, all_products(block.rows, ready.WT)) + base[:, None]

    def best(self, ready: Ready, block: Block, posterior: ValueMoments) -> np.ndarray:
        return posterior.best()

    def sums(self, stage: str) -> Mapping[str, Sum]:
        H = self.H
        return {
            "yy": Sum((), lambda params, summary: summary.dims * summary.largest**2),
            "error": Sum((), largest_error),
            "ys": Sum((self.width * H,), lambda params, summary: summary.largest * largest_value(params, summary)),
            "ss": Sum((H * (H + 1) // 2,), lambda params, summary: largest_square(params, summary)),
            "s": Sum((H,), largest_value),
            "active": Sum((H,)),
        }

    def collect(
        self, stage: str, ready: Ready, block: Block, posterior: ValueMoments, used: np.ndarray, total: Any
    ) -> None:
        alone, (start, cause, weight) = posterior.alone, posterior.alone.weight
        means = gsc.means_by_cause(posterior.candidates, posterior.values, start, cause, alone.mean, used, self.H)
        gsc.add_pairs(posterior.candidates, posterior.moments, start, cause, alone.square, used, *total.words("ss"))
        linear.add_fields(block.rows, *means, 1, *total.words("ys"))
        total.add("yy", block_norms(block.rows)[used].sum())
        total.add("error", posterior.errors[used].sum())
        outside = np.repeat(used, np.diff(start))
        for name, inside, single in (("active", posterior.chance, weight), ("s", posterior.values, alone.mean)):
            within = np.bincount(posterior.candidates[used].reshape(-1), inside.T[used].reshape(-1), self.H)
            total.add(name, within + np.bincount(cause[outside], single[outside], self.H))

    def maximise(self, stage: str, params: Params, sums: Totals, knobs: Knobs, summary: Summary) -> Params:
        points, active, s = float(sums["points"]), sums["active"], sums["s"]
        h = np.arange(self.H)
        squares = sums["ss"][h * (h + 1) // 2 + h]
        # in units in which an active cause has the mean square 1 the fields are solved for as those of binary ones
        some = (active > UNUSED * points) & (squares > 0)
        unit = np.sqrt(np.where(some, squares / np.where(some, active, 1.0), 1.0))
        row, column = np.tril_indices(self.H)
        scaled = {
            **sums,
            "ys": sums["ys"] / np.concatenate([np.repeat(unit, s.stop - s.start) for s in linear.strips(self.width)]),
            "ss": sums["ss"] / (unit[row] * unit[column]),
        }
        new = dict(super().maximise(stage, {**params, "W": params["W"] * unit}, scaled, knobs, summary))
        new["W"] = new["W"] / unit if "W" in self.options.learn else params["W"]
        if "pi" in self.options.learn:
            new["pi"] = self.prior.learn(params, active, points, knobs)
        if "mu" in self.options.learn:
            new["mu"] = shared(params["mu"], s, active, points)
        if "psi" in self.options.learn:
            mu = new["mu"]
            new["psi"] = np.maximum(shared(params["psi"], squares - 2 * mu * s + mu**2 * active, active, points), 0.0)
        return new

    def usage(self, sums: Totals) -> np.ndarray:
        return sums["active"]


def alone(ready: Ready, product: np.ndarray) -> np.ndarray:
    """Log joint of each cause alone above that of the empty support, from Y W (n, H); (n, H)."""
    low, middle, high = ready.single
    found = product * high
    found += middle
    found *= product
    found += low
    return found


def given_alone(ready: Ready, seen: Seen, weight: Sparse) -> Alone:
    """Single causes that matter, with the moments of their values."""
    row, h = weight.row, weight.column
    psi, mu, _ = ready.slab[:, h]
    e = 1 + psi * ready.precision * ready.gram[h, h]
    mean = (psi * ready.precision * seen.product[row, h] + mu) / e
    return Alone(weight, weight.value * mean, weight.value * (mean**2 + psi / e))


def shared(old: np.ndarray, sums: np.ndarray, active: np.ndarray, points: float) -> np.ndarray:
    """Means of what was summed up (H,), a cause that is active each or of all; what nobody tells of stays ``old``."""
    if old.ndim == 0:
        sums, active = sums.sum(), active.sum()
    used = active > UNUSED * points
    return np.where(used, sums / np.where(used, active, 1.0), old)


def largest_value(params: Params, summary: Summary) -> float:
    """The most that a value can be in the mean, given any support.

    The means z of the values have the least |y - W z|^2 / sigma^2 + sum_h (z_h - mu_h)^2 / psi_h, which for z = mu is
    (|y| + sum_h |W_h mu_h|)^2 / sigma^2 at most.
    """
    length = np.sqrt(summary.dims) * summary.largest + np.sum(
        np.abs(params["mu"]) * np.linalg.norm(params["W"], axis=0)
    )
    return float(np.max(np.abs(params["mu"])) + np.sqrt(np.max(params["psi"])) * length / params["sigma"])


def largest_square(params: Params, summary: Summary) -> float:
    """The most that the square of a value can be in the mean, given any support."""
    return float(largest_value(params, summary) ** 2 + np.max(params["psi"]))


def largest_error(params: Params, summary: Summary) -> float:
    """Return the largest <|y - W s|^2> given any support.

    At the mean values it is at most the least |y - W z|^2 + sigma^2 sum_h (z_h - mu_h)^2 / psi_h, which is at most
    its value at z = mu. The spread of the values adds sigma^2 for each active cause at most.
    """
    mean = np.sum(np.abs(params["mu"]) * np.linalg.norm(params["W"], axis=0))
    length = np.sqrt(summary.dims) * summary.largest + mean
    return float(np.nan_to_num(length**2 + params["W"].shape[1] * params["sigma"] ** 2, nan=HUGE, posinf=HUGE))


class Fits(NamedTuple):
    """Least-squares fits of m points, each by the fields of one support (m, g).

    Attributes
    ----------
    log_joint : (m,) log p(b, y)
    value : (m, g) posterior means of the values, 0 for padding
    covariance : (m, g, g) their posterior covariance
    error : (m,) <|y - W s|^2>
    """

    log_joint: np.ndarray
    value: np.ndarray
    covariance: np.ndarray
    error: np.ndarray


def fits(ready: Ready, Y: np.ndarray, states: np.ndarray) -> Fits:
    """Fit points Y (m, D) by supports (m, g), without differences of large products.

    The values are z = mu + sqrt(psi) u, and u minimises |(y - W mu) / sigma - W sqrt(psi) / sigma u|^2 + |u|^2.
    The triangle R of a QR decomposition of that problem gives means, covariances and the determinant.
    Costs about 2 g^2 D operations a point.
    """
    (m, g), D = states.shape, Y.shape[1]
    psi, mu, odds = (with_none(row)[states] for row in ready.slab)
    root = np.sqrt(psi)
    fields = with_none(ready.WT[:, :D])[states].swapaxes(1, 2)
    scale = np.sqrt(ready.precision)
    stacked = np.concatenate([fields * (scale * root)[:, None], np.broadcast_to(np.eye(g), (m, g, g))], 1)
    target = np.zeros((m, D + g))
    target[:, :D] = scale * (Y - np.einsum("mdg,mg->md", fields, mu))
    order = np.argsort(-np.abs(stacked).max(2), axis=1, kind="stable")  # large rows first keep the digits of small ones
    stacked, target = (np.take_along_axis(a, o, 1) for a, o in ((stacked, order[..., None]), (target, order)))
    Q, R = np.linalg.qr(stacked)
    inverse = np.linalg.inv(R)
    u, rest = np.zeros((m, g)), target
    for _ in range(REFINED):
        u = u + np.einsum("mij,mkj,mk->mi", inverse, Q, rest)
        rest = target - np.einsum("mdg,mg->md", stacked, u)
    log_root = np.log(np.abs(np.diagonal(R, axis1=1, axis2=2))).sum(1)
    log_joint = ready.empty + odds.sum(1) - log_root - 0.5 * (rest * rest).sum(1)
    factor = root[:, :, None] * inverse
    spread = np.einsum("mdi,mij->mdj", fields, factor)
    error = (rest * rest * (order < D)).sum(1) / ready.precision + (spread * spread).sum((1, 2))
    return Fits(log_joint, mu + root * u, factor @ factor.swapaxes(1, 2), error)


def add_fits(
    ready: Ready,
    Y: np.ndarray,
    states: np.ndarray,
    members: np.ndarray,
    q: Sparse,
    chance: np.ndarray,
    values: np.ndarray,
    moments: np.ndarray,
    errors: np.ndarray,
) -> None:
    """Write the moments over candidates of states (n, K, g) by ``fits``; all else as ``gsc.moments_of_states``."""
    for out in (chance, values, moments, errors):
        out[:] = 0.0
    row, index, weight = q.row, q.column, q.value
    found = fits(ready, Y[row], states[row, index])
    np.add.at(errors, row, weight * found.error)
    square = found.covariance + found.value[:, :, None] * found.value[:, None]
    for i in range(members.shape[1]):
        some = members[:, i] >= 0
        here = members[some, i]
        np.add.at(chance, (here, row[some]), weight[some])
        np.add.at(values, (here, row[some]), (weight * found.value[:, i])[some])
        for j in range(i + 1):
            high, low = np.maximum(here, members[some, j]), np.minimum(here, members[some, j])
            np.add.at(moments, (high * (high + 1) // 2 + low, row[some]), (weight * square[:, i, j])[some])


MODEL = GSC
