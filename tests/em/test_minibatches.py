"""Minibatches: which points they have, what the M-step makes of them, and that a run goes on within a pass."""

from dataclasses import replace
from shutil import rmtree
from tempfile import mkdtemp

import numpy as np
import pytest
from brute import considered, posterior
from mpi4py import MPI
from problems import job_table, problem_of, random_data, random_params
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from parallel_et import fit, load
from parallel_et.em.loop import em_step
from parallel_et.em.minibatches import Batches
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard

ET = {"candidates": 3, "gamma": 2}


@pytest.mark.parametrize(
    "points, block, batch, count",
    [
        (1000, 10, 100, 10),
        (1003, 10, 100, 11),
        (110, 10, 100, 2),
        (7, 1, 1, 7),
        (7, 7, 7, 1),
        (95, 16, 95, 1),
        (5, 2, 3, 3),
    ],
)
def test_every_pass_has_each_point_once_in_batches_that_are_not_larger_than_asked(points, block, batch, count):
    batches = Batches(points, block, batch, seed=3)
    assert batches.count == count
    orders = []
    for number in range(3):
        blocks = [batches.block_numbers(number * count + place) for place in range(count)]
        seen = np.concatenate([np.arange(b * block, min(points, (b + 1) * block)) for some in blocks for b in some])
        assert sorted(seen) == list(range(points))
        sizes = [batches.size(number * count + place) for place in range(count)]
        assert sum(sizes) == points
        assert 0 < min(sizes) <= max(sizes) <= batch
        assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
        orders.append(tuple(seen))
    assert count == 1 or len(set(orders)) > 1
    assert np.array_equal(
        Batches(points, block, batch, seed=3).block_numbers(2 * count), batches.block_numbers(2 * count)
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_rank_has_its_share_of_every_batch(ranks):
    batches = Batches(2000, 10, 100, seed=1)
    for iteration in range(batches.count):
        found = [
            list(Shard.of(2000, 10, r, ranks).selected_blocks(batches.block_numbers(iteration))) for r in range(ranks)
        ]
        assert sum(map(len, found)) == len(batches.block_numbers(iteration))
        assert min(map(len, found)) >= 10 // ranks - 1


def points_of(problem, iteration):
    block, N = problem.shard.block, problem.shard.points
    return np.concatenate(
        [np.arange(b * block, min(N, (b + 1) * block)) for b in problem.schedule.batches.block_numbers(iteration)]
    )


def batches_of(problem, params, iterations):
    """Yield for each iteration old parameters, indices of the points, settings, new parameters and info."""
    state = problem.initial_state(params)
    for iteration in range(iterations):
        settings = problem.schedule.settings(state)
        new, info = em_step(problem, Ranks(), state, settings)
        yield state.params, points_of(problem, iteration), settings, new.params, info
        state = new


def mixed(old, new, step):
    """Average named arrays."""
    return new if old is None else {name: (1 - step) * old[name] + step * new[name] for name in new}


@pytest.mark.parametrize("points, batch", [(61, 20), (10, 1)])
def test_the_m_step_uses_the_average_of_the_statistics_of_explicit_states(points, batch):
    D, H, step = 5, 4, {"power": 0.7, "delay": 2.0}
    params = random_params("linca", D, H, 1)
    Y = random_data("linca", points, params, 9)
    table = job_table({"name": "linca", "causes": H}, ET, {"iterations": 9, "batch": batch, "step": step})
    problem, _ = problem_of(table, Y)
    assert problem.schedule.batches.count > 3
    mean = None
    for t, (old, chosen, settings, new, info) in enumerate(batches_of(problem, params, 9)):
        W, sigma, pi = old["W"], float(old["sigma"]), float(old["pi"])
        sums, F = {"ys": 0.0, "ss": 0.0, "yy": 0.0}, 0.0
        scores = np.sort(Y[chosen] @ W / np.linalg.norm(W, axis=0))
        assert (scores[:, 1] - scores[:, 0]).min() > 1e-6  # else rounding would say which three are candidates
        for y in Y[chosen]:
            states = np.array(considered("linca", W, sigma, pi, y, **{"count": 3, "gamma": 2, "singletons": False}))
            q, evidence = posterior("linca", W, sigma, pi, y, states, 1.0)
            F += evidence
            sums["ys"] += np.outer(y, q @ states)
            sums["ss"] += np.einsum("k,ki,kj->ij", q, states, states)
            sums["yy"] += y @ y
        assert settings.step == pytest.approx((1 + t / 2) ** -0.7)
        assert info.points_used == len(chosen) <= batch
        assert info.free_energy == pytest.approx(F / len(chosen), rel=1e-10)
        mean = mixed(mean, {name: value / len(chosen) for name, value in sums.items()}, (1 + t / 2) ** -0.7)
        ss, ys = mean["ss"], mean["ys"]
        determined = np.linalg.matrix_rank(ss) == H
        if determined:
            np.testing.assert_allclose(new["W"], np.linalg.solve(ss, ys.T).T, rtol=1e-8, atol=1e-8)
        error = mean["yy"] - 2 * np.vdot(new["W"], ys) + np.vdot(new["W"] @ ss, new["W"])
        assert float(new["sigma"]) == pytest.approx(max(np.sqrt(max(0, error) / D), 1e-4), rel=1e-6, abs=1e-3)
        assert float(new["pi"]) == pytest.approx(np.trace(ss) / H, rel=1e-10)
    assert determined or batch == 1


def covariance(kind, q, W, moments):
    """Return covariances of a kind (C, D, D) from raw second moments of the clusters, their weights and means."""
    D = moments.shape[1]
    full = moments / q[:, None, None] - np.einsum("dc,ec->cde", W, W) + 1e-6 * np.eye(D)
    if kind == "tied":
        return np.broadcast_to(np.einsum("c,cde->de", q, full) / q.sum(), full.shape)
    if kind == "diagonal":
        return full * np.eye(D)
    return full if kind == "full" else np.einsum("cdd->c", full)[:, None, None] / D * np.eye(D)


def as_matrices(kind, var, C, D):
    if kind in ("full", "tied"):
        return np.broadcast_to(var, (C, D, D))
    return np.array([np.diag(v) if np.ndim(v) else v * np.eye(D) for v in (var.T if kind == "diagonal" else var)])


@pytest.mark.parametrize("kind", ["spherical", "diagonal", "full", "tied"])
def test_sums_of_gaps_to_means_that_move_are_averaged_as_raw_moments_are(kind):
    C, D, rng = 3, 2, np.random.default_rng(4)
    Y = rng.normal(0, 1, (130, D)) + rng.normal(0, 3, (C, D))[rng.integers(C, size=130)] + 50
    table = {
        "model": {"name": "gmm", "causes": C, "covariance": kind},
        "data": {"source": "array:given"},
        "inference": {"scheme": "exact"},
        "anneal": {"batch": 40, "iterations": 8, "noise": {"W": 0.3}},
    }
    problem, params = problem_of(table, Y)
    mean = None
    for t, (old, chosen, _, new, _) in enumerate(batches_of(problem, params, 8)):
        covs = as_matrices(kind, old["var"], C, D)
        logs = [np.log(old["pi"][c]) + multivariate_normal(old["W"][:, c], covs[c]).logpdf(Y[chosen]) for c in range(C)]
        q = np.exp(np.array(logs) - logsumexp(logs, axis=0)) / len(chosen)
        sums = {"q": q.sum(1), "y": q @ Y[chosen], "yy": np.einsum("cn,nd,ne->cde", q, Y[chosen], Y[chosen])}
        mean = mixed(mean, sums, (1 + t) ** -0.6)
        W = (mean["y"] / mean["q"][:, None]).T
        np.testing.assert_allclose(new["pi"], mean["q"], rtol=1e-9)
        assert np.abs(new["W"] - W).max() > 0.01  # by the noise, with which the next batch begins
        np.testing.assert_allclose(
            as_matrices(kind, new["var"], C, D), covariance(kind, mean["q"], W, mean["yy"]), rtol=1e-7, atol=1e-8
        )


@pytest.mark.parametrize(
    "model, inference",
    [
        ({"name": "linca"}, ET),
        ({"name": "mca"}, {"scheme": "tv", "states": 5, "gamma": 2}),
        ({"name": "nmf"}, {"scheme": "exact"}),
    ],
)
def test_a_batch_of_all_points_is_full_em(model, inference):
    Y = np.abs(random_data(model["name"], 203, random_params(model["name"], 6, 4, 1), 2))
    anneal = {"iterations": 5, "cut": {"schedule": [[2, 0.0], [3, 1.0]], "share": 0.9}}
    found = [fit(job_table({"causes": 4, **model}, inference, {**anneal, **b}), Y) for b in ({}, {"batch": 203})]
    for name, value in found[0].params.items():
        np.testing.assert_allclose(found[1].params[name], value, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found[1].history["free_energy"], found[0].history["free_energy"], rtol=1e-10)
    assert not found[1].averages


def test_two_passes_in_batches_come_as_far_as_ten_of_full_em():
    true, rng = random_params("linca", 8, 6, 3), np.random.default_rng(1)
    Y = (rng.random((4000, 6)) < 0.3) @ true["W"].T + rng.normal(size=(4000, 8))
    begin = {**true, "W": np.asfortranarray(true["W"] + rng.normal(0, 0.7, (8, 6)))}

    def run(params, iterations, **anneal):
        problem, _ = problem_of(job_table({"name": "linca", "causes": 6}, {"scheme": "exact"}, anneal), Y)
        *_, (_, _, _, new, info) = batches_of(problem, params, iterations)
        return new, info.free_energy

    full, batches = run(begin, 10)[0], run(begin, 40, batch=200)[0]
    start, slow, fast = (run(params, 1)[1] for params in (begin, full, batches))
    assert fast > slow - 0.01 * (slow - start)


def test_a_batch_larger_than_the_data_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"^anneal\.batch: expected at most the 30 points of the data, found 31$"):
        fit(job_table({"name": "linca", "causes": 4}, ET, {"batch": 31}), np.ones((30, 4)))


class KilledError(Exception):
    """Ends a run where it stands."""


KEPT = {"scheme": "tv", "states": 5, "gamma": 2}
WAITING = {"start": 3.0, "end": 1.0, "steps": 4, "hold": 3, "change": 0.05}
RESTRICTED = {"name": "rmca poisson", "total": 12.0, "learn": ["W"]}
RESUMED = {
    "within a pass": ({"name": "linca"}, KEPT, {"batch": 50}),
    "clusters": ({"name": "gmm"}, {"candidates": 2}, {"batch": 50, "noise": {"W": 0.1}}),
    "cooling": ({"name": "mca"}, ET, {"temperature": WAITING, "stop": {"change": 1e-3, "fields": True}}),
    "mca3": (
        {"name": "mca3 poisson", "each": ["pi"], "learn": ["W", "pi", "alpha"]},
        {"candidates": 4, "gamma": 3},
        {"temperature": WAITING},
    ),
    "rmca": (RESTRICTED, {"candidates": 4, "gamma": 2}, {"temperature": WAITING}),
    "a point at a time": (
        {**RESTRICTED, "rate": 0.3},
        {"candidates": 4, "gamma": 2},
        {"batch": 1, "noise": {"W": 0.1}},
    ),
    "maxima of counts": ({"name": "mca poisson", "each": ["pi"]}, {"scheme": "exact"}, {"temperature": WAITING}),
    "cooling in batches": ({"name": "nmf"}, KEPT, {"batch": 100, "temperature": WAITING}),
}


@pytest.mark.mpi
@pytest.mark.parametrize("name", RESUMED)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(name):
    model, inference, anneal = RESUMED[name]
    ranks = Ranks()
    place = ranks.from_root(mkdtemp)
    Y = np.abs(random_data("mca", 303, random_params("mca", 6, 4, 1), 2))
    table = job_table({"causes": 4, **model}, inference, {"iterations": 19, **anneal})
    if model["name"] == "gmm":
        table["model"] = {"causes": 4, **model}
    table["run"]["checkpoint"] = {"every": 3}

    def watch(params, settings, info):
        if settings.iteration == 10:
            raise KilledError

    whole = fit(table, Y, comm=MPI.COMM_SELF)
    if ranks.is_root:
        with pytest.raises(KilledError):
            fit(table, Y, comm=MPI.COMM_SELF, output=f"{place}/run", watch=watch)
    ranks.barrier()
    found = fit(table, Y, output=f"{place}/run")
    for key, value in found.params.items():
        assert value.tobytes() == whole.params[key].tobytes()
    if ranks.is_root:
        assert int(found.metadata["restarts"]) == 1
        for key in ("free_energy", "temperature"):
            assert found.history[key].tobytes() == whole.history[key].tobytes()
        assert bool(found.averages) == ("batch" in anneal and "rate" not in model)
        assert ("temperature" in anneal) == (len(set(whole.history["temperature"])) > 1)
    ranks.from_root(lambda: rmtree(place))


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_are_not_kept_give_the_same_bits(threads, tmp_path):
    np.save(tmp_path / "data.npy", random_data("linca", 1003, random_params("linca", 6, 4, 1), 2))
    table = job_table({"name": "linca", "causes": 4}, ET, {"iterations": 12, "batch": 100})
    table["run"]["threads"] = threads
    table["data"] = {"source": str(tmp_path / "data.npy")}
    kept = fit(table)
    table["data"]["memory"] = "20 KB"
    assert fit(table).params["W"].tobytes() == kept.params["W"].tobytes()


def test_averages_that_cannot_be_are_refused(tmp_path):
    Y = random_data("linca", 103, random_params("linca", 6, 4, 1), 2)
    fit(job_table({"name": "linca", "causes": 4}, ET, {"iterations": 3, "batch": 20}), Y, output=str(tmp_path / "run"))
    result, path = load(tmp_path / "run"), tmp_path / "run/result.h5"
    assert set(result.averages) == {f"model all/{name}" for name in ("yy", "error", "ys", "ss", "points")}
    assert float(result.averages["model all/points"]) == pytest.approx(103)
    for name, value, found in (("ss", np.ones(3), "the shape 10, found 3"), ("yy", np.array(np.inf), "found inf")):
        replace(result, averages={**result.averages, f"model all/{name}": value}).write(path)
        with pytest.raises(UserError, match=f"/averages/model all/{name}: expected .*{found}"):
            load(path)
