"""The evaluation that all models with mean W s share (ET eq. 24, 25), in Gram form."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh

from parallel_et.kernels import linear
from parallel_et.models.base import UNUSED, GaussModel, Knobs, Params, Summary, block_norms
from parallel_et.posterior.states import Posterior, States


@dataclass(frozen=True)
class Ready:
    """Of one iteration: W (D, H) and its transpose, G = W^T W, 1 / sigma^2, and the constants of the log joint."""

    W: np.ndarray
    WT: np.ndarray
    gram: np.ndarray
    precision: float
    bias: np.ndarray
    empty: float


@dataclass(frozen=True)
class Seen:
    """Of a block: Y (n, D), Y W (n, H), and the log joint of the empty state (n,)."""

    Y: np.ndarray
    product: np.ndarray
    base: np.ndarray


class LinearModel(GaussModel):
    """Mean W s, Gaussian noise: |y - W s|^2 = |y|^2 - 2 s^T W^T y + s^T G s, nothing in D but the product Y W."""

    def prepare(self, params: Params, knobs: Knobs) -> Ready:
        empty, odds = self.log_prior(params)
        gram = params.W.T @ params.W
        precision = 1 / float(params.sigma) ** 2
        bias = odds - 0.5 * precision * np.diag(gram)
        return Ready(params.W, np.ascontiguousarray(params.W.T), gram, precision, bias, empty)

    def observe(self, ready: Ready, Y: np.ndarray) -> Seen:
        return Seen(Y, Y @ ready.W, ready.empty - 0.5 * ready.precision * block_norms(Y))

    def log_joint(self, ready: Ready, seen: Seen, candidates: np.ndarray, states: States) -> np.ndarray:
        out = np.empty((len(states), len(seen.Y)))
        linear.log_joint(
            seen.product, seen.base, ready.bias, ready.gram, ready.precision, candidates, states.size, states.last, out
        )
        return out

    def log_singletons(self, ready: Ready, seen: Seen) -> np.ndarray:
        return seen.product * ready.precision + ready.bias + seen.base[:, None]

    def statistics_like(self, stage: str) -> Mapping[str, tuple[int, ...]]:
        return {"points": (), "yy": (), "ys": (self.H, self.D), "ss": (self.H, self.H)}

    def bounds(self, stage: str, params: Params, summary: Summary) -> Mapping[str, float]:
        return {"points": 1.0, "yy": summary.dims * summary.largest**2, "ys": summary.largest, "ss": 1.0}

    def statistics(
        self, stage: str, ready: Ready, Y: np.ndarray, posterior: Posterior, used: np.ndarray, states: States
    ) -> Mapping[str, np.ndarray]:
        ys, half = np.zeros((self.H, self.D)), np.zeros((self.H, self.H))
        linear.moments(
            Y,
            posterior.weights,
            posterior.singletons,
            posterior.candidates,
            used,
            states.size,
            states.members,
            ys,
            half,
        )
        ss = half + half.T
        np.fill_diagonal(ss, np.diag(half))
        return {"points": used.sum(), "yy": block_norms(Y)[used].sum(), "ys": ys, "ss": ss}

    def maximise(
        self, stage: str, params: Params, total: Mapping[str, np.ndarray], knobs: Knobs, gamma: int, summary: Summary
    ) -> Params:
        points, ys, ss = float(total["points"]), total["ys"], total["ss"]
        new = params
        if "W" in self.options.learn and points > 0:
            new = self.constrain(replace(params, W=self.new_fields(params.W, ys, ss, points)))
        error = total["yy"] - 2 * np.vdot(new.W.T, ys) + np.vdot(new.W.T @ new.W, ss)
        new = self.learn_sigma(new, float(error), points, summary)
        return self.learn_pi(new, float(np.trace(ss)), points, knobs, gamma)

    def new_fields(self, W: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float) -> np.ndarray:
        """(sum y <s>^T) (sum <s s^T>)^-1, ET eq. 26."""
        return solve_fields(W, ys, ss, points)

    def usage(self, total: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.diag(total["ss"]).copy()

    def mean(self, params: Params, s: np.ndarray) -> np.ndarray:
        return s @ params.W.T


def solve_fields(W: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float) -> np.ndarray:
    """Fields (D, H) that solve W ss = ys^T; what the moments leave open stays as it is in the old ``W``.

    The change of W is solved for, by Cholesky, or where ss is singular (a cause never used, two causes always
    together) by its pseudo-inverse: then only the directions that the points determine are changed.
    """
    residual = ys - ss @ W.T
    try:
        factor = cho_factor(ss, lower=True)
        if np.min(np.diag(factor[0])) ** 2 <= UNUSED * points:
            raise LinAlgError("a cause adds nothing to those before it")
        change = cho_solve(factor, residual)
    except LinAlgError:
        values, vectors = eigh(ss)
        keep = values > UNUSED * points
        change = vectors[:, keep] @ ((vectors[:, keep].T @ residual) / values[keep, None])
    return W + change.T
