"""Truncation compared with exact inference, and the cache of posteriors between two passes."""

import numpy as np
import pytest
from problems import iterate, job_table, problem_of, random_data, random_params

from parallel_et.core.types import Settings
from parallel_et.em import e_step
from parallel_et.em.e_step import EStep
from parallel_et.parallel.communicator import Ranks

ET = {"candidates": 4, "gamma": 2}


@pytest.mark.parametrize("name", ["linca", "nmf", "mca"])
def test_truncation_with_everything_considered_is_exact(name):
    params = random_params(name, 8, 6, seed=1)
    Y = random_data(name, 70, params, seed=2)
    settings = Settings(0, 2.0, 0.0, 70, {}, {"rho": 2.0}, 6)
    found = []
    for scheme in ({"scheme": "exact"}, {"candidates": 6, "gamma": 6, "singletons": True}):
        problem, _ = problem_of(job_table({"name": name, "causes": 6}, scheme), Y)
        new, info = iterate(problem, Ranks(), params, settings)
        found.append((new["W"], new["sigma"], new["pi"], info.free_energy))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("name", ["linca", "mca"])
def test_posteriors_that_do_not_fit_in_memory_are_recomputed_to_the_same_bits(name, monkeypatch):
    params = random_params(name, 8, 6, seed=3)
    Y = random_data(name, 400, params, seed=4)
    problem, _ = problem_of(job_table({"name": name, "causes": 6}, {"candidates": 4, "gamma": 2}), Y)
    settings = Settings(0, 2.0, 1.0, 300, {}, {"rho": 2.0}, 2)
    whole, _ = iterate(problem, Ranks(), params, settings)
    small = 9000 - Y.nbytes // e_step.POSTERIOR_CACHE_DIVISOR
    monkeypatch.setattr(e_step, "POSTERIOR_CACHE_BYTES", small)
    part, _ = iterate(problem, Ranks(), params, settings)
    assert all(whole[key].tobytes() == part[key].tobytes() for key in ("W", "sigma", "pi"))


@pytest.mark.parametrize("read_only, calls", [(True, 3), (False, 6)])
def test_a_posterior_is_cached_only_if_it_is_needed_again(read_only, calls, monkeypatch):
    params = random_params("linca", 8, 6, seed=3)
    Y = random_data("linca", 40, params, seed=4)
    problem, _ = problem_of(
        job_table({"name": "linca", "causes": 6}, {**ET, "singletons": True}) | {"run": {"seed": 1, "block": 16}}, Y
    )
    infer, asked = type(problem.scheme).infer, []
    monkeypatch.setattr(type(problem.scheme), "infer", lambda *args: asked.append(1) or infer(*args))
    settings = Settings(0, 1.0, 0.0, 40, {}, {}, 2)
    step = EStep(problem, Ranks(), problem.initial_state(params), settings, read_only)
    for _ in range(2):
        step.visit(lambda *shown: None)
    assert len(asked) == calls
    assert np.isfinite(step.evidence).all()
