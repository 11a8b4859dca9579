import resource

import h5py
import numpy as np
import pytest

from parallel_et.errors import UserError
from parallel_et.io.result import Result, load
from parallel_et.io.whole import write_whole


def result():
    return Result(
        {"W": np.arange(6.0).reshape(3, 2), "sigma": np.array(2.0)},
        {"free_energy": np.arange(4.0), "seconds/cut": np.zeros(4)},
        {"W": np.zeros((2, 3, 2)), "iteration": np.array([2, 4])},
        {"W": np.ones((3, 2))},
        {"job": "[model]", "seed": 3},
    )


def test_a_result_reads_back_as_it_was_written(tmp_path):
    write_whole(tmp_path / "result.h5", result().image())
    for place in (tmp_path, tmp_path / "result.h5"):
        again = load(place)
        np.testing.assert_array_equal(again.W, result().W)
        assert set(again.history) == {"free_energy", "seconds/cut"}
        assert again.snapshots["iteration"].tolist() == [2, 4]
        assert again.about["seed"] == 3
        assert float(again.params["sigma"]) == 2.0


def test_a_result_is_there_as_a_whole_or_not_at_all(tmp_path):
    write_whole(tmp_path / "result.h5", result().image())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # as on a disk that is full
    try:
        with pytest.raises(OSError):
            write_whole(tmp_path / "result.h5", Result({"W": np.zeros((3, 2))}, {}).image())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    np.testing.assert_array_equal(load(tmp_path).W, result().W)
    assert [path.name for path in tmp_path.iterdir()] == ["result.h5"]


def test_another_file_is_not_taken_for_a_result(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = 1
    with pytest.raises(UserError, match="expected the result of a run"):
        load(tmp_path / "x.h5")
    with pytest.raises(UserError, match="found nothing there"):
        load(tmp_path / "y.h5")
