"""MCA_ex, MCA_3, R-MCA_2 and R-MCA_NN against the equations of the MCA paper."""

from itertools import combinations

import numpy as np
import pytest
from brute import all_states, log_noise, mean, responsibilities
from problems import iterate, problem_of, settings_at
from scipy.special import logsumexp

from parallel_et.core.random import stream
from parallel_et.em.e_step import EStep
from parallel_et.em.loop import em_step
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks

H, D = 5, 6
PI = np.array([0.2, 0.35, 0.1, 0.4, 0.25])
LAMBDA, C, RATE = 0.2, 17.0, 0.7
POINTS = [7, 40]  # below and above the number for which state means are computed once a block
TEMPERATURES = [1.0, 1.0002, 1.5, 11.0]


def data(points):
    rng = np.random.default_rng(points)
    Y = rng.poisson(rng.gamma(1.0, 3.0, (points, D))).astype(float)
    Y[:, -1] *= 0.37  # not an integer
    Y[0] = 0.0
    return Y


def fields():
    W = np.random.default_rng(3).gamma(1.0, 3.0, (D, H))
    W[2, :2] = 4.0  # equal fields
    return W


def updated(model, inference, Y, temperature, params):
    """Return the problem, and the parameters and metadata of one iteration from ``params``."""
    job = {
        "model": {"causes": H, **model},
        "data": {"source": "array:given"},
        "inference": inference,
        "anneal": {"iterations": 1, "temperature": temperature},
    }
    ranks = Ranks()
    problem, _ = problem_of(job, Y, ranks)
    return problem, *iterate(problem, ranks, params, settings_at(problem, 0, params))


def evidence(W, y, causes, temperature):
    """Return exp(beta I) of a set of active causes. The empty set explains only zeros."""
    if not causes:
        return float(not y.any())
    top = np.maximum(W[:, list(causes)].max(1), 1e-300)
    return np.exp((np.log(top) @ y - top.sum()) / temperature)


def weights(W, odds, y, max_active, temperature):
    """Return pi-bar exp(I) of all sets of up to ``max_active`` causes, tempered, not normalised."""
    sets = [s for g in range(max_active + 1) for s in combinations(range(H), g)]
    return {s: np.prod([odds[i] for i in s]) ** (1 / temperature) * evidence(W, y, s, temperature) for s in sets}


def sigmoid(x, temperature):
    if temperature == 1:
        return np.heaviside(x, 0.5)
    return 1 / (1 + np.exp(np.minimum(-LAMBDA * x / (temperature - 1), 700)))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("points", POINTS)
def test_mca3_is_eq_9_11_16_17_33_and_34(points, temperature):
    Y, W, odds, alpha = data(points), fields(), PI / (1 - PI), 1.3
    A, active, few = np.zeros((points, H, D)), np.zeros((points, H)), 0.0
    for n, y in enumerate(Y):
        F = weights(W, odds, y, 3, temperature)
        Z = sum(F.values())
        for i in range(H):
            A[n, i] = F[i,] / Z
            active[n, i] = F[i,] / Z
            for c in set(range(H)) - {i}:
                pair = F[tuple(sorted((i, c)))] / Z
                A[n, i] += pair * sigmoid(W[:, i] - W[:, c], temperature)
                active[n, i] += pair
            active[n, i] += alpha * sum(F[s] for s in F if len(s) == 3 and i in s) / Z
        few += sum(F[s] for s in F if len(s) <= 2) / Z
    pairs = sum(odds[a] * odds[b] for a in range(H) for b in range(H) if a != b) / 2
    expected = points * np.prod(1 - PI) * (1 + odds.sum() + pairs)
    params = {"W": np.asfortranarray(W), "pi": PI, "alpha": np.array(alpha)}
    model = {"name": "mca3", "each": ["pi"]}
    _, new, _ = updated(model, {"candidates": H, "gamma": 3}, Y, temperature, params)
    np.testing.assert_allclose(new["W"].T, np.einsum("nid,nd->id", A, Y) / A.sum(0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(new["pi"], np.minimum(active.mean(0), 1 - 1e-9), rtol=1e-10)
    np.testing.assert_allclose(new["alpha"], max(1.0, alpha + (expected - few) / points), rtol=1e-10)


@pytest.mark.parametrize("tempered", [None, "joint", "likelihood"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("points", POINTS)
def test_rmca_is_eq_21_and_22(points, temperature, tempered):
    Y, pi = data(points), 0.3
    W = fields() * C / fields().sum(0)
    odds = np.full(H, pi / (1 - pi)) ** (temperature if tempered == "likelihood" else 1)  # taken to 1 / T below
    g = np.array([activity(W, odds, y, temperature) for y in Y])
    total = g.T @ Y
    expected = C * total / total.sum(1, keepdims=True)
    params = {"W": np.asfortranarray(W), "pi": np.array(pi)}
    model = {"name": "rmca", "total": C} | ({"tempered": tempered} if tempered else {})
    _, new, info = updated(model, {"candidates": H, "gamma": 2}, Y, temperature, params)
    np.testing.assert_allclose(new["W"].T, expected, rtol=1e-10, atol=1e-12)
    assert new["pi"] == pi
    power = 1.0 if tempered == "likelihood" else 1 / temperature  # of the prior
    states = [s for s in all_states(H) if s.sum() <= 2]
    prior = [power * (s.sum() * np.log(pi) + (H - s.sum()) * np.log(1 - pi)) for s in states]
    logs = [[log_noise("mca poisson", y, mean("mca", W, s), np.nan) for s in states] for y in Y]
    free_energy = logsumexp(np.array(prior) + np.array(logs) / temperature, axis=1).mean()
    assert info.free_energy == pytest.approx(free_energy, rel=1e-10)


def activity(W, odds, y, temperature):
    """Return g_i of eq. 22 for a point that is not zero."""
    F = weights(W, odds, y, 2, temperature)
    Z = sum(F[s] for s in F if s)
    return np.array([F[i,] / Z for i in range(H)])


def test_rmca_with_a_rate_takes_eq_25_with_noise_and_divisive_normalisation_a_point_at_a_time():
    """Check that the likelihood is tempered and the prior is not."""
    Y, temperature, sigma, ranks = data(9), 2.0, 0.5, Ranks()
    odds = np.full(H, 3 / 7) ** temperature
    params, seen = {"W": np.asfortranarray(fields() * C / fields().sum(0)), "pi": np.array(0.3)}, []
    table = {
        "model": {"causes": H, "name": "rmca", "total": C, "rate": RATE},
        "data": {"source": "array:given"},
        "inference": {"candidates": H, "gamma": 2},
        "anneal": {"iterations": 18, "batch": 1, "temperature": temperature, "noise": {"W": sigma}},
    }
    problem, _ = problem_of(table, Y, ranks)
    state = problem.initial_state(params)
    for t in range(18):
        (point,) = problem.schedule.batches.block_numbers(t)
        seen.append(int(point))
        expected = params["W"] + RATE * Y[point][:, None] * activity(params["W"], odds, Y[point], temperature)
        expected += sigma * stream(problem.seed, "noise.W", t).standard_normal((D, H))
        expected = np.maximum(expected, 0.0)
        state, info = em_step(problem, ranks, state, settings_at(problem, t, params))
        params = state.params
        np.testing.assert_allclose(params["W"], C * expected / expected.sum(0), rtol=1e-10, atol=1e-12)
        assert not info.unused.any()
    assert sorted(seen[:9]) == sorted(seen[9:]) == list(range(9))
    assert not state.averages


@pytest.mark.parametrize("temperature", [1.5, 11.0])
@pytest.mark.parametrize("points", POINTS)
def test_exact_learning_is_eq_9_to_12(points, temperature):
    Y, W, states = data(points), fields(), all_states(H)
    odds, rho = PI / (1 - PI), temperature / (temperature - 1)
    A, active = np.zeros((points, D, H)), np.zeros((points, H))
    for n, y in enumerate(Y):
        F = weights(W, odds, y, H, temperature)
        Z = sum(F.values())
        for s in states:
            q = F[tuple(np.flatnonzero(s))] / Z
            active[n] += q * s
            if s.any():
                A[n] += q * responsibilities(W, s, rho)
    params = {"W": np.asfortranarray(W), "pi": PI}
    model = {"name": "mca", "noise": "poisson", "each": ["pi"]}
    _, new, _ = updated(model, {"scheme": "exact"}, Y, temperature, params)
    np.testing.assert_allclose(new["W"], np.einsum("ndi,nd->di", A, Y) / A.sum(0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(new["pi"], active.mean(0), rtol=1e-10)


@pytest.mark.parametrize("inference", [{"candidates": 4, "gamma": 3}, {"scheme": "tv", "states": 31, "gamma": 5}])
def test_mca3_also_learns_from_other_states_than_in_the_paper(inference):
    """Check that fields are learned from states of up to two causes, and pi from all states."""
    Y, W, alpha = data(40), fields(), 1.4
    params = {"W": np.asfortranarray(W), "pi": PI, "alpha": np.array(alpha)}
    problem, new, _ = updated({"name": "mca3", "each": ["pi"]}, inference, Y, 3.0, params)
    numerator, denominator, active = np.zeros((H, D)), np.zeros((H, D)), np.zeros(H)

    def add(place, thread, block, posterior):
        for n, state, q in zip(*posterior.pairs(np.ones(len(block), bool)), strict=True):
            causes = [h for h in state if h >= 0]
            for i in causes:
                active[i] += (alpha if len(causes) > 2 else 1.0) * q
                other = [c for c in causes if c != i]
                if len(other) < 2:
                    part_of = sigmoid(W[:, i] - W[:, other[0]], 3.0) if other else np.ones(D)
                    numerator[i] += q * part_of * block.Y[n]
                    denominator[i] += q * part_of

    state = problem.initial_state(params)
    EStep(problem, Ranks(), state, settings_at(problem, 0, params), read_only=True).visit(add)
    np.testing.assert_allclose(new["W"].T, numerator / denominator, rtol=1e-10)
    np.testing.assert_allclose(new["pi"], active / len(Y), rtol=1e-10)


@pytest.mark.parametrize(
    "model, line",
    [
        ({"name": "rmca", "total": 5.0, "learn": ["W", "pi"]}, "model.learn: expected only W for rmca, found W, pi"),
        ({"name": "rmca"}, "job: model.total: expected a value, found none"),
        ({"name": "mca3", "noise": "gauss"}, "job: model.noise: expected 'poisson', found \"gauss\""),
    ],
)
def test_unsupported_keys_are_refused_in_one_line(model, line):
    with pytest.raises(UserError) as error:
        updated(model, {"candidates": H, "gamma": 2}, data(9), 1.0, {})
    assert str(error.value) == line
