import h5py
import numpy as np
import pytest
from problems import random_params

from parallel_et.errors import UserError
from parallel_et.job import check_job
from parallel_et.setup import open_source


def job(path, name="linca", **data):
    return check_job(
        {
            "model": {"name": name, "causes": 3},
            "data": {"source": "model", "points": 20_000, "params": str(path), **data},
            "inference": {"candidates": 3, "gamma": 2},
        }
    )


@pytest.mark.parametrize("name", ["linca", "nmf", "mca"])
def test_points_drawn_from_a_model_have_its_mean(name, tmp_path):
    params = random_params(name, 5, 4, seed=1)
    with h5py.File(tmp_path / "p.h5", "w") as file:
        for key in ("W", "sigma", "pi"):
            file[f"params/{key}"] = getattr(params, key)
    source = open_source(job(tmp_path / "p.h5", name))
    Y = source.read(0, 20_000)
    s = np.array([[(k >> h) & 1 for h in range(4)] for k in range(16)])
    weight = (0.27 ** s.sum(1)) * (0.73 ** (4 - s.sum(1)))
    means = np.array([[max((w * row).max(), 0) for w in params.W] if name == "mca" else params.W @ row for row in s])
    np.testing.assert_allclose(Y.mean(0), weight @ means, atol=0.25)
    np.testing.assert_array_equal(Y[300:900], source.read(300, 900))
    np.testing.assert_array_equal(source.truth()["W"], params.W)


def test_a_file_without_parameters_is_refused(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["other"] = np.ones(3)
    with pytest.raises(UserError, match="expected a group /params, found /other"):
        open_source(job(tmp_path / "p.h5"))
