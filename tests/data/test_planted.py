"""Planted fields: drawn fields and points have the requested distribution."""

import numpy as np
import pytest

from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.runs.setup import open_source

JOB = {"model": {"name": "nmf", "causes": 8}, "inference": {"scheme": "exact"}}
DATA = {"source": "planted", "fields": "sparse", "points": 4000}


def source_of(run_seed, **data):
    return open_source(check_job({**JOB, "data": {**DATA, **data}, "run": {"seed": run_seed}}))


def test_points_are_sums_of_sparse_fields_with_noise():
    source = source_of(3)
    W, points = source.truth()["W"], source.read(0, 256)[:, :30]
    assert W.shape == (30, 8)
    assert W.min() == 0
    assert (W > 0).mean() == pytest.approx(0.3, abs=0.1)
    rows, states = source.group(0)
    np.testing.assert_array_equal(points, rows)
    assert np.std(rows - states @ W.T) == pytest.approx(0.1, rel=0.05)
    assert states.mean() == pytest.approx(0.2, abs=0.05)


def test_another_seed_plants_other_fields():
    assert not np.array_equal(source_of(3).truth()["W"], source_of(4).truth()["W"])
    np.testing.assert_array_equal(source_of(3, seed=4).truth()["W"], source_of(4).truth()["W"])
    assert source_of(3, fields="gauss").truth()["W"].min() < 0


@pytest.mark.parametrize("model", [{"name": "gmm"}, {"name": "nmf", "noise": "poisson"}], ids=["gmm", "poisson"])
def test_models_of_other_parameters_are_refused_in_one_line(model):
    job = {"model": {**model, "causes": 2}, "data": DATA, "inference": {"scheme": "exact"}}
    with pytest.raises(UserError, match=r'^data.source: "planted": expected a model with W, sigma and pi alone, found'):
        open_source(check_job(job))
