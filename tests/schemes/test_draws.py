"""A posterior of drawn states and values: comparison with moments in closed form, and learning from the draws."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from problems import iterate, job_table, problem_of
from scipy.stats import multivariate_normal

from parallel_et import fit
from parallel_et.core.types import Settings
from parallel_et.inference.posterior import Inference
from parallel_et.parallel.communicator import Ranks

SLAB = str(Path(__file__).parents[1] / "support/slab_model.py")
SPREAD, D, H = 0.5, 5, 3
SUPPORTS = np.array(list(product((0, 1), repeat=H)))
PARAMS = {
    "W": np.asfortranarray(np.random.default_rng(1).normal(0, 3, (D, H))),
    "sigma": np.array(1.0),
    "pi": np.array(0.4),
}


def points(N):
    rng = np.random.default_rng(2)
    s = (rng.random((N, H)) < 0.4) * rng.normal(1, SPREAD, (N, H))
    return s @ PARAMS["W"].T + rng.normal(0, 1, (N, D))


def table(draws, **more):
    inference = {"file": SLAB, "candidates": H, "gamma": H, "draws": draws}
    return job_table({"file": SLAB, "causes": H, "learn": ["W", "pi"], "sigma": 1.0, **more}, inference)


def moments(y):
    """Return log p(y), the posterior of all supports, <s> and <s s^T>, by the definition of the model."""
    logs, means, squares = [], [], []
    for b in SUPPORTS:
        V = PARAMS["W"] * b * SPREAD**2
        mean, variance = PARAMS["W"] @ b, np.eye(D) + V @ (PARAMS["W"] * b).T
        prior = np.prod(np.where(b, 0.4, 0.6))
        logs.append(np.log(prior) + multivariate_normal.logpdf(y, mean, variance))
        gain = np.linalg.solve(variance, V).T
        s = b + gain @ (y - mean)
        means.append(s)
        squares.append(np.outer(s, s) + np.diag(b) * SPREAD**2 - gain @ V)
    evidence = np.logaddexp.reduce(logs)
    q = np.exp(logs - evidence)
    return evidence, q, q @ np.array(means), np.tensordot(q, squares, 1)


def test_many_draws_have_the_moments_of_the_posterior_and_give_its_m_step():
    Y = points(40)
    found = [moments(y) for y in Y]
    evidence, q, means = (np.array([point[i] for point in found]) for i in range(3))
    problem, _ = problem_of(table(3000), Y)
    new, info = iterate(problem, Ranks(), PARAMS, Settings(0, 1.0, 0.0, len(Y), {}, {}, H))
    assert info.free_energy == pytest.approx(evidence.mean(), rel=1e-12)
    W = np.linalg.solve(sum(point[3] for point in found), means.T @ Y).T
    np.testing.assert_allclose(new["W"], W, atol=0.02)
    assert float(new["pi"]) == pytest.approx((q @ SUPPORTS).mean(), abs=0.005)
    inferred = Inference(problem.model, problem.scheme, PARAMS, ("means", "map", "reconstruction")).block(Y)
    np.testing.assert_allclose(inferred["means"], means, atol=0.05)
    np.testing.assert_allclose(inferred["reconstruction"], means @ PARAMS["W"].T, atol=0.3)
    ahead = np.diff(np.sort(q))[:, -1] > 0.1  # more than random fluctuations
    assert ahead.sum() > 30
    np.testing.assert_array_equal(inferred["map"][ahead], SUPPORTS[q[ahead].argmax(1)])


def test_fields_are_learned_by_a_few_draws():
    anneal = {"iterations": 60, "temperature": [[0.1, 5.0], [0.7, 1.0]]}
    result = fit({**table(20, init={"W": {"rows": "random"}}), "anneal": anneal}, points(500))
    found = np.corrcoef(result.W.T, PARAMS["W"].T)[:H, H:].max(0)
    assert found.min() > 0.99
    assert float(result.params["pi"]) == pytest.approx(0.4, abs=0.02)
