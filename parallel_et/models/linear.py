"""The evaluation that all models with mean W s share (ET eq. 24, 25), in Gram form."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError, eigh

from parallel_et.kernels import linear, select, truncated
from parallel_et.models.base import (
    UNUSED,
    GaussModel,
    Knobs,
    Params,
    Summary,
    Sums,
    all_products,
    block_norms,
    fields_of,
)
from parallel_et.models.solve import solve_positive
from parallel_et.posterior.states import Posterior, Sparse, States


@dataclass(frozen=True)
class Ready:
    """Of one iteration: W^T (H, width), G = W^T W, 1 / sigma^2, and the constants of the log joint."""

    WT: np.ndarray
    gram: np.ndarray
    precision: float
    bias: np.ndarray
    empty: float

    @cached_property
    def lengths(self) -> np.ndarray:
        """Of the fields; 1 for those that are zero, (H,)."""
        length = np.sqrt(np.diag(self.gram))
        return np.where(length > 0, length, 1.0)

    @cached_property
    def units(self) -> np.ndarray:
        """The fields at length 1 in single precision, (H, width)."""
        return (self.WT / self.lengths[:, None]).astype(np.float32)


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


class LinearModel(GaussModel):
    """Mean W s, Gaussian noise: |y - W s|^2 = |y|^2 - 2 s^T W^T y + s^T G s, nothing in D but products with fields."""

    def nanoseconds(self, states: int) -> float:
        return 0.04 * self.H * self.D + 3.0 * states

    def prepare(self, params: Params, knobs: Knobs) -> Ready:
        empty, odds = self.log_prior(params)
        WT = fields_of(params)
        gram = WT @ WT.T
        precision = 1 / float(params.sigma) ** 2
        return Ready(WT, gram, precision, odds - 0.5 * precision * np.diag(gram), empty)

    def observe(self, ready: Ready, Y: np.ndarray, singletons: bool) -> Seen:
        return self.seen(ready, Y, block_norms(Y), all_products(Y, ready.WT) if singletons else None)

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

    def posterior(self, ready: Ready, seen: Seen, candidates: np.ndarray, states: States, beta: float) -> Posterior:
        n, C = candidates.shape
        products = np.empty((n, C))
        if seen.product.size:
            select.pick(seen.product, candidates, products)
        else:
            select.products(seen.Y, ready.WT, candidates, products)
        evidence, moments = np.empty(n), np.empty((C * (C + 1) // 2, n))
        linear.posterior(
            products,
            seen.base,
            ready.bias,
            ready.gram,
            ready.precision,
            beta,
            candidates,
            states.inner,
            len(states),
            seen.product,
            evidence,
            moments,
        )
        return Posterior(
            evidence, candidates, Sparse(*truncated.significant(seen.product)), moments=moments, norms=seen.norms
        )

    def log_singletons(self, ready: Ready, seen: Seen) -> np.ndarray:
        return all_products(seen.Y, ready.WT) * ready.precision + ready.bias + seen.base[:, None]

    def means(self, posterior: Posterior, states: States) -> np.ndarray:
        assert posterior.moments is not None
        means, i = posterior.singletons.dense(self.H), np.arange(posterior.candidates.shape[1])
        np.put_along_axis(means, posterior.candidates, posterior.moments[i * (i + 1) // 2 + i].T, 1)
        return means

    def reconstruction(self, ready: Ready, posterior: Posterior, states: States) -> np.ndarray:
        return self.means(posterior, states) @ ready.WT[:, : self.D]

    def best_states(self, ready: Ready, Y: np.ndarray, posterior: Posterior, states: States) -> np.ndarray:
        outside, _ = posterior.singletons.heaviest()
        causes = np.column_stack([posterior.candidates, np.maximum(outside, 0)])
        products = np.empty(causes.shape)
        select.products(Y, ready.WT, causes, products)  # of all in one way: what is equal stays so to the last bit
        best, gain = np.empty(len(Y), np.int32), np.empty(len(Y))
        linear.best_states(
            np.ascontiguousarray(products[:, :-1]),
            ready.bias,
            ready.gram,
            ready.precision,
            posterior.candidates,
            states.inner,
            len(states),
            best,
            gain,
        )
        alone = (outside >= 0) & (products[:, -1] * ready.precision + ready.bias[outside] > gain)
        return states.causes(posterior.candidates, best, np.where(alone, outside, -1))

    def statistics_like(self, stage: str) -> Mapping[str, tuple[int, ...]]:
        return {"points": (), "yy": (), "ys": (self.width * self.H,), "ss": (self.H * (self.H + 1) // 2,)}

    def bounds(self, stage: str, params: Params, summary: Summary) -> Mapping[str, float]:
        return {"points": 1.0, "yy": summary.dims * summary.largest**2, "ys": summary.largest, "ss": 1.0}

    def statistics(
        self,
        stage: str,
        ready: Ready,
        Y: np.ndarray,
        posterior: Posterior,
        used: np.ndarray,
        states: States,
        total: Sums,
    ) -> None:
        candidates, moments = posterior.candidates, posterior.moments
        assert moments is not None
        assert posterior.norms is not None
        means = linear.means_by_cause(candidates, moments, *posterior.singletons, used, self.H)
        linear.add_fields(Y, *means, *total.words("ys"), *total.words("ss"))
        linear.add_pairs(candidates, moments, used, *total.words("ss"))
        total.add("points", used.sum())
        total.add("yy", posterior.norms[used].sum())

    def maximise(
        self, stage: str, params: Params, total: Mapping[str, np.ndarray], knobs: Knobs, gamma: int, summary: Summary
    ) -> Params:
        points, ys = float(total["points"]), linear.from_strips(total["ys"], self.H)[:, : self.D]
        ss = np.empty((self.H, self.H))
        linear.unpack(total["ss"], ss)
        new, rest = params, np.ones(self.H, bool)
        if "W" in self.options.learn and points > 0:
            WT, solved = self.new_fields(params.W.T, ys, ss, points)
            rest = ~solved
            new = self.constrain(replace(params, W=WT.T))
        if "sigma" in self.options.learn:
            WT = new.W.T
            error = total["yy"] - np.vdot(WT, ys)
            if rest.any():  # elsewhere ss W^T = ys
                error += np.vdot(WT[rest], ss[rest] @ WT - ys[rest])
            new = self.learn_sigma(new, float(error), points, summary)
        return self.learn_pi(new, float(np.trace(ss)), points, knobs, gamma)

    def new_fields(
        self, WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """(sum <s s^T>)^-1 (sum <s> y^T), ET eq. 26, and for which causes ss W^T = ys holds then, (H,) bool."""
        return solve_fields(WT, ys, ss, points)

    def usage(self, total: Mapping[str, np.ndarray]) -> np.ndarray:
        h = np.arange(self.H)
        return total["ss"][h * (h + 1) // 2 + h]

    def mean(self, params: Params, s: np.ndarray) -> np.ndarray:
        return s @ params.W.T


def solve_fields(WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float) -> tuple[np.ndarray, np.ndarray]:
    """Fields (H, D) that solve ss WT = ys; what the moments leave open stays as it is in the old ``WT``.

    By Cholesky, without the causes that are never used. Where the rest is singular too (two causes always together),
    the change of W is solved for by the pseudo-inverse: then only the directions that the points determine are changed.
    Also returned is which rows of the equation hold, (H,) bool.
    """
    used = np.diag(ss) > UNUSED * points
    A, B, unused = ss, ys, ~used
    if unused.any():
        A, B = ss.copy(), ys - ss[:, unused] @ WT[unused]
        A[unused], A[:, unused] = 0.0, 0.0
        A[unused, unused] = points
    try:
        new = solve_positive(A, B, UNUSED * points)
        new[unused] = WT[unused]
        return new, used
    except LinAlgError:
        values, vectors = eigh(ss)
        keep = values > UNUSED * points
        change = vectors[:, keep] @ ((vectors[:, keep].T @ (ys - ss @ WT)) / values[keep, None])
        return WT + change, np.zeros(len(ss), bool)
