"""Default initial values follow from the data, whatever their scale."""

import numpy as np
import pytest
from problems import job_table, problem_of, random_data, random_params

from parallel_et import fit
from parallel_et.job.job import check_job

JOB = {
    "model": {"name": "linca", "causes": 5},
    "data": {"source": "array:given"},
    "inference": {"candidates": 4, "gamma": 3},
    "anneal": {"iterations": 15},
}


@pytest.mark.parametrize("offset", [0.0, 3.0, 1e6])
@pytest.mark.parametrize("causes, pi", [(4, 0.25), (8, 0.25), (10, 0.2), (100, 0.02)])
def test_sigma_begins_with_the_spread_and_pi_with_two_causes_a_point(offset, causes, pi):
    Y = np.random.default_rng(1).normal(size=(300, 7)) * np.arange(1, 8) + offset * np.arange(7)
    problem, params = problem_of({**JOB, "model": {"name": "linca", "causes": causes}}, Y)
    spread = np.sqrt(Y.var(0).mean())
    assert abs(problem.summary.spread / spread - 1) < 1e-9
    assert abs(problem.summary.offset - np.sqrt((Y.mean(0) ** 2).mean())) <= 1e-9 * (1 + offset)
    assert (float(params["sigma"]), float(params["pi"])) == (pytest.approx(spread), pi)


@pytest.mark.parametrize("name", ["linca", "nmf", "mca"])
def test_a_short_job_learns_the_same_at_any_scale(name):
    Y = random_data(name, 400, random_params(name, 9, 5, seed=3), seed=4)
    small, large = (fit({**JOB, "model": {"name": name, "causes": 5}}, scale * Y) for scale in (2.0**-10, 2.0**10))
    np.testing.assert_allclose(2.0**20 * small.W, large.W, rtol=1e-6)
    np.testing.assert_allclose(2.0**20 * small.params["sigma"], large.params["sigma"], rtol=1e-6)
    assert small.history["free_energy"][-1] > small.history["free_energy"][0] + 1


@pytest.mark.parametrize(
    "given, learn",
    [
        ({}, ["W", "sigma", "pi"]),
        ({"sigma": 2.0}, ["W", "pi"]),
        ({"sigma": 2.0, "pi": 0.2}, ["W"]),
        ({"sigma": 2.0, "learn": ["sigma"]}, ["sigma"]),
        ({"init": {"sigma": 2.0}}, ["W", "sigma", "pi"]),
    ],
)
def test_parameters_without_a_number_in_the_job_are_learned(given, learn):
    job = check_job({**JOB, "model": {"name": "nmf", "causes": 5, **given}})
    assert job.model.learn == learn
    assert job.resolved()["model"]["learn"] == learn


def test_parameters_may_begin_evenly_spread():
    start = {"W": {"low": -1.0, "high": 3.0}}
    table = job_table({"name": "linca", "causes": 40, "init": start}, {"candidates": 2, "gamma": 1})
    _, params = problem_of(table, np.random.default_rng(1).random((30, 50)))
    W = np.sort(params["W"].ravel())
    np.testing.assert_allclose(W, np.linspace(-1, 3, W.size), atol=0.2)
