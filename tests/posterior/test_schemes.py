"""Truncation against exact inference, and what is remembered between two looks at a block."""

import numpy as np
import pytest
from problems import job_table, problem_of, random_data, random_params

from parallel_et.em import iterate
from parallel_et.models.base import Knobs
from parallel_et.parallel.ranks import Ranks
from parallel_et.posterior import memory
from parallel_et.posterior.memory import Posteriors


@pytest.mark.parametrize("name", ["linca", "nmf", "mca"])
def test_truncation_with_everything_considered_is_exact(name):
    params = random_params(name, 8, 6, seed=1)
    Y = random_data(name, 70, params, seed=2)
    knobs = Knobs(0, 2.0, 0.0, 70, {}, {"rho": 2.0})
    found = []
    for scheme in ({"scheme": "exact"}, {"candidates": 6, "gamma": 6, "singletons": True}):
        problem, _ = problem_of(job_table({"name": name, "causes": 6}, scheme), Y)
        new, info = iterate(problem, Ranks(), params, knobs)
        found.append((new.W, new.sigma, new.pi, info.free_energy))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("name", ["linca", "mca"])
def test_what_does_not_fit_in_memory_is_computed_again_to_the_same_bits(name, monkeypatch):
    params = random_params(name, 8, 6, seed=3)
    Y = random_data(name, 400, params, seed=4)
    problem, _ = problem_of(job_table({"name": name, "causes": 6}, {"candidates": 4, "gamma": 2}), Y)
    knobs = Knobs(0, 2.0, 1.0, 300, {}, {"rho": 2.0})
    whole, _ = iterate(problem, Ranks(), params, knobs)
    monkeypatch.setattr(memory, "ROOM", -Y.nbytes // 5 + 9000)
    part, _ = iterate(problem, Ranks(), params, knobs)
    assert all(getattr(whole, key).tobytes() == getattr(part, key).tobytes() for key in ("W", "sigma", "pi"))


def test_a_posterior_is_computed_once_if_there_is_room_and_not_kept_if_not_needed():
    class Fake:
        nbytes = 100
        evidence = np.zeros(16)

    calls = []
    blocks = [slice(0, 16), slice(16, 32)]

    def infer():
        calls.append(1)
        return Fake()

    kept = Posteriors(32, 0, again=True)
    assert kept.of(blocks[0], infer) is kept.of(blocks[0], infer)
    assert np.isnan(kept.evidence).sum() == 16
    kept.of(blocks[1], infer)
    assert len(calls) == 2
    assert not np.isnan(kept.evidence).any()
    passing = Posteriors(32, 0, again=False)
    assert passing.of(blocks[0], infer) is not passing.of(blocks[0], infer)
    assert len(calls) == 4
