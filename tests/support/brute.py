"""Brute force: EM iterations over explicit lists of states, without code of the package.

The functions use only the parameters of a model. States are 0/1 vectors over all H causes, and densities are SciPy's.
"""

from itertools import combinations, product

import numpy as np
from scipy.special import gammaln, logsumexp
from scipy.stats import norm, poisson


def all_states(H: int) -> np.ndarray:
    return np.array(list(product([0, 1], repeat=H)))


def as_binary(members: np.ndarray, H: int) -> np.ndarray:
    """Convert rows of members, padded with -1, to rows of zeros and ones."""
    return np.array([[int(h in row) for h in range(H)] for row in members])


def mean(name: str, W: np.ndarray, s: np.ndarray) -> np.ndarray:
    if name.startswith("mca"):
        return np.array([max([W[d, h] for h in range(W.shape[1]) if s[h]], default=0.0) for d in range(len(W))])
    return W @ s


def log_noise(name: str, y, mean, sigma) -> float:
    if name.endswith("poisson"):
        mean = np.maximum(mean, 1e-300)
        return (y * np.log(mean) - mean - gammaln(y + 1)).sum()
    return norm.logpdf(y, mean, sigma).sum()


def log_joint(name: str, W, sigma, pi, y, s) -> float:
    """Return log p(s, y); ``pi`` is one number or one for each cause."""
    return log_noise(name, y, mean(name, W, s), sigma) + np.log(np.where(s, pi, 1 - pi)).sum()


def candidates(name: str, W, sigma, pi, y, count: int) -> list[int]:
    """Return the causes with the largest selection function; ties are broken by the log joint of the single cause."""
    H = W.shape[1]
    alone = [log_joint(name, W, sigma, pi, y, one) for one in np.eye(H, dtype=int)]
    if name == "linca":
        score = [W[:, h] @ y / np.linalg.norm(W[:, h]) for h in range(H)]
    else:
        score = [log_noise(name, y, np.maximum(y, W[:, h]), 1.0) for h in range(H)]
    return sorted(sorted(range(H), key=lambda h: (-score[h], -alone[h]))[:count])


def considered(name: str, W, sigma, pi, y, count: int, gamma: int, singletons: bool) -> list[np.ndarray]:
    chosen = candidates(name, W, sigma, pi, y, count)
    outside = [h for h in range(W.shape[1]) if h not in chosen]
    return [
        s
        for s in all_states(W.shape[1])
        if (s.sum() <= gamma and not s[outside].any()) or (singletons and s.sum() == 1)
    ]


def posterior(name: str, W, sigma, pi, y, states, temperature: float) -> tuple[np.ndarray, float]:
    """Return the weights of the states and F_n."""
    logs = np.array([log_joint(name, W, sigma, pi, y, s) for s in states]) / temperature
    return np.exp(logs - logsumexp(logs)), logsumexp(logs)


def responsibilities(W, s, rho) -> np.ndarray:
    """Return A^rho of ET eq. 36, (D, H). Its limit for infinite rho is equal for all largest fields of a pixel."""
    A = np.zeros(W.shape)
    active = np.flatnonzero(s)
    for d in range(len(W)):
        w = W[d, active]
        if np.isinf(rho):
            A[d, active] = (w == w.max()) / (w == w.max()).sum()
        elif len(active) == 1:
            A[d, active] = 1.0
        elif w.max() == 0:
            A[d, active] = len(active) ** ((1 - rho) / rho)
        else:
            r = w / w.max()
            A[d, active] = r ** (rho - 1) * (r**rho).sum() ** ((1 - rho) / rho)
    return A


def in_order(old, new, weight):
    """Return the nearest values in weighted least squares in the order of the old values, (H,): isotonic regression."""
    order, best = np.argsort(old), np.empty(len(old))
    m, w = new[order], weight[order]
    mean = [
        [np.average(m[a : b + 1], weights=w[a : b + 1]) if a <= b else None for b in range(len(m))]
        for a in range(len(m))
    ]
    for i in range(len(m)):
        best[order[i]] = max(min(mean[a][b] for b in range(i, len(m))) for a in range(i + 1))
    return best


def iteration(name, W, sigma, pi, Y, *, count, gamma, singletons, temperature, rho, points, cut, learn, mstep="clamp"):
    """Return new W, sigma, pi, the mean evidence and all evidences after one EM iteration without noise."""
    states = [considered(name, W, sigma, pi, y, count, gamma, singletons) for y in Y]
    found = [posterior(name, W, sigma, pi, y, s, temperature) for y, s in zip(Y, states, strict=True)]
    F = np.array([f for _, f in found])
    M = sorted(range(len(Y)), key=lambda n: (-F[n], n))[:points]
    H = W.shape[1]
    triples = [(Y[n], s, q) for n in M for s, q in zip(states[n], found[n][0], strict=True)]
    new_W, new_sigma, new_pi = W, sigma, pi
    if "W" in learn and name.startswith("mca"):
        shares = [(y, q * responsibilities(W, s, rho)) for y, s, q in triples if s.any()]
        weight = sum(A for _, A in shares)
        used = weight > 1e-12 * len(M)  # a pixel without weight keeps its value
        new_W = np.where(used, sum(A * y[:, None] for y, A in shares) / np.where(used, weight, 1), W)
        if temperature == 1 and not cut:
            new_W = np.array([in_order(*row) for row in zip(W, new_W, np.maximum(weight, 1e-20), strict=True)])
        new_W = np.maximum(new_W, 0)
    elif "W" in learn and name == "nmf poisson":
        shares = sum(q * np.outer(y / np.maximum(W @ s, 1e-300), s) * W for y, s, q in triples)
        new_W = shares / sum(q * s for _, s, q in triples)
    elif "W" in learn:
        ys = sum(q * np.outer(y, s) for y, s, q in triples)
        ss = sum(q * np.outer(s, s) for _, s, q in triples)
        if mstep == "multiplicative":
            for _ in range(20):
                new_W = new_W * np.maximum(ys, 0) / (new_W @ ss)
        else:
            new_W = np.linalg.solve(ss.T, ys.T).T
        new_W = new_W if name == "linca" else np.maximum(new_W, 0)
        if name == "nmf" and mstep == "clamp" and temperature == 1 and not cut:
            errors = [((w @ ss) * w - 2 * w * ys).sum(1) for w in (W, new_W)]
            other = W
            for _ in range(20):
                other = other * np.maximum(ys, 0) / (other @ ss)
            new_W = np.where((errors[1] > errors[0])[:, None], other, new_W)
    if "sigma" in learn:
        error = sum(q * ((y - mean(name, new_W, s)) ** 2).sum() for y, s, q in triples)
        new_sigma = np.sqrt(error / len(M) / Y.shape[1])
    if "pi" in learn:
        active = sum(q * s.sum() for _, s, q in triples) / len(M)
        new_pi = active / H
        if cut:
            few = [s for s in all_states(H) if s.sum() <= gamma]
            p = [pi ** s.sum() * (1 - pi) ** (H - s.sum()) for s in few]
            A, B = sum(p), sum(s.sum() * x for s, x in zip(few, p, strict=True))
            new_pi = pi * A / B * active
    return new_W, new_sigma, new_pi, F.mean(), F


# models by their literal definition: states are tuples of active atoms


class Oracle:
    """A model by its definition: values of a state, joint, and M-step over points, states and weights."""

    variants = 1
    """Number of atoms of a cause."""

    def __init__(self, H: int, **options: float) -> None:
        self.H, self.options = H, options

    def values(self, state: tuple[int, ...]) -> np.ndarray:
        """Return s (H,)."""
        return np.array([int(h in state) for h in range(self.H)])

    def states(self, atoms: list[int], max_active: int) -> list[tuple[int, ...]]:
        every = [c for g in range(max_active + 1) for c in combinations(atoms, g)]
        return [c for c in every if len({a % self.H for a in c}) == len(c)]

    def considered(self, params, y, count: int, max_active: int, singletons: bool) -> list[tuple[int, ...]]:
        every = list(range(self.variants * self.H))
        alone = [self.log_joint(params, y, (a,)) for a in every]
        chosen = sorted(sorted(every, key=lambda a: (-alone[a], a))[:count])
        return self.states(chosen, max_active) + [(a,) for a in every if singletons and a not in chosen]

    def log_prior(self, params, state) -> float:
        pi, active = np.broadcast_to(params["pi"], self.H), np.isin(np.arange(self.H), np.array(state, int) % self.H)
        return np.log(np.where(active, pi / self.variants, 1 - pi)).sum()

    def iteration(self, params, Y, *, count, gamma, singletons, temperature, points, cut):
        """Return the new parameters and the mean evidence."""
        states = [self.considered(params, y, count, gamma, singletons) for y in Y]
        logs = [
            np.array([self.log_joint(params, y, s) for s in some]) / temperature
            for y, some in zip(Y, states, strict=True)
        ]
        F = np.array([logsumexp(some) for some in logs])
        M = sorted(range(len(Y)), key=lambda n: (-F[n], n))[:points]
        q = [np.exp(some - f) for some, f in zip(logs, F, strict=True)]
        triples = [(Y[n], s, p) for n in M for s, p in zip(states[n], q[n], strict=True)]
        active = sum(p * len(s) for _, s, p in triples) / len(M)
        pi = active / self.H
        if cut:
            few = [s for s in all_states(self.H) if s.sum() <= gamma]
            prior = [params["pi"] ** s.sum() * (1 - params["pi"]) ** (self.H - s.sum()) for s in few]
            pi = params["pi"] * sum(prior) / sum(s.sum() * x for s, x in zip(few, prior, strict=True)) * active
        return {**params, **self.maximise(params, triples), "pi": pi}, F.mean()


class NoisyOr(Oracle):
    def mean(self, params, state):
        return 1 - np.prod([1 - params["W"][:, h] for h in state], axis=0) if state else np.zeros(len(params["W"]))

    def log_joint(self, params, y, state):
        with np.errstate(divide="ignore"):
            on = self.mean(params, state)
            return np.log(np.where(y == 1, on, 1 - on)).sum() + self.log_prior(params, state)

    def maximise(self, params, triples):
        W, switched, active = params["W"], np.zeros(params["W"].shape), np.zeros(self.H)
        for y, state, q in triples:
            for h in state if q > 0 else ():
                switched[:, h] += q * y * W[:, h] / self.mean(params, state)
                active[h] += q
        return {"W": switched / active}


class Counts(Oracle):
    def mean(self, params, state):
        return self.options["dark"] + sum((params["W"][:, h] for h in state), np.zeros(len(params["W"])))

    def log_joint(self, params, y, state):
        return poisson.logpmf(y, self.mean(params, state)).sum() + self.log_prior(params, state)

    def maximise(self, params, triples):
        W, shares, active = params["W"], np.zeros(params["W"].shape), np.zeros(self.H)
        for y, state, q in triples:
            for h in state:
                shares[:, h] += q * y * W[:, h] / self.mean(params, state)
                active[h] += q
        return {"W": shares / active}


class Ternary(Oracle):
    variants = 2

    def values(self, state):
        return np.array([int(h in state) - int(h + self.H in state) for h in range(self.H)])

    def log_joint(self, params, y, state):
        mean = params["W"] @ self.values(state)
        return norm.logpdf(y, mean, params["sigma"]).sum() + self.log_prior(params, state)

    def maximise(self, params, triples):
        s = [(y, self.values(state), q) for y, state, q in triples]
        W = np.linalg.solve(sum(q * np.outer(v, v) for _, v, q in s), sum(q * np.outer(v, y) for y, v, q in s)).T
        points = sum(q for *_, q in s)
        error = sum(q * ((y - W @ v) ** 2).sum() for y, v, q in s)
        return {"W": W, "sigma": np.sqrt(error / points / len(W))}
