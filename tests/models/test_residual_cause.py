"""The search for a missing cause under a maximum finds the cause, also if other causes have learned a part of it."""

import numpy as np
import pytest
from scipy.stats import norm, poisson

from parallel_et.models.components import residual_cause
from parallel_et.models.components.noises import Gauss, Poisson

SIGMA, PI, D, N = 0.1, 0.2, 12, 3000
PARAMS = {"sigma": np.array(SIGMA), "pi": np.array(PI)}


def explained(rng, scale=1.0):
    """Return the means of points under the other causes, (N, D). A third of the values is zero."""
    return scale * np.abs(rng.normal(size=(N, D))) * (rng.random((N, D)) < 2 / 3)


def some_field(*values):
    """Return a field with these values, followed by zeros."""
    return np.array([*values, *np.zeros(D - len(values))])


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize("kind", ["gauss", "poisson"])
def test_the_gain_of_a_cause_is_the_log_ratio_of_likelihoods(kind, monkeypatch):
    monkeypatch.setattr(residual_cause, "EM_ITERATIONS", 0)
    rng = np.random.default_rng(1)
    means, field = 1 + explained(rng), some_field(1.5, 2.0, 0.5)
    if kind == "gauss":
        noise, points = Gauss(), rng.normal(means, SIGMA)
        likelihoods = [norm.pdf(points, m, SIGMA).prod(1) for m in (means, np.maximum(means, field))]
    else:
        noise, points = Poisson(), rng.poisson(means).astype(float)
        likelihoods = [poisson.pmf(points, m).prod(1) for m in (means, np.maximum(means, field))]
    expected = np.log((1 - PI) + PI * likelihoods[1] / likelihoods[0]).sum()
    assert residual_cause.learn_residual_cause(noise, PARAMS, field, points, means)[1] == pytest.approx(expected)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("kind, values", [("gauss", (0.4, 0.25)), ("gauss", (1.5, 1.0, 0.8)), ("poisson", (9.0, 5.0))])
def test_a_missing_cause_is_found_even_if_other_causes_have_learned_a_part_of_it(kind, values, hidden):
    rng = np.random.default_rng(2)
    field, active = some_field(*values), rng.random((N, 1)) < PI
    truth = explained(rng, 10 if kind == "poisson" else 1)
    means = np.maximum(truth, active * field)
    points = rng.normal(means, SIGMA) if kind == "gauss" else rng.poisson(means).astype(float)
    noise = Gauss() if kind == "gauss" else Poisson()
    without = np.where(truth < PI * field, PI * field, truth) if hidden else truth
    found, _ = residual_cause.fields_of_residual(noise, PARAMS, np.empty((D, 0)), points, points - without)
    assert cosine(found[:, 0], field) > 0.97


@pytest.mark.parametrize("kind", ["gauss", "poisson"])
def test_noise_leads_to_no_new_field(kind):
    rng = np.random.default_rng(3)
    means = explained(rng, 10 if kind == "poisson" else 1)
    points = rng.normal(means, SIGMA) if kind == "gauss" else rng.poisson(means).astype(float)
    noise = Gauss() if kind == "gauss" else Poisson()
    before = some_field(1.0)[:, None]
    fields, gains = residual_cause.fields_of_residual(noise, PARAMS, before, points, points - means)
    assert fields is before
    assert gains is None


def test_no_field_is_found_twice_and_the_largest_gain_comes_first():
    rng = np.random.default_rng(4)
    fields = np.stack([some_field(0.5, 0.3), np.roll(some_field(2.0, 1.0), 6)])
    truth = explained(rng)
    means = np.maximum(truth, ((rng.random((N, 2)) < PI)[:, :, None] * fields).max(1))
    points = rng.normal(means, SIGMA)
    found, gains = residual_cause.fields_of_residual(Gauss(), PARAMS, fields.T[:, :1], points, points - truth)
    assert cosine(found[:, 0], fields[1]) > 0.99
    assert (np.diff(gains) <= 0).all()
    unit = found / np.linalg.norm(found, axis=0)
    assert (unit.T @ unit - 2 * np.eye(found.shape[1])).max() < residual_cause.SAME_FIELD_COSINE
