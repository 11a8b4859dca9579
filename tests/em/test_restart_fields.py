"""Restarts of fields: missing causes are found, and a complete model keeps all bits."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from problems import job_table, params_of, problem_of, settings_at

from parallel_et import fit
from parallel_et.em.restart_fields import Residuals, replace_fields, residuals_of, skewed_directions
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.job.job import check_job
from parallel_et.papers.planted import matched_cosines
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source

EXACT = {"scheme": "exact"}
KEPT = {"scheme": "tv", "states": 12, "gamma": 5, "propose": {"toggle": 6, "near": 6, "flip": 6}}


def planted(name, points=1500):
    """Return points of six planted fields of 12 dimensions, and the fields."""
    data = {"source": "planted", "fields": "gauss" if name == "linca" else "sparse", "points": points, "dims": 12}
    source = open_source(check_job({"model": {"name": name, "causes": 6}, "data": data, "inference": EXACT}))
    return source.read(0, points)[:, :12], source.truth()["W"]


def job(name, inference, W, place, **anneal):
    """Return a job that begins with these fields."""
    with h5py.File(place / "start.h5", "w") as file:
        file["W"] = W
    model = {"name": name, "causes": 6, "sigma": 0.2, "pi": 0.2, "learn": ["W", "sigma", "pi"]}
    return {
        "model": {**model, "init": {"W": {"file": str(place / "start.h5")}}},
        "data": {"source": "array:given"},
        "inference": inference,
        "anneal": {"iterations": 40, **anneal},
    }


def lost(name, inference, **anneal):
    """Return a job whose initial fields lose some causes."""
    start = {"mean": 0.0 if name == "linca" else 1.0, "std": 0.3}
    return {
        "model": {"name": name, "causes": 6, "init": {"W": start}},
        "data": {"source": "array:given"},
        "inference": inference,
        "anneal": {"iterations": 40, **anneal},
        "run": {"seed": 2, "checkpoint": {"every": 1}},
    }


@pytest.mark.parametrize("name, inference", [("linca", EXACT), ("nmf", EXACT), ("mca", EXACT), ("nmf", KEPT)])
def test_missing_causes_are_found(name, inference):
    Y, W = planted(name, 1000)
    without, found = (fit(lost(name, inference, **more), Y) for more in ({}, {"renew": 6}))
    assert matched_cosines(W, without.W).min() < 0.95
    assert matched_cosines(W, found.W).min() > 0.98
    assert found.history["renewed_fields"].sum() > 0
    assert found.history["free_energy"][-1] > without.history["free_energy"][-1] + 1


def test_values_that_are_stuck_at_zero_are_released(tmp_path):
    Y, W = planted("mca", 1000)
    held = W.copy()
    held[W.argmax(0), range(6)] = 0.0  # never the largest any more
    without, found = (fit(job("mca", EXACT, held, tmp_path, iterations=20, **more), Y) for more in ({}, {"renew": 4}))
    assert matched_cosines(W, without.W).min() < 0.95
    assert matched_cosines(W, found.W).min() > 0.98


def test_a_dim_cause_that_the_others_hide_is_found(tmp_path):
    rng, (_, W) = np.random.default_rng(5), planted("mca")
    W[:, 0] = 0.0
    W[[2, 7], 0] = 0.3, 0.2
    means = (W * (rng.random((3000, 1, 6)) < 0.2)).max(-1)
    Y, lost = rng.normal(means, 0.1), W.copy()
    lost[:, 0] = W[:, 1]  # one is there twice instead
    without, found = (fit(job("mca", KEPT, lost, tmp_path, **more), Y) for more in ({}, {"renew": 6}))
    assert matched_cosines(W, without.W).min() < 0.95
    assert matched_cosines(W, found.W).min() > 0.95
    assert found.history["renewed_fields"].sum() > 0


def test_a_run_that_breaks_off_after_an_attempt_goes_on_to_the_same_bits(tmp_path):
    Y, _ = planted("nmf", 400)
    job = lost("nmf", KEPT, renew=3, iterations=12)
    expected, attempts = fit(job, Y), [6, 7, 8]

    def broken(params, settings, info):
        if settings.iteration in attempts:
            attempts.remove(settings.iteration)
            raise InterruptedError

    for _ in range(3):
        with pytest.raises(InterruptedError):
            fit(job, Y, output=str(tmp_path / "run"), watch=broken)
    found = fit(job, Y, output=str(tmp_path / "run"), watch=broken)
    assert expected.history["renewed_fields"].sum() > 0
    assert found.metadata["restarts"] == 3
    assert found.W.tobytes() == expected.W.tobytes()
    for name in ("free_energy", "renewed_fields"):
        assert found.history[name].tobytes() == expected.history[name].tobytes()


@pytest.mark.parametrize("name", ["linca", "mca"])
def test_where_nothing_is_missing_nothing_changes(name, tmp_path):
    Y, W = planted(name)
    expected, found = (fit(job(name, KEPT, W, tmp_path, **more), Y) for more in ({}, {"renew": 4}))
    assert found.W.tobytes() == expected.W.tobytes()
    assert found.history["renewed_fields"].tolist() == [0] * 40
    assert "renewed_fields" not in expected.history


def test_fields_are_held_while_the_rest_is_learned(tmp_path):
    Y, W = planted("nmf")
    held, more = (fit(job("nmf", EXACT, 0.8 * W, tmp_path, iterations=n, hold=3), Y) for n in (3, 4))
    assert held.W.tobytes() == (0.8 * W).tobytes()
    assert float(held.params["sigma"]) != 0.2
    assert (more.W != held.W).any()


@pytest.mark.parametrize("size", [100, 3000])
def test_residuals_are_those_of_inference(size, monkeypatch):
    Y, W = planted("linca", 400)
    monkeypatch.setattr("parallel_et.em.restart_fields.MAX_RESIDUAL_VALUES", size * 30)
    problem, _ = problem_of(job_table({"name": "linca", "causes": 6}, EXACT), Y)
    params = params_of(W[:, ::-1], 0.5, 0.3)
    state = problem.initial_state(params)
    left, free_energy = residuals_of(problem, Ranks(), state, settings_at(problem, 0, params))
    tables = Inference(problem.model, problem.scheme, params, ["reconstruction", "means", "evidence"]).block(Y)
    assert free_energy == pytest.approx(tables["evidence"].mean())
    block = problem.shard.block
    some = np.arange(400)[np.arange(400) // block % -(-400 // max(size, block)) == 0]
    assert len(some) == 400 or size < 400
    np.testing.assert_array_equal(left.points, Y[some])
    np.testing.assert_allclose(left.residuals, (Y - tables["reconstruction"])[some], atol=1e-9)
    np.testing.assert_allclose(left.active, tables["means"][some], atol=1e-9)


def test_normal_noise_has_no_skewed_directions_and_a_rare_cause_has_its_own():
    rng = np.random.default_rng(3)
    noise, field = rng.normal(size=(2000, 30)), rng.normal(size=30)
    assert len(skewed_directions(noise, rng, Ranks())[0]) == 0
    directions, skewness, white = skewed_directions(noise + np.outer(rng.random(2000) < 0.1, 3 * field), rng, Ranks())
    found = white.back @ directions[0]
    assert found @ field > 0.97 * np.linalg.norm(found) * np.linalg.norm(field)
    assert skewness[0] == pytest.approx(0.8 / np.sqrt(0.09), rel=0.2)  # (1 - 2 p) / sqrt(p (1 - p))


@pytest.mark.parametrize(
    "model, anneal, words",
    [
        ("gmm", {}, "expected a model with fields W and several active causes per point, found gmm"),
        ("linca", {"batch": 5}, "expected all points in each iteration, found anneal.batch = 5"),
    ],
)
def test_restarts_are_refused_for_unsuitable_models(model, anneal, words):
    inference = {"candidates": 2} | ({} if model == "gmm" else {"gamma": 2})
    table = {"model": {"name": model, "causes": 3}, "data": {"source": "array:given"}, "inference": inference}
    with pytest.raises(UserError, match=f"^anneal.renew: {words}$"):
        fit({**table, "anneal": {"renew": 1, **anneal}}, np.random.default_rng(1).normal(size=(20, 4)))


def test_the_least_used_fields_are_replaced():
    """Sum the use of a ternary cause over its two atoms."""
    ternary = {"file": str(Path(__file__).parents[2] / "examples/ternary.py"), "causes": 20}
    problem, params = problem_of(job_table(ternary, {"candidates": 3, "gamma": 2}), np.ones((4, 5)))
    active = np.full((4, 40), 0.5)
    active[:, [3, 23, 7, 27, 11]] = 0.0  # one of the two atoms of cause 11 is active still
    left, new = Residuals(np.ones((4, 5)), np.ones((4, 5)), active), np.arange(15.0).reshape(5, 3)
    found, count = replace_fields(problem, problem.initial_state(params), 0, left, new)
    assert count == 2
    assert np.flatnonzero((found["W"] != params["W"]).any(0)).tolist() == [3, 7]
    np.testing.assert_array_equal(found["W"][:, [3, 7]], new[:, :2])
    one = replace_fields(problem, problem.initial_state(params), 2, left, new)[1]  # half the number
    assert one == 1
    assert replace_fields(problem, problem.initial_state(params), 0, left, new[:, :0])[1] == 0


@pytest.mark.parametrize(
    "number, gains, count", [(0, (9, 8, 7), 3), (0, (9, 1, 1), 1), (0, (1, 1, 1), 1), (8, (9, 8, 7), 1)]
)
def test_only_fields_with_a_net_gain_are_replaced(number, gains, count):
    problem, params = problem_of(
        job_table({"name": "mca", "causes": 32}, {"candidates": 3, "gamma": 2}), np.ones((4, 5))
    )
    active = np.full((4, 32), 0.9)
    active[:, [5, 9, 30]] = 0.5  # each of them loses 4 log 2
    left, new = Residuals(np.ones((4, 5)), np.ones((4, 5)), active), 1.0 + np.arange(15.0).reshape(5, 3)
    found, replaced = replace_fields(problem, problem.initial_state(params), number, left, new, np.array(gains, float))
    assert replaced == count
    assert np.flatnonzero((found["W"] != params["W"]).any(0)).tolist() == [5, 9, 30][:count]
    np.testing.assert_array_equal(found["W"][:, [5, 9, 30][:count]], new[:, :count])
