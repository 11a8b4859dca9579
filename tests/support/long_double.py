"""The judge of precision: evidence, posterior and M-step by explicit residuals, in numbers with a mantissa of 64 bits.

The judge shares no code with the package, only the parameters of a model and the options of its job. All states are
listed, and no Gram matrix or sum of squares is used, so there is no cancellation.
"""

from collections.abc import Iterator
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from brute import in_order

LONG = np.longdouble
TWO_PI = 2 * LONG("3.14159265358979323846264338327950288")
State = tuple[int, ...]
Params = dict[str, np.ndarray]


def logsumexp(logs: np.ndarray) -> np.ndarray:
    """Return log sum exp along the last axis."""
    top = logs.max(-1, keepdims=True)
    return (top + np.log(np.exp(logs - top).sum(-1, keepdims=True)))[..., 0]


def cholesky(A: np.ndarray) -> np.ndarray:
    """Return the lower triangle L with L L^T = A."""
    L = np.zeros_like(A)
    for i in range(len(A)):
        for j in range(i + 1):
            rest = A[i, j] - (L[i, :j] * L[j, :j]).sum()
            L[i, j] = np.sqrt(rest) if i == j else rest / L[j, j]
    return L


def forward(L: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return X with L X = B, (n, m)."""
    X = np.zeros(B.shape, LONG)
    for i in range(len(L)):
        X[i] = (B[i] - (L[i, :i, None] * X[:i]).sum(0)) / L[i, i]
    return X


def solve(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return X with A X = B for a positive definite A, (n, m), by Cholesky after scaling of the diagonal to 1."""
    unit = 1 / np.sqrt(np.diag(A))
    L = cholesky(A * unit[:, None] * unit)
    Z = forward(L, B * unit[:, None])
    return forward(L.T[::-1, ::-1], Z[::-1])[::-1] * unit[:, None]


def triangular(S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factor S = Q R by the Gram-Schmidt process, done twice so that Q stays orthogonal."""
    Q, R = np.array(S), np.eye(S.shape[1], dtype=LONG)
    for _ in range(2):
        step = np.zeros_like(R)
        for j in range(S.shape[1]):
            for i in range(j):
                step[i, j] = Q[:, i] @ Q[:, j]
                Q[:, j] -= step[i, j] * Q[:, i]
            step[j, j] = np.sqrt(Q[:, j] @ Q[:, j])
            Q[:, j] /= step[j, j]
        R = step @ R
    return Q, R


class Judge:
    """A model by its definition, with all states of its causes.

    Parameters
    ----------
    model : a model of the package; only its sizes and options are used
    """

    learned: tuple[str, ...] | None = None
    """Parameters with an M-step in the judge; None for all."""

    def __init__(self, model: Any) -> None:
        self.H, self.D, self.options = model.H, model.D, model.options
        self.states = list(self.every())

    def every(self) -> Iterator[State]:
        """Yield all states, as tuples of active causes."""
        for size in range(self.H + 1):
            yield from combinations(range(self.H), size)

    def values(self) -> np.ndarray:
        """Return the value of each cause in each state, (K, H)."""
        return np.array([[LONG(h in state) for h in range(self.H)] for state in self.states])

    def log_prior(self, params: Params) -> np.ndarray:
        pi = np.broadcast_to(params["pi"], self.H)
        on = abs(self.values())
        return (on * np.log(pi) + (1 - on) * np.log1p(-pi)).sum(1)

    def means(self, params: Params) -> np.ndarray:
        """Return the mean of a point for each state, (K, D)."""
        raise NotImplementedError

    def errors(self, params: Params, Y: np.ndarray) -> np.ndarray:
        """Return |y - mean|^2 of all points and states, (N, K)."""
        return ((Y[:, None] - self.means(params)) ** 2).sum(-1)

    def log_joint(self, params: Params, Y: np.ndarray) -> np.ndarray:
        variance = params["sigma"] ** 2
        noise = -self.errors(params, Y) / (2 * variance) - self.D * np.log(TWO_PI * variance) / 2
        return noise + self.log_prior(params)

    def infer(self, params: Params, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the evidence (N,) and the weights of the states (N, K)."""
        logs = self.log_joint(params, Y)
        F = logsumexp(logs)
        return F, np.exp(logs - F[:, None])

    def marginals(self, params: Params, Y: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Return the posterior means of the causes, (N, atoms)."""
        return q @ self.values()

    def fields(self, params: Params, Y: np.ndarray, q: np.ndarray) -> Params:
        """Return the new fields, and all other parameters except sigma and pi."""
        raise NotImplementedError

    def maximise(self, params: Params, Y: np.ndarray, q: np.ndarray, found: Params) -> Params:
        """Return new parameters; parameters without an M-step in the judge are copied from ``found``."""
        new = {**params, **(found if self.learned else self.fields(params, Y, q))}
        sigma = np.sqrt((q * self.errors(new, Y)).sum() / (len(Y) * self.D))
        return {**new, "sigma": sigma, "pi": self.new_pi(params, q)}

    def new_pi(self, params: Params, q: np.ndarray) -> np.ndarray:
        active = (q @ abs(self.values())).mean(0)
        return active if params["pi"].ndim else active.mean()


class Linear(Judge):
    """y = W s + noise."""

    def means(self, params: Params) -> np.ndarray:
        return self.values() @ params["W"].T

    def moments(self, Y: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        S = self.values()
        return (q @ S).T @ Y, S.T @ (q.sum(0)[:, None] * S)

    def fields(self, params: Params, Y: np.ndarray, q: np.ndarray) -> Params:
        ys, ss = self.moments(Y, q)
        return {"W": solve(ss, ys).T}


class Ternary(Linear):
    """y = W s + noise with s in {-1, 0, 1}."""

    def every(self) -> Iterator[State]:
        return iter(product((0, 1, -1), repeat=self.H))

    def values(self) -> np.ndarray:
        return np.array(self.states).astype(LONG)

    def log_prior(self, params: Params) -> np.ndarray:
        return super().log_prior(params) - abs(self.values()).sum(1) * np.log(LONG(2))

    def marginals(self, params: Params, Y: np.ndarray, q: np.ndarray) -> np.ndarray:
        S = self.values()
        return np.hstack([q @ (S == 1), q @ (S == -1)])


class NonNegative(Linear):
    """y = W s + noise with non-negative fields."""

    def fields(self, params: Params, Y: np.ndarray, q: np.ndarray) -> Params:
        ys, ss = self.moments(Y, q)
        old = params["W"].T
        steps = old
        for _ in range(20):
            steps = steps * np.maximum(ys, 0) / (ss @ steps)
        if self.options.mstep == "multiplicative":
            return {"W": steps.T}
        new = np.maximum(solve(ss, ys), 0)
        S = self.values()

        def error(W: np.ndarray) -> np.ndarray:
            return (q[..., None] * (Y[:, None] - S @ W) ** 2).sum((0, 1))

        return {"W": np.where(error(new) > error(old), steps, new).T}


class Maximal(Judge):
    """The mean is the largest of the active causes' fields."""

    def means(self, params: Params) -> np.ndarray:
        none = np.zeros(self.D, LONG)
        return np.array([params["W"][:, list(s)].max(1) if s else none for s in self.states])

    def fields(self, params: Params, Y: np.ndarray, q: np.ndarray) -> Params:
        W, share = params["W"], np.zeros((len(self.states), self.D, self.H), LONG)
        for k, state in enumerate(self.states):
            if state:
                some = W[:, list(state)]
                owner = some == some.max(1, keepdims=True)
                share[k][:, list(state)] = owner / owner.sum(1, keepdims=True)
        weight, along = np.einsum("nk,kdh->dh", q, share), np.einsum("nk,nd,kdh->dh", q, Y, share)
        known = weight > 1e-12 * len(Y)
        new = np.where(known, along / np.where(known, weight, 1), W)
        rows = [in_order(*row) for row in zip(W, new, np.maximum(weight, 1e-20), strict=True)]
        return {"W": np.maximum(np.array(rows), 0)}


class Slab(Linear):
    """y = W s + noise with Gaussian values of active causes."""

    def given(self, params: Params, Y: np.ndarray, state: State) -> tuple[np.ndarray, ...]:
        """Return log p(y | state), the means of the values (N, k) and their covariance (k, k)."""
        some, variance = list(state), params["sigma"] ** 2
        W, mu, psi = params["W"][:, some], *(np.broadcast_to(params[x], self.H)[some] for x in ("mu", "psi"))
        rest, constant = Y - W @ mu, -self.D * np.log(TWO_PI * variance) / 2
        if not some:
            return constant - (rest**2).sum(1) / (2 * variance), np.zeros((len(Y), 0), LONG), np.zeros((0, 0), LONG)
        # with z = mu + sqrt(psi) u the exponent is a least-squares problem, whose normal equations would lose digits
        root = np.sqrt(psi)
        S = np.concatenate([W * root / params["sigma"], np.eye(len(some), dtype=LONG)])
        target = np.concatenate([rest / params["sigma"], np.zeros((len(Y), len(some)), LONG)], 1).T
        Q, R = triangular(S)
        inverse = forward(R.T, np.eye(len(some), dtype=LONG)).T
        u, gap = np.zeros((len(some), len(Y)), LONG), target
        for _ in range(4):
            u = u + inverse @ (Q.T @ gap)
            gap = target - S @ u
        log_volume = np.log(np.diag(R)).sum()
        factor = root[:, None] * inverse
        return constant - log_volume - (gap**2).sum(0) / 2, mu + (root[:, None] * u).T, factor @ factor.T

    def log_joint(self, params: Params, Y: np.ndarray) -> np.ndarray:
        return np.stack([self.given(params, Y, state)[0] for state in self.states], 1) + self.log_prior(params)

    def marginals(self, params: Params, Y: np.ndarray, q: np.ndarray) -> np.ndarray:
        found = np.zeros((len(Y), self.H), LONG)
        for k, state in enumerate(self.states):
            found[:, list(state)] += q[:, k, None] * self.given(params, Y, state)[1]
        return found

    def maximise(self, params: Params, Y: np.ndarray, q: np.ndarray, found: Params) -> Params:
        H, N = self.H, len(Y)
        first, ss, ys = np.zeros(H, LONG), np.zeros((H, H), LONG), np.zeros((H, self.D), LONG)
        active = (q @ self.values()).sum(0)
        parts = [
            (np.array(state, int), q[:, k], *self.given(params, Y, state)[1:]) for k, state in enumerate(self.states)
        ]
        for some, weight, mean, covariance in parts:
            first[some] += weight @ mean
            ss[np.ix_(some, some)] += (weight[:, None] * mean).T @ mean + weight.sum() * covariance
            ys[some] += (weight[:, None] * mean).T @ Y
        W = solve(ss, ys).T
        error = LONG(0)
        for some, weight, mean, covariance in parts:
            error += weight @ ((Y - mean @ W[:, some].T) ** 2).sum(1)
            error += weight.sum() * (W[:, some] @ covariance * W[:, some]).sum()
        each = params["mu"].ndim > 0
        mu = first / active if each else first.sum() / active.sum()
        psi, around = np.zeros(H, LONG), np.broadcast_to(mu, H)
        for some, weight, mean, covariance in parts:
            psi[some] += weight @ (mean - around[some]) ** 2 + weight.sum() * np.diag(covariance)
        psi = psi / active if each else psi.sum() / active.sum()
        sigma = np.sqrt(error / (N * self.D))
        return {"W": W, "sigma": sigma, "pi": self.new_pi(params, q), "mu": mu, "psi": psi}


class Clusters(Judge):
    """A mixture of Gaussians with covariances of any kind."""

    def every(self) -> Iterator[State]:
        return ((c,) for c in range(self.H))

    def covariances(self, var: np.ndarray) -> np.ndarray:
        """Return the covariances as matrices, (C, D, D)."""
        eye, kind = np.eye(self.D, dtype=LONG), self.options.covariance
        if kind == "spherical":
            return var[:, None, None] * eye
        return var.T[:, :, None] * eye if kind == "diagonal" else np.broadcast_to(var, (self.H, self.D, self.D))

    def log_joint(self, params: Params, Y: np.ndarray) -> np.ndarray:
        logs = []
        for c, A in enumerate(self.covariances(params["var"])):
            unit = np.sqrt(np.diag(A))
            L = cholesky(A / unit[:, None] / unit)
            white = forward(L, ((Y - params["W"][:, c]) / unit).T)
            volume = np.log(np.diag(L)).sum() + np.log(unit).sum() + self.D * np.log(TWO_PI) / 2
            logs.append(np.log(params["pi"][c]) - volume - (white**2).sum(0) / 2)
        return np.stack(logs, 1)

    def maximise(self, params: Params, Y: np.ndarray, q: np.ndarray, found: Params) -> Params:
        active, reg, eye = q.sum(0), LONG(self.options.reg), np.eye(self.D, dtype=LONG)
        W = (Y.T @ q) / active
        gaps = Y[:, None] - W.T
        products = np.einsum("nc,ncd,nce->cde", q, gaps, gaps)
        each = products / active[:, None, None]
        kinds = {
            "spherical": np.trace(each, axis1=1, axis2=2) / self.D + reg,
            "diagonal": np.diagonal(each, axis1=1, axis2=2).T + reg,
            "full": each + reg * eye,
            "tied": products.sum(0)[None] / len(Y) + reg * eye,
        }
        return {"W": W, "var": kinds[self.options.covariance], "pi": active / len(Y)}


class Occlusion(Judge):
    """The nearest cause occludes all others. A state lists its causes from the farthest to the nearest."""

    learned = ("sigma", "pi")

    def every(self) -> Iterator[State]:
        for size in range(self.H + 1):
            yield from permutations(range(self.H), size)

    def log_prior(self, params: Params) -> np.ndarray:
        orders = np.array([LONG(np.prod(np.arange(1, len(state) + 1))) for state in self.states])
        return super().log_prior(params) - np.log(orders)

    def means(self, params: Params) -> np.ndarray:
        W, T = params["W"], params["T"]
        found = np.zeros((len(self.states), len(W), len(T)), LONG)
        for k, state in enumerate(self.states):
            last = max(1, len(state) - 1)
            near = [1 + LONG(place) / last if len(state) > 1 else LONG(1.5) for place in range(len(state))]
            for p in range(len(W)) if state else ():
                heights = [near[place] * abs(W[p, h]) for place, h in enumerate(state)]
                h = state[max(range(len(state)), key=lambda place: (heights[place], place))]
                found[k, p] = W[p, h] * T[:, h]
        return found.reshape(len(self.states), -1)


JUDGES: dict[str, type[Judge]] = {
    "linca": Linear,
    "nmf": NonNegative,
    "mca": Maximal,
    "gsc": Slab,
    "gmm": Clusters,
    "oca": Occlusion,
    "ternary": Ternary,
}
WITHOUT = {
    "mca3": "counts",
    "noisyor": "binary",
    "own_model": "counts",
    "pmm": "counts",
    "rmca": "counts",
    "ssmca": "its posterior is sampled, and its evidence is unknown",
    "inveca": "see tests/models/test_inveca.py; it sums over opaque causes",
}
"""Models without noise of a given size, or without a judge, and the reason."""
