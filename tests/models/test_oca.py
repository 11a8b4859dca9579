"""Occlusive components analysis against its definition: explicit ordered states, pixel by pixel."""

from itertools import permutations
from math import factorial, log

import numpy as np
import pytest
from problems import iterate, job_table, problem_of
from scipy.special import logsumexp
from scipy.stats import binom, norm

from parallel_et.core.types import Block, Settings
from parallel_et.em.e_step import inference_context
from parallel_et.em.loop import em_step
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.oca import rescale
from parallel_et.parallel.communicator import Ranks

N, P, H = 23, 5, 4
EXACT = {"scheme": "exact"}
SCHEMES = [
    EXACT,
    {"candidates": 3, "gamma": 2},
    {"candidates": 3, "gamma": 3, "singletons": True},
    {"candidates": 4, "gamma": 3},
]


class Definition:
    """OCA eq. 1 to 4 and 18 to 23 for one set of parameters. A state is a tuple with the nearest cause last."""

    def __init__(self, params):
        self.W, self.T = params["W"], params["T"]
        self.sigma, self.pi = float(params["sigma"]), float(params["pi"])

    def near(self, s):
        return {h: 1.5 if len(s) == 1 else 1 + place / (len(s) - 1) for place, h in enumerate(s)}

    def shown(self, s, d):
        near = self.near(s)
        return max(reversed(s), key=lambda h: near[h] * abs(self.W[d, h])) if s else None

    def mean(self, s):
        rows = [np.zeros(len(self.T)) if h is None else self.W[d, h] * self.T[:, h] for d, h in self.all_shown(s)]
        return np.array(rows)

    def all_shown(self, s):
        return [(d, self.shown(s, d)) for d in range(len(self.W))]

    def log_sets(self, y, s):
        """Return the log joints of sets, without the prior of orders."""
        return norm.logpdf(y, self.mean(s), self.sigma).sum() + (
            len(s) * log(self.pi) + (self.W.shape[1] - len(s)) * log(1 - self.pi)
        )

    def considered(self, y, count, gamma, singletons):
        score = [-((y - self.mean((h,))) ** 2).sum() for h in range(self.W.shape[1])]
        chosen = sorted(sorted(range(len(score)), key=lambda h: -score[h])[:count])
        states = [s for g in range(gamma + 1) for s in permutations(chosen, g)]
        return states + [(h,) for h in range(len(score)) if singletons and h not in chosen]

    def posterior(self, y, states, temperature):
        logs = np.array([self.log_sets(y, s) / temperature - log(factorial(len(s))) for s in states])
        return np.exp(logs - logsumexp(logs)), logsumexp(logs)

    def share(self, s, rho):
        """Return A^rho of eq. 9, (P, H). For infinite rho it is 1 for the shown cause."""
        A, near = np.zeros(self.W.shape), self.near(s)
        for d, h in self.all_shown(s):
            if h is not None and np.isinf(rho):
                A[d, h] = 1.0
            elif h is not None:
                powers = {i: (near[i] * abs(self.W[d, i])) ** rho for i in s}
                for i in s:
                    A[d, i] = powers[i] / sum(powers.values())
        return A


def posteriors(oracle, Y, keys, temperature):
    states = [oracle.considered(y, *keys) for y in Y]
    return states, *zip(*(oracle.posterior(y, s, temperature) for y, s in zip(Y, states, strict=True)), strict=True)


def expected_shares(oracle, Y, states, q, used, rho):
    """Return the sums over the used points of <A y> (H, C, P) and <A> (H, P)."""
    numerator, denominator = np.zeros((H, Y.shape[2], P)), np.zeros((H, P))
    for n in used:
        for s, weight in zip(states[n], q[n], strict=True):
            A = weight * oracle.share(s, rho)
            denominator += A.T
            numerator += np.einsum("dh,dc->hcd", A, Y[n])
    return numerator, denominator


def masks_of(params, numerator, denominator):
    along, square = np.einsum("hcd,ch->dh", numerator, params["T"]), (params["T"] ** 2).sum(0)
    return np.where(denominator.T > 1e-9, along / (np.maximum(denominator.T, 1e-9) * square), params["W"])


def features_of(W, T, numerator, denominator):
    weight = (denominator.T * W**2).sum(0)
    return np.where(weight > 1e-9, np.einsum("hcd,dh->ch", numerator, W) / np.maximum(weight, 1e-9), T)


def expected_error(oracle, Y, states, q, used, pixels=None):
    """Return the sum of <|y - mean|^2> over the used points, for all pixels or for one."""
    pixels = slice(None) if pixels is None else pixels
    pairs = ((n, s, weight) for n in used for s, weight in zip(states[n], q[n], strict=True))
    return sum(weight * ((Y[n][pixels] - oracle.mean(s)[pixels]) ** 2).sum() for n, s, weight in pairs)


def case(channels, inference, seed, causes=H):
    rng = np.random.default_rng(seed)
    params = {
        "W": np.asfortranarray(rng.normal(0.5, 0.5, (P, causes))),
        "T": np.asfortranarray(rng.normal(0.5, 0.6, (channels, causes))),
        "sigma": np.array(0.4),
        "pi": np.array(0.3),
    }
    model = {"name": "oca", "causes": causes, "channels": channels, "learn": list(params)}
    table = job_table(model, inference)
    problem, _ = problem_of(table, rng.random((N, P * channels)))
    Y, _ = problem.model.draw(params, rng, N)
    return problem_of(table, Y)[0], params, Y.reshape(N, P, channels)


def keys_of(inference):
    return inference.get("candidates", H), inference.get("gamma", H), inference.get("singletons", False)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("inference", SCHEMES, ids=str)
@pytest.mark.parametrize("temperature, cut, rho", [(1.0, 0.7, 21.0), (3.0, 0.0, 1.5), (3.0, 0.7, 1.5), (3.0, 0.0, 1e3)])
def test_an_iteration_equals_its_definition(channels, inference, temperature, cut, rho):
    problem, params, Y = case(channels, inference, seed=3 + channels)
    oracle, keys, gamma = Definition(params), keys_of(inference), problem.scheme.max_active
    states, q, evidence = posteriors(oracle, Y, keys, temperature)
    points = N if cut == 0 else 15
    used = sorted(np.argsort(evidence)[::-1][:points])
    alpha = 0.3
    settings = Settings(0, temperature, cut, points, {}, {"rho": rho, "alpha": alpha}, gamma)
    new, info = iterate(problem, Ranks(), params, settings)

    shares = expected_shares(oracle, Y, states, q, used, rho if rho < 50 else np.inf)
    W = masks_of(params, *shares)
    T = features_of(W, params["T"], *shares)
    scale = np.array([W[abs(W[:, h]) > alpha, h].mean() if (abs(W[:, h]) > alpha).any() else 1.0 for h in range(H)])
    sigma = np.sqrt(expected_error(oracle, Y, states, q, used) / (points * Y[0].size))
    pi = np.mean([q[n] @ list(map(len, states[n])) for n in used]) / H
    if cut:
        size = np.arange(gamma + 1)
        few = binom.pmf(size, H, 0.3)
        pi *= 0.3 * H * few.sum() / (size @ few)
    assert info.free_energy == pytest.approx(np.mean(evidence), rel=1e-10)
    for name, value in {"W": W / scale, "T": T * scale, "sigma": sigma, "pi": pi}.items():
        np.testing.assert_allclose(new[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("inference", SCHEMES, ids=str)
def test_where_nothing_disturbs_masks_change_only_in_pixels_that_become_better(channels, inference):
    problem, params, Y = case(channels, inference, seed=11 + channels)
    oracle = Definition(params)
    states, q, evidence = posteriors(oracle, Y, keys_of(inference), 1.0)
    settings = Settings(0, 1.0, 0.0, N, {}, {"rho": 21.0, "alpha": 0.3}, problem.scheme.max_active)
    new, info = iterate(problem, Ranks(), params, settings)

    everyone = range(N)
    W = masks_of(params, *expected_shares(oracle, Y, states, q, everyone, np.inf))
    other = Definition({**params, "W": W})
    for d in range(P):
        pair = [expected_error(one, Y, states, q, everyone, d) for one in (oracle, other)]
        if pair[0] <= pair[1]:
            W[d] = params["W"][d]
    mixed = Definition({**params, "W": W})
    T = features_of(W, params["T"], *expected_shares(mixed, Y, states, q, everyone, np.inf))
    error = expected_error(Definition({**params, "W": W, "T": T}), Y, states, q, everyone)
    assert info.free_energy == pytest.approx(np.mean(evidence), rel=1e-10)
    np.testing.assert_allclose(new["W"], W, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(new["T"], T, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(new["sigma"], np.sqrt(error / Y.size), rtol=1e-10)


@pytest.mark.parametrize("scheme", [{"scheme": "tv", "states": 600, "gamma": 5}, EXACT], ids=str)
def test_five_causes_in_any_order_equal_their_definition(scheme):
    problem, params, Y = case(3, scheme, seed=5, causes=5)
    oracle = Definition(params)
    step = inference_context(problem.model, problem.scheme, params)
    block = Block(pad_rows(Y.reshape(N, -1)), problem.model.D, 0)
    posterior, _ = problem.scheme.infer(step, block, problem.scheme.initial_point_states(N))
    states, q, evidence = posteriors(oracle, Y[:4], (5, 5, False), 1.0)
    np.testing.assert_allclose(posterior.evidence[:4], evidence, rtol=1e-10)
    point, found, weight = posterior.pairs(np.arange(N) < 4)
    for n, s, w in zip(point, found.tolist(), weight, strict=True):
        assert w == pytest.approx(q[n][states[n].index(tuple(h for h in s if h >= 0))], rel=1e-8, abs=1e-14)


@pytest.mark.parametrize("kept", [30, 1])
def test_kept_states_give_the_statistics_of_their_weights(kept):
    """Run one iteration of tv or hard from given states, without proposals of other states."""
    scheme = {"scheme": "tv", "states": kept, "gamma": 3, "propose": {"blind": 1}} if kept > 1 else {"scheme": "hard"}
    problem, params, Y = case(3, {"gamma": 3, **scheme}, seed=8)
    settings = Settings(0, 2.0, 0.0, N, {}, {"rho": 4.0, "alpha": 0.3}, 3)
    state, info = em_step(problem, Ranks(), problem.initial_state(params), settings)
    new, oracle, kept_states = state.params, Definition(params), state.point_states["states"]
    lists = [[tuple(h for h in s if h >= 0) for s in rows if s[0] > -2] for rows in kept_states.tolist()]
    q, evidence = zip(*(oracle.posterior(y, s, 2.0) for y, s in zip(Y, lists, strict=True)), strict=True)
    assert info.free_energy == pytest.approx(np.mean(evidence), rel=1e-10)
    shares = expected_shares(oracle, Y, lists, q, range(N), 4.0)
    W = masks_of(params, *shares)
    W, T = rescale(W, features_of(W, params["T"], *shares), 0.3)
    np.testing.assert_allclose(new["W"], W, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(new["T"], T, rtol=1e-10, atol=1e-12)
    error = expected_error(oracle, Y, lists, q, range(N))
    np.testing.assert_allclose(new["sigma"], np.sqrt(error / Y.size), rtol=1e-10)


def test_pi_of_each_cause_counts():
    problem, params, Y = case(3, EXACT, seed=9)
    params["pi"] = np.array([0.1, 0.2, 0.3, 0.6])
    step = inference_context(problem.model, problem.scheme, params)
    block = Block(pad_rows(Y.reshape(N, -1)), problem.model.D, 0)
    table = problem.scheme.infer(step, block, {})[0]
    logs = step.evaluator.log_joint(Y.reshape(N, 1, -1), problem.scheme.table.members)
    np.testing.assert_allclose(table.evidence, logsumexp(logs, axis=1), rtol=1e-12)
    oracle = Definition({**params, "pi": 0.5})
    for k, s in enumerate(problem.scheme.table.members.tolist()):
        s = tuple(h for h in s if h >= 0)
        prior = sum(log(p if h in s else 1 - p) for h, p in enumerate(params["pi"])) - H * log(0.5)
        assert logs[0, k] == pytest.approx(oracle.log_sets(Y[0], s) + prior - log(factorial(len(s))), rel=1e-10)


def test_reconstructions_and_means_equal_their_definition():
    problem, params, Y = case(3, {"candidates": 3, "gamma": 2, "singletons": True}, seed=21)
    found = Inference(problem.model, problem.scheme, params, ("evidence", "means", "map", "reconstruction"))
    tables, oracle = found.block(Y.reshape(N, -1)), Definition(params)
    states, q, _ = posteriors(oracle, Y, (3, 2, True), 1.0)
    for n in range(N):
        mean = sum(w * oracle.mean(s) for s, w in zip(states[n], q[n], strict=True))
        np.testing.assert_allclose(tables["reconstruction"][n], mean.ravel(), rtol=1e-9, atol=1e-12)
        means = [sum(w for s, w in zip(states[n], q[n], strict=True) if h in s) for h in range(H)]
        np.testing.assert_allclose(tables["means"][n], means, rtol=1e-9, atol=1e-12)


def test_beyond_gamma_the_most_probable_causes_are_found_in_their_order():
    problem, params, _ = case(3, {"candidates": 2, "gamma": 1}, seed=2)
    params = {**params, "W": np.eye(P, H) + np.eye(P, H, -1), "sigma": np.array(0.05)}  # neighbours overlap in a pixel
    oracle = Definition(params)
    scenes = [(), (2,), (3, 1), (0, 2, 1), (0, 1, 3, 2)]
    Y = np.array([oracle.mean(s).ravel() for s in scenes])
    tables = Inference(problem.model, problem.scheme, params, ("map",)).block(Y)
    for n, scene in enumerate(scenes):
        place = tables["map_order"][n]
        found = tuple(np.argsort(place)[(place == 0).sum() :].tolist())
        every = [s for g in range(H + 1) for s in permutations(range(H), g)]
        weights, _ = oracle.posterior(Y[n].reshape(P, 3), every, 1.0)
        assert weights[every.index(found)] == pytest.approx(
            weights.max(), rel=1e-9
        )  # equivalent orders have equal weights
        assert set(found) == set(scene)
        assert sorted(place[place > 0]) == list(range(1, len(scene) + 1))
        assert (tables["map"][n] == (place > 0)).all()
        assert tables["map_gamma"][n] == min(len(scene) + 1, H)


def test_points_must_have_whole_pixels():
    table = job_table({"name": "oca", "causes": 2, "channels": 3, "learn": ["W"]}, EXACT)
    with pytest.raises(UserError, match=r"model.channels: expected a divisor of the number of values per point"):
        problem_of(table, np.ones((9, 4)))


def test_noise_never_makes_sigma_or_pi_negative():
    problem, params, _ = case(1, EXACT, seed=1)
    inside = problem.model.constrain({**params, "sigma": np.array(-0.2), "pi": np.array(-0.1)})
    assert (float(inside["sigma"]), float(inside["pi"])) == (0.2, 0.1)


def test_orders_that_show_the_same_have_the_same_bits():
    """Check that rounding errors do not decide between equivalent orders."""
    rng = np.random.default_rng(21)
    W = np.zeros((6, 3))
    W[[0, 1], 0], W[[2, 3], 1], W[[4, 5], 2] = rng.normal(size=(3, 2))
    params = {"W": W, "T": rng.normal(size=(1, 3)), "sigma": np.array(0.7), "pi": np.array([0.11, 0.23, 0.37])}
    table = job_table({"name": "oca", "causes": 3, "channels": 1, "each": ["pi"]}, EXACT)
    Y = rng.normal(size=(N, 6))
    problem, _ = problem_of(table, Y)
    step = inference_context(problem.model, problem.scheme, params)
    view = step.evaluator.observe(Block(pad_rows(Y), 6, 0))
    orders = np.array(list(permutations(range(3))), np.int32)
    logs = view.log_joint(np.tile(orders, (N, 1, 1)))
    assert (logs == logs[:, :1]).all()
