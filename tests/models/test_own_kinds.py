"""Models that are made of the contract's defaults against their definition: every pair of a point and a state."""

from pathlib import Path

import brute
import numpy as np
import pytest
from problems import iterate, job_table, problem_of

from parallel_et.core.types import Settings
from parallel_et.inference.posterior import Inference
from parallel_et.parallel.communicator import Ranks

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
N, D, H = 31, 6, 4
KINDS = {
    # keys of [model], definition, start of W
    "noisyor": ({"name": "noisyor"}, brute.NoisyOr(H), lambda rng: rng.uniform(0.05, 0.9, (D, H))),
    "counts": (
        {"file": str(EXAMPLES / "own_model.py"), "dark": 0.5},
        brute.Counts(H, dark=0.5),
        lambda rng: rng.gamma(2.0, 2.0, (D, H)),
    ),
    "ternary": ({"file": str(EXAMPLES / "ternary.py")}, brute.Ternary(H), lambda rng: rng.normal(0, 2, (D, H))),
}
SCHEMES = [
    {"scheme": "exact"},
    {"candidates": 3, "gamma": 2},
    {"candidates": 3, "gamma": 2, "singletons": True},
    {"candidates": 4, "gamma": 3},
]


def case(kind, inference, seed):
    keys, oracle, start = KINDS[kind]
    rng = np.random.default_rng(seed)
    params = {"W": np.asfortranarray(start(rng)), "pi": np.array(0.3)}
    learn = ["W", "pi"]
    if kind == "ternary":
        params, learn = {"W": params["W"], "sigma": np.array(1.3), "pi": params["pi"]}, ["W", "sigma", "pi"]
    table = job_table({"causes": H, **keys, "learn": learn}, inference)
    if kind != "ternary":
        del table["model"]["sigma"]
    binary = (rng.random((N, D)) < 0.4).astype(float)
    problem, _ = problem_of(table, binary)
    Y, _ = problem.model.draw(params, rng, N)
    return problem_of(table, Y)[0], params, oracle, Y


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inference", SCHEMES, ids=str)
@pytest.mark.parametrize("temperature, cut", [(1.0, 0.0), (3.0, 0.7)])
def test_an_iteration_equals_its_definition(kind, inference, temperature, cut):
    problem, params, oracle, Y = case(kind, inference, seed=len(str(inference)))
    points, most = N if cut == 0 else 20, problem.scheme.max_active
    new, info = iterate(problem, Ranks(), params, Settings(0, temperature, cut, points, {}, {}, most))
    atoms = oracle.variants * H
    expected, free_energy = oracle.iteration(
        {name: value if value.ndim else float(value) for name, value in params.items()},
        Y,
        count=inference.get("candidates", atoms),
        gamma=min(most, H),
        singletons=inference.get("singletons", False),
        temperature=temperature,
        points=points,
        cut=cut > 0,
    )
    assert info.free_energy == pytest.approx(free_energy, rel=1e-10)
    for name, value in expected.items():
        inside = np.clip(value, problem.model.params[name].low, problem.model.params[name].high)
        np.testing.assert_allclose(new[name], inside, rtol=1e-10, atol=1e-12, err_msg=name)


def test_candidates_of_noisyor_are_the_most_probable_single_causes_by_their_own_priors():
    rng, oracle = np.random.default_rng(6), brute.NoisyOr(H)
    params = {"W": np.asfortranarray(rng.uniform(0.2, 0.8, (D, H))), "pi": np.array([0.02, 0.1, 0.4, 0.7])}
    table = job_table({"name": "noisyor", "causes": H, "learn": ["W"], "each": ["pi"]}, {"candidates": 2, "gamma": 2})
    del table["model"]["sigma"]
    Y = (rng.random((N, D)) < 0.4).astype(float)
    problem, _ = problem_of(table, Y)
    found = Inference(problem.model, problem.scheme, params, ("candidates",)).block(Y)["candidates"]
    alone = np.array([[oracle.log_joint(params, y, (h,)) for h in range(H)] for y in Y])
    np.testing.assert_array_equal(found, np.sort(np.argsort(-alone, 1)[:, :2], 1))
    odds = np.log(params["pi"] / (1 - params["pi"]))
    assert (np.sort(np.argsort(odds - alone, 1)[:, :2], 1) != found).any()  # by the likelihood alone


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_inferred_equals_its_definition(kind):
    problem, params, oracle, Y = case(kind, {"candidates": 3, "gamma": 2, "singletons": True}, seed=5)
    found = Inference(problem.model, problem.scheme, params, ("evidence", "means", "map", "reconstruction", "quality"))
    tables, atoms = found.block(Y), oracle.variants * H
    for n, y in enumerate(Y):
        states = oracle.considered(params, y, 3, 2, True)
        logs = np.array([oracle.log_joint(params, y, s) for s in states])
        q = np.exp(logs - np.logaddexp.reduce(logs))
        means = np.array([sum(p for p, s in zip(q, states, strict=True) if a in s) for a in range(atoms)])
        np.testing.assert_allclose(tables["means"][n], means, rtol=1e-10, atol=1e-13)
        every = oracle.states(list(range(atoms)), H)
        whole = [oracle.log_joint(params, y, s) for s in every]
        assert tables["quality"][n] == pytest.approx(np.exp(np.logaddexp.reduce(logs) - np.logaddexp.reduce(whole)))
        if tables["map_gamma"][n] == H:
            assert tuple(np.flatnonzero(tables["map"][n])) == tuple(sorted(every[int(np.argmax(whole))]))
    assert (tables["map"].sum(1) > 1).any()


@pytest.mark.parametrize("kind", KINDS)
def test_points_that_are_drawn_have_the_mean_of_their_state(kind):
    problem, params, *_ = case(kind, {"scheme": "exact"}, seed=7)
    Y, states = problem.model.draw(params, np.random.default_rng(8), 4000)
    assert sorted({len([a for a in s if a >= 0]) for s in states.tolist()})[:3] == [0, 1, 2]
    assert np.mean([len([a for a in s if a >= 0]) for s in states.tolist()]) == pytest.approx(0.3 * H, rel=0.05)
    clean = problem.model.mean(params, states)
    np.testing.assert_allclose((Y - clean).mean(0), 0.0, atol=6 * (Y - clean).std() / 4000**0.5)


def test_data_that_a_model_cannot_describe_are_refused():
    for keys, Y, line in (
        (KINDS["noisyor"][0], np.full((9, 3), 0.5), "expected zeros and ones"),
        (KINDS["counts"][0], np.full((9, 3), -1.0), "expected counts"),
    ):
        table = job_table({"causes": 2, **keys, "learn": ["W"]}, {"scheme": "exact"})
        del table["model"]["sigma"]
        with pytest.raises(Exception, match=line):
            problem_of(table, Y)
