"""Posterior means, reconstructions and most probable states of every model against sums over explicit states."""

from typing import Any, NamedTuple

import brute
import numpy as np
import pytest
from problems import job_table, problem_of, random_data, random_params

from parallel_et.core.scheme import Context
from parallel_et.core.types import Block, Params
from parallel_et.em.e_step import inference_context
from parallel_et.em.problem import Problem
from parallel_et.kernels.rows import pad_rows

N, D, H = 29, 7, 6


class Inferred(NamedTuple):
    """The posterior of a block."""

    problem: Problem
    params: Params
    step: Context
    block: Block
    posterior: Any

    def best(self):
        return self.step.evaluator.observe(self.block).best(self.posterior)

    def reconstruct(self):
        return self.step.evaluator.observe(self.block).reconstruct(self.posterior)


def posterior_of(name, params, Y, **inference):
    problem, _ = problem_of(job_table({"name": name, "causes": params["W"].shape[1]}, inference), Y)
    step, block = inference_context(problem.model, problem.scheme, params), Block(pad_rows(Y), Y.shape[1], 0)
    posterior, _ = problem.scheme.infer(step, block, {})
    return Inferred(problem, params, step, block, posterior)


@pytest.mark.parametrize("name", ["linca", "nmf", "mca", "mca poisson", "nmf poisson"])
@pytest.mark.parametrize(
    "count, gamma, singletons", [(3, 1, True), (3, 2, False), (4, 3, True), (6, 2, True), (6, 6, False)]
)
def test_means_reconstructions_and_best_states_equal_brute_force(name, count, gamma, singletons):
    params = random_params(name, D, H, seed=count)
    Y = random_data(name, N, params, seed=gamma)
    found = posterior_of(name, params, Y, candidates=count, gamma=gamma, singletons=singletons)
    means, mean_y, best = found.posterior.means(H), found.reconstruct(), found.best()
    assert (means.shape, mean_y.shape, best.shape, best.dtype) == ((N, H), (N, D), (N, gamma), np.int32)
    for n, y in enumerate(Y):
        sigma, pi = float(params.get("sigma", np.nan)), float(params["pi"])
        known = brute.considered(name, params["W"], sigma, pi, y, count, gamma, singletons)
        q, _ = brute.posterior(name, params["W"], sigma, pi, y, known, 1.0)
        np.testing.assert_allclose(means[n], q @ known, rtol=1e-10, atol=1e-14)
        expected = sum(p * brute.mean(name, params["W"], s) for p, s in zip(q, known, strict=True))
        np.testing.assert_allclose(mean_y[n], expected, rtol=1e-10, atol=1e-10)
        true = np.flatnonzero(known[np.argmax(q)]).tolist()
        assert best[n].tolist() == true + [-1] * (gamma - len(true))


@pytest.mark.parametrize("name", ["linca", "nmf", "mca", "mca poisson", "nmf poisson"])
def test_of_equal_states_the_first_is_the_best(name):
    params = random_params(name, D, H, seed=1)
    params["W"][:, 4] = params["W"][:, 2]
    Y = np.tile(params["W"][:, 2], (11, 1))
    for singletons in (False, True):
        assert (posterior_of(name, params, Y, candidates=6, gamma=2, singletons=singletons).best() == [2, -1]).all()


@pytest.mark.parametrize("name, scale", [("linca", 3.0), ("nmf", 0.1), ("mca", 0.1), ("mca poisson", 0.1)])
def test_a_single_cause_outside_the_candidates_can_be_the_best(name, scale):
    params = random_params(name, D, H, seed=1)
    rng = np.random.default_rng(3)
    params["W"][:, 1] = scale * (params["W"][:, 3] + rng.random(D) * 0.1)  # selection mistakes this field for the other
    Y = np.maximum(params["W"][:, 3] + rng.normal(0, 0.3, (N, D)), 0.0 if name.endswith("poisson") else -np.inf)
    found = posterior_of(name, params, Y, candidates=1, gamma=1, singletons=True)
    best, candidates = found.best(), found.posterior.candidates
    outside = candidates[:, 0] != 3
    assert outside.sum() > 5
    assert (best[outside] == 3).all()


@pytest.mark.parametrize("name", ["nmf", "mca", "nmf poisson", "mca poisson"])
def test_candidates_do_not_depend_on_the_numbers_of_causes(name):
    """Use points that lie above most fields, which then tie."""
    rng = np.random.default_rng(5)
    params, order = random_params(name, D, H, seed=1), rng.permutation(H)
    params["W"] *= 0.2
    Y = 6.0 + rng.poisson(3.0, (N, D))
    other = {**params, "W": np.asfortranarray(params["W"][:, order])}
    found, permuted = (posterior_of(name, one, Y, candidates=2, gamma=2, singletons=False) for one in (params, other))
    np.testing.assert_array_equal(found.posterior.candidates, np.sort(order[permuted.posterior.candidates], 1))
    np.testing.assert_allclose(found.posterior.evidence, permuted.posterior.evidence, rtol=1e-12)
    sigma, pi = float(params.get("sigma", np.nan)), float(params["pi"])
    expected = [brute.candidates(name, params["W"], sigma, pi, y, 2) for y in Y]
    assert found.posterior.candidates.tolist() == expected


@pytest.mark.parametrize("name", ["linca", "nmf"])
def test_an_equal_cause_outside_the_candidates_is_not_better(name):
    params = random_params(name, D, H, seed=1)
    params["W"][:, 4] = params["W"][:, 2]
    Y = params["W"][:, 2] + np.random.default_rng(2).normal(0, 0.01, (50, D))
    found = posterior_of(name, params, Y, candidates=1, gamma=1, singletons=True)
    assert (found.best() == found.posterior.candidates).all()
