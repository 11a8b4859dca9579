"""Spike-and-slab sparse coding against independent Gaussian algebra, integrals and numerical maximisation."""

from itertools import combinations

import numpy as np
import pytest
from problems import iterate, job_table, problem_of, random_data, random_params
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from parallel_et import fit
from parallel_et.core.types import Settings
from parallel_et.inference.posterior import Inference
from parallel_et.parallel.communicator import Ranks

N, D, H = 23, 6, 4
ALL = ["W", "sigma", "pi", "mu", "psi"]
EACH = ["pi", "mu", "psi"]
SCHEMES = [
    {"scheme": "exact"},
    {"candidates": 3, "gamma": 2},
    {"candidates": 3, "gamma": 2, "singletons": True},
    {"scheme": "tv", "states": 2**H, "gamma": H},
]


def some_params(each, seed, dims=D, causes=H):
    rng = np.random.default_rng(seed)
    numbers = {"pi": rng.uniform(0.35, 0.5, causes), "mu": rng.normal(0.5, 1, causes), "psi": rng.gamma(2, 0.5, causes)}
    W = np.asfortranarray(rng.normal(0, 3, (dims, causes)))
    prior = {name: value if name in each else np.array(value[0]) for name, value in numbers.items()}
    return {"W": W, "sigma": np.array(1.3), **prior}


def problem_for(inference, params, each, seed, learn=tuple(ALL)):
    D, H = params["W"].shape
    table = job_table({"name": "gsc", "causes": H, "each": list(each), "learn": list(learn)}, inference)
    problem, _ = problem_of(table, np.zeros((1, D)))
    Y, _ = problem.model.draw(params, np.random.default_rng(seed), N)
    return problem_of(table, Y)[0], Y


class Judge:
    """The model by its definition. Given a support, y is Gaussian, and so are the values given y."""

    def __init__(self, params):
        self.W, self.sigma = params["W"], float(params["sigma"])
        self.H = self.W.shape[1]
        self.pi, self.mu, self.psi = (np.broadcast_to(params[name], self.H) for name in EACH)

    def log_joint(self, y, support):
        s = list(support)
        on = np.isin(np.arange(self.H), s)
        prior = np.log(np.where(on, self.pi, 1 - self.pi)).sum()
        covariance = self.sigma**2 * np.eye(len(y)) + (self.W[:, s] * self.psi[s]) @ self.W[:, s].T
        return prior + multivariate_normal.logpdf(y, self.W[:, s] @ self.mu[s], covariance)

    def moments(self, y, support):
        """Return b, <s> and <s s^T> given a support, by conditioning the joint Gaussian of values and y on y."""
        s = list(support)
        cross = self.psi[s, None] * self.W[:, s].T
        gain = cross @ np.linalg.inv(self.sigma**2 * np.eye(len(y)) + self.W[:, s] @ cross)
        b, mean, square = np.zeros(self.H), np.zeros(self.H), np.zeros((self.H, self.H))
        b[s], mean[s] = 1, self.mu[s] + gain @ (y - self.W[:, s] @ self.mu[s])
        square[np.ix_(s, s)] = np.diag(self.psi[s]) - gain @ cross.T
        return b, mean, square + np.outer(mean, mean)

    def supports(self, y, candidates=None, gamma=None, singletons=False, **_):
        chosen = sorted(sorted(range(self.H), key=lambda h: -self.log_joint(y, [h]))[: candidates or self.H])
        few = [c for g in range((gamma or self.H) + 1) for c in combinations(chosen, g)]
        return few + [(h,) for h in range(self.H) if singletons and h not in chosen]

    def posterior(self, y, inference, temperature=1.0):
        """Return the supports, their weights, F_n, and the expectations of b, s and s s^T."""
        supports = self.supports(y, **inference)
        logs = np.array([self.log_joint(y, s) for s in supports]) / temperature
        q = np.exp(logs - logsumexp(logs))
        found = [self.moments(y, s) for s in supports]
        return supports, q, logsumexp(logs), [sum(w * m[k] for w, m in zip(q, found, strict=True)) for k in range(3)]


@pytest.mark.parametrize("inference", SCHEMES, ids=str)
@pytest.mark.parametrize("each", [[], EACH], ids=["shared", "each"])
def test_what_is_inferred_equals_its_definition(inference, each):
    params = some_params(each, seed=3)
    problem, Y = problem_for(inference, params, each, seed=4)
    judge, what = Judge(params), ("evidence", "means", "map", "reconstruction")
    found = Inference(problem.model, problem.scheme, params, what).block(Y)
    for n, y in enumerate(Y):
        supports, q, evidence, (b, s, ss) = judge.posterior(y, inference)
        assert found["evidence"][n] == pytest.approx(evidence, abs=1e-10)
        np.testing.assert_allclose(found["active"][n], b, atol=1e-10)
        np.testing.assert_allclose(found["means"][n], s, atol=1e-10)
        np.testing.assert_allclose(found["variances"][n], np.diag(ss) - s**2, atol=1e-10)
        np.testing.assert_allclose(found["reconstruction"][n], params["W"] @ s, atol=1e-9)
        if found["map_gamma"][n] == problem.scheme.max_active:
            assert tuple(np.flatnonzero(found["map"][n])) == tuple(sorted(supports[int(np.argmax(q))]))
    assert (found["map"].sum(1) > 1).any()


def test_a_point_is_explained_by_the_values_that_its_state_has():
    params = some_params(EACH, seed=3)
    problem, Y = problem_for({"scheme": "exact"}, params, EACH, seed=4)
    states = np.array([[0, 2], [1, -1], [-1, -1]], np.int32)
    found = Inference(problem.model, problem.scheme, params, ("map",)).reconstruct_states(Y[:3], states)
    expected = [params["W"] @ Judge(params).moments(y, s[s >= 0])[1] for y, s in zip(Y, states, strict=False)]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("weights", ["draws", "joint"])
def test_what_is_sampled_comes_close_to_its_definition(weights):
    params = some_params(EACH, seed=3)
    inference = {"scheme": "sample", "samples": 2000 * H, "weights": weights}
    problem, Y = problem_for(inference, params, EACH, seed=4)
    found = Inference(problem.model, problem.scheme, params, ("evidence", "means")).block(Y)
    every = [Judge(params).posterior(y, {}) for y in Y]
    assert (found["evidence"] <= np.array([F for _, _, F, _ in every]) + 1e-10).all()
    close = 0.1 if weights == "draws" else 0.02
    for name, k in (("active", 0), ("means", 1)):
        np.testing.assert_allclose(found[name], [moments[k] for *_, moments in every], atol=close)


@pytest.mark.parametrize("inference", SCHEMES, ids=str)
@pytest.mark.parametrize("each, temperature, cut", [(EACH, 1.0, 0.0), ([], 3.0, 0.7), (["psi"], 1.0, 0.7)], ids=str)
def test_an_iteration_equals_its_definition(inference, each, temperature, cut):
    params = some_params(each, seed=5)
    problem, Y = problem_for(inference, params, each, seed=6)
    points, most = (N if cut == 0 else 15), problem.scheme.max_active
    new, info = iterate(problem, Ranks(), params, Settings(0, temperature, cut, points, {}, {}, most))
    judge = Judge(params)
    every = [judge.posterior(y, inference, temperature) for y in Y]
    F = np.array([evidence for _, _, evidence, _ in every])
    M = sorted(range(N), key=lambda n: (-F[n], n))[:points]
    b, s, ss = (sum(every[n][3][k] for n in M) for k in range(3))
    ys = sum(np.outer(Y[n], every[n][3][1]) for n in M)
    W = ys @ np.linalg.inv(ss)
    trace = sum(Y[n] @ Y[n] for n in M) - 2 * np.sum(W * ys) + np.trace(W @ ss @ W.T)
    few = [c for g in range(most + 1) for c in combinations(range(H), g)]
    p = np.array([np.prod(np.where(np.isin(range(H), c), judge.pi, 1 - judge.pi)) for c in few])
    within = np.array([[h in c for h in range(H)] for c in few])
    active = b * p.sum() / (p @ within / judge.pi) if cut else b  # p(|b| <= gamma) / p(|b| <= gamma | b_h = 1)
    expected = {
        "W": W,
        "sigma": np.sqrt(trace / points / D),
        "pi": active / points if "pi" in each else active.sum() / points / H,
        "mu": s / b if "mu" in each else s.sum() / b.sum(),
    }
    spread = np.diag(ss) - 2 * expected["mu"] * s + expected["mu"] ** 2 * b
    expected["psi"] = spread / b if "psi" in each else spread.sum() / b.sum()
    assert info.free_energy == pytest.approx(F.mean(), rel=1e-10)
    for name, value in expected.items():
        np.testing.assert_allclose(new[name], value, rtol=1e-8, atol=1e-9, err_msg=name)


def test_the_evidence_is_the_integral_over_the_values():
    params = some_params(EACH, seed=7, dims=3, causes=2)
    problem, Y = problem_for({"scheme": "exact"}, params, EACH, seed=8)
    found = Inference(problem.model, problem.scheme, params, ("evidence", "means")).block(Y)
    W, sigma, (pi, mu, psi) = params["W"], params["sigma"], (params[name] for name in EACH)
    grid, step = np.linspace(
        -10, 10, 301, retstep=True
    )  # sums over the grid are integrals, as the integrand vanishes at its ends
    z = np.stack(np.meshgrid(*(mu[:, None] + np.sqrt(psi)[:, None] * grid), indexing="ij"), -1)
    prior = np.prod(norm.pdf(z, mu, np.sqrt(psi)), -1) * np.prod(step * np.sqrt(psi))
    for n, y in enumerate(Y[:4]):
        total, first = 0.0, np.zeros(2)
        for b in ([0, 0], [0, 1], [1, 0], [1, 1]):  # the value of an inactive cause integrates to 1
            density = np.prod(np.where(b, pi, 1 - pi)) * prior * np.prod(norm.pdf(y, (b * z) @ W.T, sigma), -1)
            total, first = total + density.sum(), first + (density[..., None] * b * z).sum((0, 1))
        assert found["evidence"][n] == pytest.approx(np.log(total), abs=1e-8)
        np.testing.assert_allclose(found["means"][n], first / total, atol=1e-8)


@pytest.mark.parametrize("each", [[], EACH], ids=["shared", "each"])
def test_the_m_step_is_where_the_free_energy_is_largest(each):
    params = some_params(each, seed=9, dims=3, causes=2)
    problem, Y = problem_for({"scheme": "exact"}, params, each, seed=10)
    new, _ = iterate(problem, Ranks(), params, Settings(0, 1.0, 0.0, N, {}, {}, 2))
    judge = Judge(params)
    b, s, ss = zip(*[judge.posterior(y, {})[3] for y in Y], strict=True)
    sizes = {name: params[name].size for name in ALL}

    def unpacked(x):
        parts = dict(zip(ALL, np.split(x, np.cumsum(list(sizes.values()))[:-1]), strict=True))
        return (
            parts["W"].reshape(3, 2),
            np.exp(parts["sigma"]),
            1 / (1 + np.exp(-parts["pi"])),
            parts["mu"],
            parts["psi"],
        )

    def expected_log_joint(x):
        W, sigma, pi, mu, log_psi = unpacked(x)
        psi, value = np.exp(log_psi), 0.0
        for y, on, mean, square in zip(Y, b, s, ss, strict=True):
            error = y @ y - 2 * y @ W @ mean + np.trace(W @ square @ W.T)
            value -= 0.5 * error / sigma[0] ** 2 + 3 * np.log(sigma[0])
            value += (on * np.log(pi) + (1 - on) * np.log(1 - pi)).sum()
            value -= (0.5 * (np.diag(square) - 2 * mu * mean + mu**2 * on) / psi + 0.5 * on * np.log(psi)).sum()
        return -value / N

    begin = np.concatenate([params["W"].ravel(), np.zeros(sum(sizes.values()) - 6)])
    best = unpacked(minimize(expected_log_joint, begin, options={"gtol": 1e-8}).x)
    for name, value in zip(ALL, (*best[:4], np.exp(best[4])), strict=True):
        np.testing.assert_allclose(np.broadcast_to(new[name], value.shape), value, rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("psi", [0.0, 1e-14])
@pytest.mark.parametrize(
    "inference", [{"candidates": 4, "gamma": 3, "singletons": True}, {"scheme": "tv", "states": 9, "gamma": 3}]
)
def test_values_without_spread_are_those_of_binary_causes(psi, inference):
    start = random_params("linca", 9, 7, seed=1)
    Y, anneal = random_data("linca", 200, start, seed=2), {"iterations": 8, "temperature": [[0.0, 3.0], [0.6, 1.0]]}
    search = {"propose": {"flip": 5, "blind": 3}, "start": "blind"} if "scheme" in inference else {}
    learned = []
    for name, keys in (("linca", {}), ("gsc", {"mu": 1.0, "psi": psi})):
        model = {"name": name, "causes": 7, "learn": ["W", "sigma", "pi"], "init": {"W": {"mean": 1.0, "std": 2.0}}}
        random = {} if "scheme" in inference else {"candidates": 7}  # random candidates differ
        learned.append(fit(job_table({**model, **keys}, {**inference, **search, **random}, anneal), Y))
    linca, gsc = learned
    for name in ("W", "sigma", "pi"):
        np.testing.assert_allclose(gsc.params[name], linca.params[name], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(gsc.history["free_energy"], linca.history["free_energy"], rtol=1e-9)


def test_the_scale_of_values_is_that_of_fields():
    params = some_params(EACH, seed=11)
    problem, _ = problem_for({"candidates": 3, "gamma": 2}, params, EACH, seed=12)
    settings = Settings(0, 1.0, 0.0, N, {}, {}, 2)
    plain, info = iterate(problem, Ranks(), params, settings)
    factor = np.array([1e-4, 1.0, 1e3, -3.0])
    other = {**params, "W": params["W"] / factor, "mu": params["mu"] * factor, "psi": params["psi"] * factor**2}
    scaled, same = iterate(problem, Ranks(), other, settings)
    assert same.free_energy == pytest.approx(info.free_energy, rel=1e-12)
    np.testing.assert_allclose(scaled["W"] * factor, plain["W"], rtol=1e-9)
    np.testing.assert_allclose(scaled["psi"] / factor**2, plain["psi"], rtol=1e-9)
    np.testing.assert_allclose(scaled["pi"], plain["pi"], rtol=1e-9)


def test_a_cause_that_is_never_active_keeps_its_values():
    params = some_params(EACH, seed=13)
    params["W"][:, 2], params["pi"][2] = 1e-3, 1e-9
    problem, _ = problem_for({"scheme": "tv", "states": 1, "gamma": 1, "rounds": 3}, params, EACH, seed=14)
    new, _ = iterate(problem, Ranks(), params, Settings(0, 1.0, 0.0, N, {}, {}, 1))
    for name in ("W", "mu", "psi"):
        np.testing.assert_array_equal(new[name][..., 2], params[name][..., 2])
    assert (new["mu"] != params["mu"]).any()


def test_drawn_points_have_values_from_the_slab():
    params = some_params(EACH, seed=15)
    problem, _ = problem_for({"scheme": "exact"}, params, EACH, seed=16)
    Y, _ = problem.model.draw(params, np.random.default_rng(17), 40_000)
    pi, mu, psi = (params[name] for name in EACH)
    W, spread = params["W"], pi * (psi + mu**2) - (pi * mu) ** 2
    covariance = (W * spread) @ W.T + params["sigma"] ** 2 * np.eye(D)
    np.testing.assert_allclose(Y.mean(0), W @ (pi * mu), atol=5 * np.sqrt(np.diag(covariance).max() / 40_000))
    np.testing.assert_allclose(np.cov(Y.T), covariance, atol=0.05 * np.diag(covariance).max())
