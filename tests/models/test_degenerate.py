"""Unused causes, singular moments, data without noise, cuts without points."""

from types import SimpleNamespace

import numpy as np
import pytest
from brute import log_joint
from problems import iterate, job_table, params_of, problem_of, random_data, random_params, settings_at

from parallel_et import fit
from parallel_et.core.latent_states import states_of_binary
from parallel_et.core.types import Settings, Statistic
from parallel_et.errors import UserError
from parallel_et.models.components.linear import LinearModel
from parallel_et.models.components.noises import sigma_floor
from parallel_et.models.linca import LinCA
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.linear_algebra import LinearAlgebra, Tables

MODELS = ["linca", "nmf", "mca"]
ET = {"candidates": 3, "gamma": 2}


def settings(points, cut=0.0, temperature=1.0, noise=0.0):
    return Settings(0, temperature, cut, points, {"W": noise}, {"rho": 21.0}, 2)


@pytest.mark.parametrize("name, more", [*((name, {}) for name in MODELS), ("nmf", {"mstep": "multiplicative"})])
def test_a_cause_that_is_never_used_keeps_its_field_and_is_counted(name, more):
    params = random_params(name, 6, 4, seed=1)
    Y = random_data(name, 50, params, seed=2)
    W = params["W"].copy()
    W[:, 2] = 1e4  # too large to explain any point
    problem, _ = problem_of(job_table({"name": name, "causes": 4, **more}, {"scheme": "exact"}), Y)
    new, info = iterate(problem, Ranks(), {**params, "W": W}, settings(50))
    np.testing.assert_allclose(new["W"][:, 2], 1e4, rtol=1e-12)
    assert info.unused.tolist() == [False, False, True, False]
    assert np.isfinite(new["W"]).all()


def test_two_causes_that_always_come_together_change_only_their_sum():
    rng = np.random.default_rng(3)
    W = rng.normal(size=(5, 3))
    s = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 1], [1, 1, 0]])
    Y = rng.normal(size=(4, 5))
    WT, solved = LinearAlgebra().solve(W.T, Tables(s.T @ Y, (s.T @ s).astype(float)), 4.0)
    new = WT.T
    assert not solved.any()
    best, *_ = np.linalg.lstsq(np.stack([s[:, 0], s[:, 2]], 1).astype(float), Y, rcond=None)
    np.testing.assert_allclose(new[:, 0] + new[:, 1], best[0], rtol=1e-10)
    np.testing.assert_allclose(new[:, 2], best[1], rtol=1e-10)
    np.testing.assert_allclose(new[:, 0] - new[:, 1], W[:, 0] - W[:, 1], rtol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_sigma_stops_at_its_floor_where_the_model_explains_everything(name):
    params = random_params(name, 6, 3, seed=4)
    rng = np.random.default_rng(5)
    states = (rng.random((60, 3)) < 0.4).astype(float)
    table = job_table({"name": name, "causes": 3, "learn": ["sigma"]}, {"scheme": "exact"})
    problem, _ = problem_of(table, np.ones((60, 6)))
    problem, _ = problem_of(table, problem.model.mean(params, states_of_binary(states)))
    for _ in range(30):
        params, info = iterate(problem, Ranks(), params, settings(60))
        assert np.isfinite(info.free_energy)
    assert float(params["sigma"]) == sigma_floor(problem.summary) == 2.0**-48 * problem.summary.largest


@pytest.mark.parametrize("name", MODELS)
def test_the_squares_of_tiny_data_may_vanish(name):
    Y = 1e-200 * np.random.default_rng(6).random((50, 4))
    problem, params = problem_of(job_table({"name": name, "causes": 3}, ET), Y)
    for _ in range(5):
        params, info = iterate(problem, Ranks(), params, settings(50))
        assert np.isfinite(info.free_energy)
    assert float(params["sigma"]) == 1e-50


@pytest.mark.parametrize("name", MODELS)
def test_without_points_in_the_cut_nothing_changes(name):
    params = random_params(name, 6, 4, seed=6)
    Y = random_data(name, 50, params, seed=7)
    problem, _ = problem_of(job_table({"name": name, "causes": 4}, ET), Y)
    new, info = iterate(problem, Ranks(), params, settings(0, cut=1.0))
    assert info.points_used == 0
    for key in ("W", "sigma", "pi"):
        np.testing.assert_array_equal(new[key], params[key])


@pytest.mark.parametrize("name", MODELS)
def test_data_of_zeros_are_learned_from_without_an_error(name):
    problem, params = problem_of(job_table({"name": name, "causes": 4}, ET), np.zeros((20, 6)))
    for _ in range(3):
        params, info = iterate(problem, Ranks(), params, settings(20))
        assert np.isfinite(params["W"]).all()
        assert np.isfinite(info.free_energy)
        assert float(params["sigma"]) > 0


@pytest.mark.parametrize("name", MODELS)
def test_only_what_is_asked_for_is_learned(name):
    params = random_params(name, 6, 4, seed=8)
    Y = random_data(name, 50, params, seed=9)
    for learn in (["W"], ["sigma"], ["pi"], ["sigma", "pi"], []):
        problem, _ = problem_of(job_table({"name": name, "causes": 4, "learn": learn}, ET), Y)
        new, _ = iterate(problem, Ranks(), params, settings(50, noise=0.1))
        changed = [key for key in ("W", "sigma", "pi") if not np.array_equal(new[key], params[key])]
        assert changed == learn


def test_parameters_that_are_not_finite_end_the_run():
    params = random_params("linca", 6, 4, seed=8)
    problem, _ = problem_of(job_table({"name": "linca", "causes": 4}, ET), random_data("linca", 50, params, seed=9))
    W = params["W"].copy()
    W[0, 0] = np.nan
    with pytest.raises(UserError, match=r"iteration 0: .*expected finite"):
        iterate(problem, Ranks(), {**params, "W": W}, settings(50))


def test_a_pi_under_which_no_point_could_be_cut_is_kept():
    table = job_table({"name": "linca", "causes": 200, "pi": 0.99}, ET, {"iterations": 1, "cut": {"schedule": 0.5}})
    problem, params = problem_of(table, np.random.default_rng(1).normal(size=(40, 6)))
    new, _ = iterate(problem, Ranks(), params, settings_at(problem, 0, params))
    assert float(new["pi"]) == 0.99


@pytest.mark.parametrize("singletons", [False, True])
def test_evidence_keeps_its_digits_where_the_noise_is_next_to_nothing(singletons):
    params = params_of(np.round(random_params("mca", 6, 4, seed=9)["W"], 1), 1e-6, 0.3)
    model = {"name": "mca", "causes": 4, "learn": ["W"]}
    table = job_table(model, {"candidates": 3, "gamma": 3, "singletons": singletons})
    s = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]])
    problem, _ = problem_of(table, np.ones((4, 6)))
    Y = problem.model.mean(params, states_of_binary(s))
    problem, _ = problem_of(table, Y)
    _, info = iterate(problem, Ranks(), params, settings(4))
    logs = [log_joint("mca", params["W"], 1e-6, 0.3, y, state) for y, state in zip(Y, s, strict=True)]
    assert info.free_energy == pytest.approx(np.mean(logs), rel=1e-12)


@pytest.mark.parametrize("name", ["ys", "ss", "yy"])
def test_a_statistic_above_its_bound_is_reported(name, monkeypatch):
    declared = LinearModel.statistics
    wrong = {name: Statistic(declared(LinCA(SimpleNamespace(causes=4, learn=[]), 6), "all")[name].shape, 1e-3)}
    monkeypatch.setattr(LinearModel, "statistics", lambda *args: {**declared(*args), **wrong})
    job = job_table({"name": "linca", "causes": 4}, {"candidates": 3, "gamma": 2})
    with pytest.raises(UserError, match=f"statistic {name}: expected at most"):
        fit(job, np.random.default_rng(1).normal(size=(40, 6)))
