import h5py
import numpy as np
import pytest
from damaged_results import put, small_result
from problems import random_params

from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.runs.setup import given_arrays, model_of, open_source


def job(path, name="linca", **data):
    return check_job(
        {
            "model": {"name": name, "causes": 3},
            "data": {"source": "model", "points": 20_000, "params": str(path), **data},
            "inference": {"candidates": 3, "gamma": 2},
        }
    )


@pytest.mark.parametrize("name", ["linca", "nmf", "mca", "mca poisson", "nmf poisson"])
def test_points_drawn_from_a_model_have_its_mean(name, tmp_path):
    params = random_params(name, 5, 4, seed=1)
    with h5py.File(tmp_path / "p.h5", "w") as file:
        for key in params:
            file[f"params/{key}"] = params[key]
    source = open_source(job(tmp_path / "p.h5", name.split()[0]))
    Y = source.read(0, 20_000)
    s = np.array([[(k >> h) & 1 for h in range(4)] for k in range(16)])
    weight = (0.27 ** s.sum(1)) * (0.73 ** (4 - s.sum(1)))
    means = np.array(
        [[max((w * row).max(), 0) for w in params["W"]] if name.startswith("mca") else params["W"] @ row for row in s]
    )
    np.testing.assert_allclose(Y.mean(0), weight @ means, atol=0.25)
    np.testing.assert_array_equal(Y[300:900], source.read(300, 900))
    np.testing.assert_array_equal(source.truth()["W"], params["W"])


def test_a_file_without_parameters_is_refused(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["other"] = np.ones(3)
    with pytest.raises(UserError, match="expected a group /params, found /other"):
        open_source(job(tmp_path / "p.h5"))


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("params/W", None, "/params/W: expected dimensions x causes, found nothing there"),
        (
            "params/W",
            np.full((4, 3), np.nan),
            "/params/W: expected finite numbers of 0 or more and up to 1e+150, found",
        ),
        ("params/W", -np.ones((4, 3)), "/params/W: expected finite numbers of 0 or more and up to 1e+150, found -1"),
        ("params/W", np.ones((0, 3)), "/params/W: expected dimensions x causes, found the shape (0, 3)"),
        ("params/W", np.ones(3), "/params/W: expected dimensions x causes, found the shape (3,)"),
        ("params/sigma", -1.0, "/params/sigma: expected finite numbers of 0 or more and up to 1e+50, found -1"),
        ("params/sigma", [1.0], "/params/sigma: expected the shape a single number, found 1"),
        ("params/pi", 2.0, "/params/pi: expected finite numbers of 1e-09 or more and up to 1, found 2"),
        ("params/pi", np.nan, "/params/pi: expected finite numbers of 1e-09 or more and up to 1, found nan"),
    ],
)
def test_parameters_that_cannot_be_are_refused(tmp_path, name, value, line):
    path = tmp_path / "p.h5"
    with h5py.File(path, "w") as file:
        file["params/W"], file["params/sigma"], file["params/pi"] = np.ones((4, 3)), 0.0, 0.5
    assert open_source(job(path, "nmf")).dims == 4
    with h5py.File(path, "r+") as file:
        put(name, value)(file)
    with pytest.raises(UserError) as error:
        open_source(job(path, "nmf"))
    assert str(error.value).startswith(f"{path}: {line}")


def test_parameters_of_a_damaged_result_are_refused_wherever_they_are_used(tmp_path):
    path = tmp_path / "result.h5"
    small_result().write(path)
    table = job(path).resolved()
    table["model"]["init"] = {"W": {"file": str(path), "dataset": "params/W"}}
    begun = check_job(table)
    model, _ = model_of(begun, 4)
    assert open_source(begun).dims == 4
    assert given_arrays(begun, model)["W"].shape == (4, 3)
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)
    for use in (lambda: open_source(begun), lambda: given_arrays(begun, model)):
        with pytest.raises(UserError, match="found a damaged one: its checksum is wrong"):
            use()


def test_scenes_drawn_from_masks_and_features_are_those_of_their_ordered_states(tmp_path):
    rng = np.random.default_rng(4)
    params = {"W": rng.random((4, 3)), "T": rng.random((2, 3)), "sigma": 0.0, "pi": 0.6}
    with h5py.File(tmp_path / "p.h5", "w") as file:
        for key, value in params.items():
            file[f"params/{key}"] = value
    source = open_source(job(tmp_path / "p.h5", "oca", points=200))
    assert (source.dims, source.model.channels) == (8, 2)
    points, places = source.group(0)
    for y, place in zip(points[:50], places[:50], strict=True):
        order = np.argsort(place)[(place == 0).sum() :]  # from the farthest to the nearest
        near = {h: 1.5 if len(order) == 1 else 1 + k / (len(order) - 1) for k, h in enumerate(order)}
        shown = [max(near, key=lambda h, d=d: near[h] * params["W"][d, h], default=None) for d in range(4)]
        clean = [np.zeros(2) if h is None else params["W"][d, h] * params["T"][:, h] for d, h in enumerate(shown)]
        np.testing.assert_allclose(y, np.concatenate(clean))
    assert places.max() == 3
    with h5py.File(tmp_path / "p.h5", "a") as file:
        del file["params/T"]
    with pytest.raises(UserError, match="/params/T: expected"):
        open_source(job(tmp_path / "p.h5", "oca"))
