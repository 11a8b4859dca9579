"""Fields that begin by third moments: against sums over all triples, and against fields that were planted."""

import numpy as np
import pytest
from problems import problem_of

from parallel_et import fit
from parallel_et.em.third_moments import cumulant_weights, third_moments, unit_rows, whitening
from parallel_et.job.job import check_job
from parallel_et.papers.planted import matched_cosines
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source


def table(name, causes, points, seed, fields="sparse", **model):
    return {
        "model": {"name": name, "causes": causes, "init": {"W": {"moments": "third"}}, **model},
        "data": {"source": "planted", "fields": fields, "points": points, "dims": 12, "seed": seed},
        "inference": {"scheme": "exact"},
        "anneal": {"iterations": 20},
        "run": {"seed": seed},
    }


def points_of(job):
    source = open_source(check_job(job))
    return source.read(0, source.points)[:, : source.dims], source.truth()["W"]


def test_whitened_data_and_their_third_moments_are_those_of_all_triples():
    rng = np.random.default_rng(1)
    Y = rng.gamma(1.0, 2.0, (300, 6)) @ rng.normal(size=(6, 6)) + 5.0
    problem, _ = problem_of({**table("linca", 4, 300, 1), "data": {"source": "array:given"}}, Y)
    white = whitening(problem, Ranks())
    Z = (Y - Y.mean(0)) @ white.forward
    np.testing.assert_allclose(Z.T @ Z / 300, np.eye(4), atol=1e-12)
    widest = np.linalg.svd(Y - Y.mean(0))[2][:4]
    np.testing.assert_allclose(Z @ white.back.T, (Y - Y.mean(0)) @ widest.T @ widest, atol=1e-9)
    U = unit_rows(rng.normal(size=(5, 4)))
    cumulant = np.einsum("ni,nj,nk->ijk", Z, Z, Z) / 300
    expected = np.einsum("ijk,mi,mj->mk", cumulant, U, U)
    np.testing.assert_allclose(third_moments(problem, Ranks(), white)(U), expected, rtol=1e-9, atol=1e-12)


def test_weights_are_those_of_the_terms_that_a_cumulant_is_made_of():
    rng = np.random.default_rng(2)
    V, w = unit_rows(rng.normal(size=(6, 5))), rng.uniform(0.5, 2.0, 6)  # more than dimensions
    cumulant = np.einsum("h,hi,hj,hk->ijk", w, V, V, V)
    np.testing.assert_allclose(cumulant_weights(V, np.einsum("ijk,mi,mj->mk", cumulant, V, V)), w, rtol=1e-9)


@pytest.mark.parametrize(
    "name, fields, causes",
    [("linca", "gauss", 6), ("linca", "gauss", 12), ("linca", "gauss", 14), ("nmf", "sparse", 6)],
)
def test_planted_fields_of_causes_that_add_up_are_there_at_the_start(name, fields, causes):
    job = {**table(name, causes, 6000, 3, fields), "inference": {"candidates": 4, "gamma": 3}}
    Y, W = points_of(job)
    _, params = problem_of({**job, "data": {"source": "array:given"}}, Y)
    assert matched_cosines(W, params["W"]).min() > 0.95
    lengths = np.linalg.norm(params["W"], axis=0).mean() / np.linalg.norm(W, axis=0).mean()
    assert lengths == pytest.approx(1.0, abs=0.1)
    assert float(params["pi"]) == pytest.approx(0.2, abs=0.05)
    assert float(params["sigma"]) == pytest.approx(0.25 * np.sqrt(Y.var(0).mean()))


def test_sigma_and_pi_of_the_job_take_precedence():
    job = table("mca", 4, 500, 4, sigma=0.7, init={"W": {"moments": "third"}, "pi": 0.1})
    Y, _ = points_of(job)
    _, params = problem_of({**job, "data": {"source": "array:given"}}, Y)
    assert (float(params["sigma"]), float(params["pi"])) == (0.7, 0.1)
    assert params["W"].min() == 0.0  # within the limits of the model


@pytest.mark.parametrize("Y", [np.ones((50, 5)), np.arange(5.0)[None], np.zeros((3, 5))], ids=["same", "one", "zero"])
def test_data_that_tell_nothing_leave_the_usual_start(Y):
    usual = {**table("nmf", 4, 1, 5), "data": {"source": "array:given"}}
    _, found = problem_of(usual, Y)
    _, expected = problem_of({**usual, "model": {"name": "nmf", "causes": 4}}, Y)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_centres_of_clusters_that_are_far_apart_are_there_at_the_start():
    data = {"source": "clusters", "points": 3000, "clusters": 5, "dims": 8, "apart": 5.0}
    job = {**table("gmm", 5, 1, 6), "data": data}
    Y, centres = points_of(job)
    _, params = problem_of({**job, "data": {"source": "array:given"}}, Y)
    gaps = np.linalg.norm(params["W"][:, :, None] - centres[:, None], axis=0)
    assert sorted(gaps.argmin(0)) == list(range(5))
    assert gaps.min(0).max() < 2.0


@pytest.mark.parametrize("name, fields", [("linca", "gauss"), ("nmf", "sparse"), ("mca", "sparse")])
def test_planted_fields_are_found(name, fields):
    job = table(name, 6, 2000, 7, fields)
    Y, W = points_of(job)
    found = fit(job, Y)
    assert matched_cosines(W, found.W).min() > 0.99
    assert float(found.params["sigma"]) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("name", ["nmf", "mca"])
def test_a_model_without_sigma_begins_with_pi_alone(name):
    Y = np.random.default_rng(1).poisson(3.0 * points_of(table("nmf", 4, 2000, 8))[0].clip(0)).astype(float)
    job = {**table(name, 4, 1, 8, noise="poisson"), "data": {"source": "array:given"}}
    _, params = problem_of(job, Y)
    assert set(params) == {"W", "pi"}
    assert float(params["pi"]) == pytest.approx(0.2, abs=0.1)


def test_planted_fields_are_matched_with_different_learned_fields():
    planted, learned = np.eye(3), np.array([[1.0, 1.0, 0.0], [0.1, 0.0, 1.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(matched_cosines(planted, 5 * learned), [1 / np.hypot(1, 0), 1.0, 0.0], atol=0.01)
