"""Kept states and the search for better ones: against brute force, and what every kind of proposal must keep to."""

from itertools import chain, combinations
from types import SimpleNamespace

import numpy as np
import pytest
from problems import iterate, job_table, problem_of, random_data, random_params
from scipy.special import logsumexp

from parallel_et import fit
from parallel_et.core.latent_states import Latents, clashes
from parallel_et.core.model import EnumeratingView, Evaluator, Model
from parallel_et.core.random import Random
from parallel_et.core.scheme import Context
from parallel_et.core.types import Block, Settings
from parallel_et.em.e_step import inference_context
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.kernels import VACANT, search
from parallel_et.kernels.rows import pad_rows
from parallel_et.models import Bernoulli
from parallel_et.parallel.communicator import Ranks
from parallel_et.schemes.tv import Proposals, TruncatedVariational, TVOptions

N, D, H = 30, 8, 6
KINDS = list(Proposals.model_fields)
LATENTS = {
    "a single one": Latents(1),
    "sets": Latents(7),
    "one of several": Latents(7, 1, 1),
    "at least one": Latents(7, 1),
    "ordered": Latents(7, ordered=True),
    "two ways each": Latents(8, owner=(0, 1, 2, 3, 0, 1, 2, 3)),
}


def case(name="linca", inference=None, points=N):
    """Return a problem, parameters and points."""
    params = random_params(name, D, H, seed=1)
    Y = random_data(name, points, params, seed=2)
    problem, _ = problem_of(job_table({"name": name, "causes": H}, inference or {"scheme": "exact"}), Y)
    return problem, params, Y


def all_joints(problem, params, Y):
    """Return the log joint of every state, by its active atoms."""
    evaluator = inference_context(problem.model, problem.scheme, params).evaluator
    every = chain.from_iterable(combinations(range(H), size) for size in range(H + 1))
    return {s: evaluator.log_joint(Y, np.array(list(s) or [-1], np.int32)) for s in every}


def kept_of(states, n):
    return [tuple(int(a) for a in row if a >= 0) for row in states[n] if row[0] != VACANT]


@pytest.mark.parametrize("name", ["linca", "nmf", "mca"])
def test_joints_of_listed_states_equal_the_model_s_own(name):
    problem, params, Y = case(name, {"scheme": "tv", "states": 9, "gamma": 5})
    step, block = inference_context(problem.model, problem.scheme, params), Block(pad_rows(Y), D, 0)
    states = np.empty((N, 40, 5), np.int32)
    search.propose_blind(np.uint64(3), 0, np.arange(H, dtype=np.int32), 0, 5, False, states)
    states[:, 3, 0] = VACANT
    found = step.evaluator.observe(block).log_joint(states)
    expected = step.evaluator.log_joint(Y[:, None], np.maximum(states, -1))
    expected[:, 3] = -np.inf
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("name", ["linca", "nmf", "mca"])
@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_the_posterior_is_that_of_the_kept_states(name, beta):
    problem, params, Y = case(name, {"scheme": "tv", "states": 9, "gamma": 4})
    joints = all_joints(problem, params, Y)
    step = inference_context(problem.model, problem.scheme, params)._replace(beta=beta)
    posterior, kept = problem.scheme.infer(step, Block(pad_rows(Y), D, 0), problem.scheme.initial_point_states(N))
    for n in range(N):
        states = kept_of(kept["states"], n)
        logs = beta * np.array([joints[s][n] for s in states])
        assert len(states) == len(set(states)) == 9
        np.testing.assert_allclose(posterior.evidence[n], logsumexp(logs), rtol=1e-10)
        means = sum(
            np.exp(value - logsumexp(logs)) * np.isin(np.arange(H), s) for s, value in zip(states, logs, strict=True)
        )
        np.testing.assert_allclose(posterior.means(H)[n], means, atol=1e-10)
        best = posterior.best()[n]
        assert tuple(best[best >= 0]) == states[int(np.argmax(logs))]


def test_the_best_of_all_are_kept_if_all_are_proposed():
    problem, params, Y = case("linca", {"scheme": "tv", "states": 7, "gamma": H, "propose": {"select": 64}})
    joints = all_joints(problem, params, Y)
    _, kept = problem.scheme.infer(
        inference_context(problem.model, problem.scheme, params),
        Block(pad_rows(Y), D, 0),
        problem.scheme.initial_point_states(N),
    )
    for n in range(N):
        assert set(kept_of(kept["states"], n)) == set(sorted(joints, key=lambda s, n=n: -joints[s][n])[:7])


def enter(states, logs, proposed, values):
    """Insert proposed states of one point by the kernel, and return the stored states."""
    width = 3
    kept = np.full((1, len(states), width), -1, np.int32)
    for row, state in zip(kept[0], states, strict=True):
        row[: len(state or ())] = state or ()
        if state is None:
            row[0] = VACANT
    new = np.full((1, len(proposed), width), -1, np.int32)
    for row, state in zip(new[0], proposed, strict=True):
        row[: len(state)] = state
    joints, marks = np.array([logs], float), np.empty((1, len(states)), np.uint64)
    search.hash_states(kept, marks)
    search.insert_better(kept, joints, marks, new, np.array([values], float))
    return dict(zip(kept_of(kept, 0), joints[0], strict=False))


def test_no_state_is_stored_twice_and_ties_keep_the_old_state():
    old = [(0,), (1, 2), ()]
    assert enter(old, [-1, -2, -3], [(3,), (4,)], [-3, -3]) == {(0,): -1, (1, 2): -2, (): -3}
    assert enter(old, [-1, -2, -3], [(0,), (3,), (3,)], [-1, -2.5, -2.5]) == {(0,): -1, (1, 2): -2, (3,): -2.5}
    assert enter([(0,), None, None], [-1, -9, -9], [(), (0,), (2,)], [-5, -1, -6]) == {(0,): -1, (): -5, (2,): -6}
    assert enter(old, [-1, -2, -3], [(3,)], [np.nan]) == {(0,): -1, (1, 2): -2, (): -3}


def test_entering_equals_sorting_on_many_random_states():
    rng = np.random.default_rng(5)
    value = {s: -float(k) for k, s in enumerate(rng.permutation(128).tolist())}
    states = {s: tuple(int(i) for i in np.flatnonzero([(s >> b) & 1 for b in range(7)])) for s in value}
    narrow = [s for s in value if len(states[s]) <= 3]
    for _ in range(50):
        old, new = rng.choice(narrow, 6, replace=False), rng.choice(narrow, 30)
        found = enter(
            [states[s] for s in old], [value[s] for s in old], [states[s] for s in new], [value[s] for s in new]
        )
        best = sorted(set(old) | set(new), key=lambda s: -value[s])[:6]
        assert found == {states[s]: value[s] for s in best}


class Prior:
    """Any states of a kind."""

    def __init__(self, latents, most):
        self.latents, self.max_active = latents, most

    def draw(self, params, rng, count):
        states = np.full((count, self.max_active), -1, np.int32)
        for row in states:
            size = rng.integers(max(self.latents.min_active, 0), self.max_active + 1)
            owners = rng.permutation(len(set(self.latents.owners.tolist())))[:size]
            atoms = [rng.choice(np.flatnonzero(self.latents.owners == o)) for o in owners]
            row[: len(atoms)] = atoms if self.latents.ordered else sorted(atoms)
        return states


class AnyView(EnumeratingView):
    """A block in which every state has a joint of its own."""

    def select(self, count):
        order = np.argsort(self.block.rows[:, : self.model.latents.atoms], 1)[:, :count]
        return np.sort(order, 1).astype(np.int32)

    def log_joint(self, states):
        worth = np.sin(np.arange(1, 1 + states.shape[2]) * (1 + 3.7 * np.maximum(states, -1)))
        logs = -np.abs(worth.sum(2) + self.block.rows[:, :1])
        return np.where(states[:, :, 0] == VACANT, -np.inf, logs)


class Anything(Model):
    """A model that only lists states."""

    View = AnyView

    def __init__(self, latents, most):
        super().__init__(SimpleNamespace(causes=latents.atoms), 8)
        self.latents, self.prior = latents, Prior(latents, most)

    def mean(self, params, states):
        return np.random.default_rng(3).normal(size=(len(states), 4))

    def statistics(self, stage):
        return {}

    def maximise(self, stage, params, sums, settings, summary):
        return {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("latents", LATENTS.values(), ids=LATENTS)
@pytest.mark.parametrize("start", ["select", "prior", "blind"])
def test_every_kind_gives_states_of_the_model_and_the_same_in_any_blocks(kind, latents, start):
    most = latents.max_active_of(4)
    scheme = TruncatedVariational(TVOptions(states=6, gamma=4, start=start, propose={kind: 9}), latents)
    step = at_rest_of(Anything(latents, most), scheme)
    rows = np.random.default_rng(1).normal(size=(20, 8))
    kept = scheme.initial_point_states(20)
    assert kept["states"].dtype == np.int16
    for iteration in range(4):
        step = step._replace(random=step.random._replace(iteration=iteration))
        before = kept
        _, kept = scheme.infer(step, Block(rows, 8, 0), kept)
        _, again = scheme.infer(step, Block(rows, 8, 0), before)
        assert kept["states"].tobytes() == again["states"].tobytes()
        if "prior" not in (kind, start) and kind != "marginals":  # which are drawn by blocks, the same on any ranks
            parts = [
                scheme.infer(step, Block(rows[p], 8, p.start), {"states": before["states"][p]})[1]
                for p in (slice(0, 7), slice(7, 20))
            ]
            assert kept["states"].tobytes() == np.concatenate([part["states"] for part in parts]).tobytes()
    for n in range(20):
        states = kept_of(kept["states"], n)
        assert 0 < len(states) == len(set(states))
        for state in states:
            assert latents.min_active <= len(state) <= most
            assert latents.ordered or list(state) == sorted(state)
            assert len({latents.owners[a] for a in state}) == len(state)
    assert not latents.owner or not clashes(np.maximum(kept["states"], -1), latents.owner).any()


def at_rest_of(model, scheme):
    evaluator = Evaluator(model, {}, Settings(0, 1.0, 0.0, 0, {}, {}, scheme.max_active))
    return Context(evaluator, None, None, 1.0, Random(4, 0), lambda phase: None)


@pytest.mark.parametrize("latents", LATENTS.values(), ids=LATENTS)
def test_every_state_is_found_by_flips_in_time(latents):
    most = latents.max_active_of(3)
    scheme = TruncatedVariational(TVOptions(states=1000, gamma=3, start="blind", propose={"flip": 60}), latents)
    step, kept, rows = at_rest_of(Anything(latents, most), scheme), scheme.initial_point_states(2), np.zeros((2, 8))
    for iteration in range(150):
        step = step._replace(random=step.random._replace(iteration=iteration))
        _, kept = scheme.infer(step, Block(rows, 8, 0), kept)
    everything = latents.states(latents.atoms, most)
    if latents.owner:  # as if each owned itself: 2 of one owner are none
        everything = sum(
            1 for g in range(most + 1) for s in combinations(range(8), g) if len({latents.owner[a] for a in s}) == g
        )
    assert [len(kept_of(kept["states"], n)) for n in range(2)] == [everything] * 2


def test_marginals_are_drawn_with_the_right_probabilities():
    points, number, pi = 400, 50, np.array([0.1, 0.2, 0.3, 0.4, 0.25])
    states = np.full((points, 3, 5), -1, np.int32)
    states[:, 0, :2], states[:, 1, :2], states[:, 2, 0] = (0, 1), (0, 2), 3
    logs = np.tile(np.log([0.5, 0.3, 0.2]), (points, 1))
    prior = Bernoulli(5).draw({"pi": pi}, np.random.default_rng(1), points * number)
    out = np.full((points * number, 5), -1, np.int32)
    out[:, : prior.shape[1]] = prior
    out = out.reshape(points, number, 5)
    search.propose_marginals(np.uint64(7), 0, states, logs, 1.0, np.arange(5, dtype=np.int32), 0, 5, False, out)
    found = np.array([(out == atom).any(2).mean() for atom in range(5)])
    np.testing.assert_allclose(found, 0.9 * np.array([0.8, 0.5, 0.3, 0.2, 0.0]) + 0.1 * pi, atol=0.015)


@pytest.mark.parametrize("kind", ["prior", "marginals"])
def test_states_of_the_prior_with_too_many_causes_are_none(kind):
    keys = {"scheme": "tv", "states": 9, "gamma": 2, "propose": {kind: 20}}
    problem, params, Y = case("linca", keys)
    step = inference_context(problem.model, problem.scheme, {**params, "pi": np.array(0.6)})
    kept = problem.scheme.initial_point_states(N)
    for iteration in range(5):
        step = step._replace(random=step.random._replace(iteration=iteration))
        posterior, kept = problem.scheme.infer(step, Block(pad_rows(Y), D, 0), kept)
        assert kept["states"].max() < H
        assert (kept["states"][kept["states"][:, :, 0] != VACANT] >= -1).all()
        assert all(len(s) <= 2 for n in range(N) for s in kept_of(kept["states"], n))
        assert np.isfinite(posterior.evidence).all()


def test_with_all_states_kept_it_is_exact():
    params = random_params("linca", D, H, seed=3)
    Y = random_data("linca", 70, params, seed=4)
    found = []
    for scheme in ({"scheme": "exact"}, {"scheme": "tv", "states": 64, "gamma": H}):
        problem, _ = problem_of(job_table({"name": "linca", "causes": H}, scheme), Y)
        found.append(iterate(problem, Ranks(), params, Settings(0, 1.0, 0.0, 70, {}, {}, H)))
    (new, info), (other, energy) = found
    assert abs(info.free_energy - energy.free_energy) < 1e-12 * abs(info.free_energy)
    for name in new:
        np.testing.assert_allclose(other[name], new[name], rtol=1e-10)


@pytest.mark.parametrize("name", ["linca", "nmf", "mca"])
def test_with_the_states_of_et_it_is_never_below_et(name):
    keys = {"candidates": 4, "gamma": 3}
    tv = {"scheme": "tv", "states": 15, "propose": {"select": 15}, **keys}
    problem, _, _ = case(name, tv, 200)
    other, _, _ = case(name, keys, 200)
    for seed in range(5):
        params = random_params(name, D, H, seed)
        settings = Settings(seed, 1.0, 0.0, 200, {}, {"rho": 1e12}, 3)
        kept, constructed = (iterate(p, Ranks(), params, settings)[1].free_energy for p in (problem, other))
        assert kept >= constructed - 1e-12 * abs(constructed)


def test_points_that_a_trained_model_is_shown_are_searched_for_several_rounds():
    problem, params, Y = case(
        "linca", {"scheme": "tv", "states": 6, "gamma": 4, "start": "blind", "rounds": 1, "propose": {"flip": 5}}
    )
    longer, _, _ = case(
        "linca", {"scheme": "tv", "states": 6, "gamma": 4, "start": "blind", "rounds": 30, "propose": {"flip": 5}}
    )
    one, many = (
        Inference(p.model, p.scheme, params, ["evidence", "map", "means", "reconstruction"]).block(Y)
        for p in (problem, longer)
    )
    assert (many["evidence"] >= one["evidence"] - 1e-9).all()
    assert many["evidence"].mean() > one["evidence"].mean()
    best = max(all_joints(problem, params, Y).items(), key=lambda item: item[1][0])[0]
    assert tuple(np.flatnonzero(many["map"][0])) == best or len(best) > 4


@pytest.mark.parametrize(
    "keys, line",
    [
        ({"states": 5}, "inference.gamma: expected a number of at most model.causes = 6, found none"),
        ({"states": 5, "gamma": 7}, "inference.gamma: expected at most model.causes = 6, found 7"),
        (
            {"states": 5, "gamma": 2, "candidates": 9},
            "inference.candidates: expected at most model.causes = 6, found 9",
        ),
        ({"states": 0, "gamma": 2}, "inference.states: expected a value of 1 or more, found 0"),
        (
            {"states": 5, "gamma": 2, "propose": {"flips": 3}},
            "inference.propose.flips: unknown key, did you mean flip?",
        ),
        ({"states": 5, "gamma": 2, "start": "flip"}, "inference.start: expected 'select', 'prior' or 'blind', found"),
    ],
)
def test_a_mistake_is_one_line(keys, line):
    with pytest.raises(UserError) as caught:
        case("linca", {"scheme": "tv", **keys})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_prior_is_not_drawn_from():
    scheme = TruncatedVariational(TVOptions(states=3, gamma=2, propose={"prior": 2}), Latents(7))
    model = Anything(Latents(7), 2)
    del model.prior
    with pytest.raises(UserError, match=r"expected a class that declares self\.prior"):
        scheme.infer(at_rest_of(model, scheme), Block(np.zeros((2, 8)), 8, 0), scheme.initial_point_states(2))


def test_kept_states_take_two_bytes_an_atom():
    scheme = TruncatedVariational(TVOptions(states=60, gamma=8), Latents(200))
    assert scheme.initial_point_states(100)["states"].nbytes == 100 * 60 * 8 * 2


def test_a_fit_with_hard_em_learns(tmp_path):
    params = random_params("linca", D, H, seed=3)
    Y = random_data("linca", 200, params, seed=4)
    energy = fit(
        job_table({"name": "linca", "causes": H}, {"scheme": "hard", "gamma": 3}, {"iterations": 10}), Y
    ).history["free_energy"]
    assert energy[-1] > energy[0]


def test_toggled_states_are_all_neighbours_of_the_best_ones():
    states = np.array([[[0, 3, -1, -1], [1, 2, 4, -1], [5, -1, -1, -1]]], np.int32)
    out = np.empty((1, 2 * H, 4), np.int32)
    owner = np.arange(H, dtype=np.int32)
    search.propose_toggle(np.uint64(9), 0, states, np.array([[-3.0, -1.0, -2.0]]), owner, 0, 4, False, out)
    for parent, children in (({1, 2, 4}, out[0, :H]), ({5}, out[0, H:])):
        expected = {tuple(sorted(parent ^ {atom})) for atom in range(H)}
        assert {tuple(int(a) for a in child if a >= 0) for child in children} == expected
