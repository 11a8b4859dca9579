"""Truncation against exact inference, and what is remembered between two looks at a block."""

import numpy as np
import pytest
from problems import job_table, problem_of, random_data, random_params

from parallel_et.core import expectation
from parallel_et.core.contract import Knobs
from parallel_et.core.em import iterate
from parallel_et.core.expectation import Expectation
from parallel_et.parallel.ranks import Ranks

ET = {"candidates": 4, "gamma": 2}


@pytest.mark.parametrize("name", ["linca", "nmf", "mca"])
def test_truncation_with_everything_considered_is_exact(name):
    params = random_params(name, 8, 6, seed=1)
    Y = random_data(name, 70, params, seed=2)
    knobs = Knobs(0, 2.0, 0.0, 70, {}, {"rho": 2.0}, 6)
    found = []
    for scheme in ({"scheme": "exact"}, {"candidates": 6, "gamma": 6, "singletons": True}):
        problem, _ = problem_of(job_table({"name": name, "causes": 6}, scheme), Y)
        new, info = iterate(problem, Ranks(), params, knobs)
        found.append((new["W"], new["sigma"], new["pi"], info.free_energy))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("name", ["linca", "mca"])
def test_what_does_not_fit_in_memory_is_computed_again_to_the_same_bits(name, monkeypatch):
    params = random_params(name, 8, 6, seed=3)
    Y = random_data(name, 400, params, seed=4)
    problem, _ = problem_of(job_table({"name": name, "causes": 6}, {"candidates": 4, "gamma": 2}), Y)
    knobs = Knobs(0, 2.0, 1.0, 300, {}, {"rho": 2.0}, 2)
    whole, _ = iterate(problem, Ranks(), params, knobs)
    monkeypatch.setattr(expectation, "ROOM", -Y.nbytes // expectation.SHARE + 9000)
    part, _ = iterate(problem, Ranks(), params, knobs)
    assert all(whole[key].tobytes() == part[key].tobytes() for key in ("W", "sigma", "pi"))


@pytest.mark.parametrize("again, calls", [(True, 3), (False, 6)])
def test_a_posterior_is_computed_once_if_there_is_room_and_not_kept_if_not_needed(again, calls, monkeypatch):
    params = random_params("linca", 8, 6, seed=3)
    problem, _ = problem_of(job_table({"name": "linca", "causes": 6}, ET), random_data("linca", 40, params, seed=4))
    infer, asked = type(problem.scheme).infer, []
    monkeypatch.setattr(type(problem.scheme), "infer", lambda *args: asked.append(1) or infer(*args))
    e_step = Expectation(problem, params, Knobs(0, 1.0, 0.0, 40, {}, {}, 2), again)
    for _ in range(2):
        e_step.visit()
    assert len(asked) == calls
    assert np.isfinite(e_step.evidence).all()
