"""States that are no sets of causes: exactly one of several, ordered ones; and one pi for each cause."""

from itertools import combinations, permutations

import brute
import numpy as np
import pytest
from problems import iterate, job_table, problem_of, random_data, random_params
from scipy.special import logsumexp
from scipy.stats import norm

from parallel_et.core.latent_states import Latents, Table, binary, clashes, states_of_binary
from parallel_et.core.types import Settings
from parallel_et.inference.posterior import Inference
from parallel_et.models import MODELS, PI, SIGMA, Bernoulli, Categorical, Gauss, Model, Param, Statistic, sums_by_atom
from parallel_et.models.components.fields import with_empty_row
from parallel_et.models.components.priors import probability_of_at_most
from parallel_et.parallel.communicator import Ranks

N, D, H = 40, 5, 4


class Mixture(Model):
    """Clusters of one width: exactly one is active."""

    params = {"W": Param("DH", "centres"), "sigma": SIGMA, "pi": Param("H", "weights", 0.25, 1e-9, 1.0)}

    def __init__(self, options, dims):
        super().__init__(options, dims)
        self.prior, self.noise, self.latents = Categorical(), Gauss(), Latents(self.H, 1, 1)

    def mean(self, params, states):
        return params["W"].T[states[..., 0]]

    def statistics(self, stage):
        return {
            "active": Statistic((self.H,)),
            "y": Statistic((self.H, self.D), lambda params, summary: summary.largest),
        }

    def accumulate(self, stage, params, Y, states, q):
        return {"active": sums_by_atom(states, q, self.H), "y": sums_by_atom(states, q[:, None] * Y, self.H)}

    def maximise(self, stage, params, sums, settings, summary):
        active = sums["active"]
        return {"W": (sums["y"] / active[:, None]).T, "pi": self.prior.learn(params, active, sums["points"], settings)}


class Cards(Model):
    """Cards on a pile: each covers what it is not zero on, the first active one lies on top."""

    params = {"W": Param("DH", "cards", low=0.0), "sigma": SIGMA, "pi": PI}

    def __init__(self, options, dims):
        super().__init__(options, dims)
        self.prior, self.noise, self.latents = Bernoulli(self.H), Gauss(), Latents(self.H, ordered=True)

    def mean(self, params, states):
        pile = with_empty_row(params["W"].T)[states]
        top = (pile > 0).argmax(-2)
        return np.take_along_axis(pile, top[..., None, :], -2)[..., 0, :]

    def statistics(self, stage):
        return {"active": Statistic((self.H,))}

    def accumulate(self, stage, params, Y, states, q):
        return {"active": sums_by_atom(states, q, self.H)}

    def maximise(self, stage, params, sums, settings, summary):
        return {"pi": self.prior.learn(params, sums["active"], float(sums["points"]), settings)}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """These models are known in here alone."""
    monkeypatch.setattr(MODELS, "_own", {"mixture": Mixture, "cards": Cards})


def test_a_mixture_has_one_cluster_a_state_and_equals_its_definition():
    rng = np.random.default_rng(1)
    params = {"W": np.asfortranarray(rng.normal(0, 3, (D, H))), "sigma": np.array(1.5), "pi": rng.dirichlet(np.ones(H))}
    Y = params["W"].T[rng.integers(H, size=N)] + rng.normal(0, 1.5, (N, D))
    logs = np.array(
        [[norm.logpdf(y, params["W"][:, c], 1.5).sum() + np.log(params["pi"][c]) for c in range(H)] for y in Y]
    )
    for inference, kept in (({"scheme": "exact"}, H), ({"candidates": 2, "gamma": 1}, 2)):
        table = job_table({"name": "mixture", "causes": H, "learn": ["W", "pi"]}, inference)
        table["model"]["pi"] = 0.25
        problem, _ = problem_of(table, Y)
        assert problem.scheme.count == kept
        some = np.where(logs >= np.sort(logs)[:, [-kept]], logs, -np.inf)
        q = np.exp(some - logsumexp(some, axis=1)[:, None])
        new, info = iterate(problem, Ranks(), params, Settings(0, 1.0, 0.0, N, {}, {}, 1))
        assert info.free_energy == pytest.approx(logsumexp(some, axis=1).mean(), rel=1e-12)
        np.testing.assert_allclose(new["W"], (Y.T @ q) / q.sum(0), rtol=1e-10)
        np.testing.assert_allclose(new["pi"], q.mean(0), rtol=1e-10)
        found = Inference(problem.model, problem.scheme, params, ("map", "means", "reconstruction")).block(Y)
        assert found["map"].argmax(1).tolist() == logs.argmax(1).tolist()
        np.testing.assert_allclose(found["means"], q, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(found["reconstruction"], q @ params["W"].T, rtol=1e-10)


def test_states_whose_order_counts_equal_their_definition():
    rng = np.random.default_rng(2)
    W = rng.gamma(2.0, 2.0, (D, H)) * (rng.random((D, H)) < 0.6)
    params = {"W": np.asfortranarray(W), "sigma": np.array(1.0), "pi": np.array(0.3)}

    def mean(state):
        shown = np.zeros(D)
        for h in reversed(state):
            shown = np.where(W[:, h] > 0, W[:, h], shown)
        return shown

    def log_joint(y, state):
        prior = len(state) * np.log(0.3) + (H - len(state)) * np.log(0.7)
        return norm.logpdf(y, mean(state), 1.0).sum() + prior

    piles = [p for g in range(H + 1) for p in permutations(range(H), g)]
    Y = np.array([mean(piles[i]) for i in rng.integers(len(piles), size=N)]) + rng.normal(0, 0.3, (N, D))
    logs = np.array([[log_joint(y, s) for s in piles] for y in Y])
    problem, _ = problem_of(job_table({"name": "cards", "causes": H, "learn": ["pi"]}, {"scheme": "exact"}), Y)
    assert problem.scheme.count == len(piles) == 65
    new, info = iterate(problem, Ranks(), params, Settings(0, 1.0, 0.0, N, {}, {}, H))
    assert info.free_energy == pytest.approx(logsumexp(logs, axis=1).mean(), rel=1e-12)
    q = np.exp(logs - logsumexp(logs, axis=1)[:, None])
    assert float(new["pi"]) == pytest.approx(
        sum(q[:, k].sum() * len(s) for k, s in enumerate(piles)) / N / H, rel=1e-10
    )


@pytest.mark.parametrize("candidates, most", [(3, 3), (4, 2), (5, 1)])
def test_tables_have_every_state_once(candidates, most):
    def rows(latents):
        table = Table.of(latents, candidates, most)
        assert len(table) == len({tuple(row) for row in table.members.tolist()})
        assert (table.size == (table.members >= 0).sum(1)).all()
        return sorted(tuple(i for i in row if i >= 0) for row in table.members.tolist())

    sizes = range(most + 1)
    assert rows(Latents(9, ordered=True)) == sorted(p for g in sizes for p in permutations(range(candidates), g))
    assert rows(Latents(9, 1, 1)) == [(i,) for i in range(candidates)]
    owner = tuple(i // 2 for i in range(candidates))
    alone = [c for g in sizes for c in combinations(range(candidates), g) if len({i // 2 for i in c}) == g]
    assert rows(Latents(candidates, owner=owner)) == sorted(alone)


def test_states_as_lists_and_as_zeros_and_ones_are_the_same():
    table = np.random.default_rng(3).random((50, 7)) < 0.4
    table[0], table[1] = False, True
    states = states_of_binary(table)
    np.testing.assert_array_equal(binary(states, 7), table)
    assert binary(states[:, None], 7).shape == (50, 1, 7)
    two = np.array([[0, 3, -1], [0, 4, 1], [-1, -1, -1], [2, 5, -1]])
    assert clashes(two, (0, 1, 2, 0, 1, 2)).tolist() == [True, True, False, True]


@pytest.mark.parametrize("name", ["linca", "nmf", "mca", "mca poisson", "nmf poisson"])
@pytest.mark.parametrize("cut", [0.0, 0.8])
def test_one_pi_for_each_cause_equals_brute_force(name, cut):
    params = random_params(name, 7, 5, seed=1)
    pi = np.array([0.1, 0.5, 0.3, 0.2, 0.4])
    Y, points = random_data(name, 37, params, seed=2), 37 if cut == 0 else 25
    problem, start = problem_of(
        job_table({"name": name, "causes": 5, "each": ["pi"]}, {"candidates": 4, "gamma": 2, "singletons": True}), Y
    )
    assert start["pi"].shape == (5,)
    new, info = iterate(problem, Ranks(), {**params, "pi": pi}, Settings(0, 1.0, cut, points, {}, {"rho": np.inf}, 2))

    def log_joint(y, s):
        noise = brute.log_noise(name, y, brute.mean(name, params["W"], s), float(params.get("sigma", np.nan)))
        return noise + np.log(np.where(s, pi, 1 - pi)).sum()

    sigma = float(params.get("sigma", np.nan))
    states = [brute.considered(name, params["W"], sigma, pi, y, 4, 2, True) for y in Y]
    logs = [np.array([log_joint(y, s) for s in some]) for y, some in zip(Y, states, strict=True)]
    F = np.array([logsumexp(some) for some in logs])
    assert info.free_energy == pytest.approx(F.mean(), rel=1e-10)
    M = sorted(range(37), key=lambda n: (-F[n], n))[:points]
    mean = sum(np.exp(logs[n] - F[n]) @ np.array(states[n]) for n in M) / points
    if cut:
        some = [s for s in brute.all_states(5) if s.sum() <= 2]
        p = np.array([np.prod(np.where(s, pi, 1 - pi)) for s in some])
        mean = mean * pi * p.sum() / (p @ np.array(some))
    np.testing.assert_allclose(new["pi"], mean, rtol=1e-10)


def test_the_share_of_points_with_few_causes_is_that_of_all_states():
    pi = np.random.default_rng(4).random(6)
    states = brute.all_states(6)
    p = np.array([np.prod(np.where(s, pi, 1 - pi)) for s in states])
    for most in range(7):
        assert probability_of_at_most(pi, most) == pytest.approx(p[states.sum(1) <= most].sum(), rel=1e-12)
        without = [sum(x for s, x in zip(states, p, strict=True) if s.sum() - s[h] <= most) for h in range(6)]
        np.testing.assert_allclose(probability_of_at_most(pi, most, leave_one_out=True), without, rtol=1e-12)
        same = {"pi": np.array(0.3)}
        each = {"pi": np.full(6, 0.3)}
        prior = Bernoulli(6)
        assert prior.fraction_up_to(same, most) == pytest.approx(prior.fraction_up_to(each, most), rel=1e-12)
        if most:
            np.testing.assert_allclose(
                prior.fraction_up_to_given_active(each, most), prior.fraction_up_to_given_active(same, most), rtol=1e-12
            )
