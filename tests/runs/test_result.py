import resource
import tracemalloc
from dataclasses import replace

import h5py
import numpy as np
import pytest
from damaged_results import change, put, small_result

from parallel_et.errors import UserError
from parallel_et.runs.checkpoints import read
from parallel_et.runs.result import load
from parallel_et.storage.checksum import TRAILER_BYTES


@pytest.fixture(scope="module")
def result():
    return small_result()


@pytest.fixture
def path(result, tmp_path):
    result.write(tmp_path / "result.h5")
    return tmp_path / "result.h5"


def test_a_result_reads_back_as_it_was_written(result, path):
    for place in (path, path.parent):
        again = load(place)
        for group in ("params", "history", "snapshots", "truth"):
            there, here = getattr(again, group), getattr(result, group)
            assert set(there) == set(here)
            assert all(np.array_equal(there[name], here[name]) for name in here)
            assert all(there[name].dtype == here[name].dtype for name in here)
        assert again.metadata == result.metadata


def test_a_result_is_a_file_for_plain_h5py(result, path):
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["params/W"], result.W)


def test_a_result_is_there_as_a_whole_or_not_at_all(result, path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # like a full disk
    try:
        with pytest.raises(OSError):
            replace(result, params={}).write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    np.testing.assert_array_equal(load(path).W, result.W)
    assert [path.name for path in path.parent.iterdir()] == ["result.h5"]


def refused(path):
    """Return the error of a file that is neither a result nor a checkpoint."""
    for how in (load, read):
        with pytest.raises(UserError) as error:
            how(path)
        assert str(error.value).startswith(f"{path}: ")
        assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_another_file_is_not_taken_for_a_result(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = 1
    (tmp_path / "folder.h5").mkdir()
    (tmp_path / "empty.h5").touch()
    (tmp_path / "loop.h5").symlink_to("loop.h5")
    assert "found a file without its checksum" in refused(tmp_path / "x.h5")
    assert "found a file without its checksum" in refused(tmp_path / "empty.h5")
    assert "found nothing there" in refused(tmp_path / "y.h5")
    assert "found nothing there" in refused(tmp_path / "loop.h5")
    assert "found nothing there" in refused(tmp_path / "folder.h5" / "result.h5")
    with pytest.raises(UserError, match="found nothing there"):
        load(tmp_path / "folder.h5")
    with pytest.raises(UserError, match="expected a checkpoint, found no file"):
        read(tmp_path / "folder.h5")


def test_a_bit_that_is_wrong_is_noticed_wherever_it_is(path):
    content = path.read_bytes()
    for place in (0, 100, len(content) // 2, len(content) - TRAILER_BYTES - 1, len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert refused(path).endswith("found a damaged one: its checksum is wrong")


@pytest.mark.parametrize("left", [-1, -TRAILER_BYTES, 1000, 0])
def test_a_result_that_was_cut_off_is_refused(path, left):
    path.write_bytes(path.read_bytes()[:left])
    assert "found a " in refused(path)


W = np.ones((4, 3))
NAN, BELOW = W.copy(), -W
NAN[2, 1] = np.nan
FAULTS = {
    "W gone": (put("params/W", None), "/params/W: expected finite numbers"),
    "W not a number": (put("params/W", NAN), "/params/W: expected finite numbers of -1e+150 or more and up to 1e+150"),
    "W infinite": (put("params/W", np.inf * W), "/params/W: expected finite numbers"),
    "W of other data": (put("params/W", np.ones((5, 3))), "/params/W: expected the shape 4 x 3, found 5 x 3"),
    "W of other causes": (put("params/W", np.ones((4, 2))), "/params/W: expected the shape 4 x 3, found 4 x 2"),
    "W a number": (put("params/W", 1.0), "/params/W: expected the shape 4 x 3, found a single number"),
    "W in words": (put("params/W", "words"), "/params/W: expected numbers, found object"),
    "W complex": (put("params/W", W + 1j), "/params/W: expected numbers, found complex128"),
    "W empty": (put("params/W", h5py.Empty("f8")), "/params/W: expected numbers"),
    "sigma below 0": (put("params/sigma", -1.0), "/params/sigma: expected finite numbers of 1e-50 or more"),
    "sigma 0": (put("params/sigma", 0.0), "/params/sigma: expected finite numbers of 1e-50 or more"),
    "sigma a list": (put("params/sigma", [1.0]), "/params/sigma: expected the shape a single number, found 1"),
    "pi 2": (put("params/pi", 2.0), "/params/pi: expected finite numbers of 1e-09 or more and up to 1, found 2"),
    "pi 0": (put("params/pi", 0.0), "/params/pi: expected finite numbers of 1e-09 or more and up to 1, found 0"),
    "one more": (put("params/more", 1.0), "/params: expected W, sigma, pi, found also more"),
    "params a dataset": (lambda file: (file.pop("params"), put("/params", 1)(file)), "/params: expected a group"),
    "history gone": (put("history/free_energy", None), "/history/free_energy: expected finite numbers"),
    "history short": (put("history/pi", [0.1, 0.2]), "/history/pi: expected the shape 3, found 2"),
    "history not a number": (put("history/temperature", [1, np.nan, 1]), "/history/temperature: expected finite"),
    "other history long": (put("history/seconds_cut", np.ones(4)), "/history/seconds_cut: expected the shape 3"),
    "sigma was 0": (put("history/sigma", [1.0, 0.0, 1.0]), "/history/sigma: expected finite numbers of 1e-50"),
    "too many points": (put("history/points_used", [1, 2, 41]), "/history/points_used: expected finite numbers of 0"),
    "snapshots unnamed": (put("snapshots/iteration", None), "/snapshots/iteration: expected"),
    "snapshots too few": (put("snapshots/W", np.ones((2, 4, 3))), "/snapshots/W: expected the shape 3 x 4 x 3"),
    "snapshots to come": (put("snapshots/iteration", [1, 2, 4]), "/snapshots/iteration: expected"),
    "snapshots in disorder": (put("snapshots/iteration", [1, 3, 2]), "/snapshots/iteration: expected rising numbers"),
    "truth not a number": (put("truth/W", np.full((4, 2), np.nan)), "/truth/W: expected finite numbers"),
    "truth of other data": (put("truth/W", np.ones((5, 2))), "/truth/W: expected the shape 4 x any, found 5 x 2"),
    "no job": (put("job", None), "attribute job: expected a text, found nothing"),
    "job no TOML": (put("job", "[model\nname"), "attribute job: expected TOML, found an error"),
    "job too deep": (put("job", "a = " + "[" * 10_000), "attribute job: expected TOML, found an error"),
    "job a number": (put("job", 3), "attribute job: expected a text, found 3"),
    "job of nothing": (put("job", ""), "attribute job: model.name: expected "),
    "job with typos": (put("job", "modle = 1\ndata = 2"), "attribute job: modle: unknown section"),
    "no N": (put("N", None), "attribute N: expected a whole number of 0 or more, found nothing"),
    "N 0": (put("N", 0), "attribute N: expected a positive number, found 0"),
    "D in words": (put("D", "four"), "attribute D: expected a whole number of 0 or more, found four"),
    "D of others": (put("D", 5), "/params/W: expected the shape 5 x 3, found 4 x 3"),
    "iteration below 0": (put("iteration", -1), "attribute iteration: expected a whole number of 0 or more, found -1"),
    "iteration a list": (put("iteration", [3]), "attribute iteration: expected a whole number of 0 or more, found [3]"),
    "seconds not a number": (put("seconds checkpoints", np.nan), "attribute seconds checkpoints: expected a number"),
    "start no time": (put("start", "noon"), "attribute start: expected a time, found noon"),
    "host no text": (put("host", b"\xff\n"), "attribute host: expected a text in UTF-8, found other bytes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_is_refused_though_its_checksum_is_right(path, fault):
    how, line = FAULTS[fault]
    change(path, how)
    assert f"{path}: {line}" in refused(path)


def test_a_dataset_that_claims_more_than_the_file_holds_is_not_read(path):
    def claim(file):
        del file["truth/W"]
        file.create_dataset("truth/W", (1 << 40, 2), "f8", chunks=(1, 2))

    change(path, claim)
    assert "/truth/W: expected at most " in refused(path)


def test_fields_below_zero_are_refused_where_the_model_has_none(tmp_path):
    path = tmp_path / "result.h5"
    small_result("nmf").write(path)
    load(path)
    change(path, put("params/W", BELOW))
    assert f"{path}: /params/W: expected finite numbers of 0 or more and up to 1e+150, found -1" in refused(path)


def test_a_schedule_may_be_infinite(tmp_path):
    small_result("mca").write(tmp_path / "result.h5")
    change(tmp_path / "result.h5", put("history/rho", np.full(3, np.inf)))
    assert np.isinf(load(tmp_path).history["rho"]).all()


def test_a_result_is_read_without_a_second_copy_of_it(result, tmp_path):
    large = np.zeros((4, 1 << 20))
    replace(result, truth={"W": large}).write(tmp_path / "result.h5")
    load(tmp_path)  # imports are not measured
    tracemalloc.start()
    load(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * large.nbytes
