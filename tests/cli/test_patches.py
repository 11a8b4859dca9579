"""The command patches, compared with plain computations."""

import json
import os
import shutil
import signal
from pathlib import Path
from tempfile import mkdtemp

import h5py
import numpy as np
import pytest
from launch import call, ended, launch, paused, ranks_of, start, train, wait_for, with_startup_code
from PIL import Image

from parallel_et.cli.patches import main
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing import cutting, image_collection
from parallel_et.preprocessing.filters import Steps, filter_image
from parallel_et.preprocessing.image_collection import ImageCollection, PatchPlaces

SHAPES = {"a.png": (40, 60), "b.tif": (50, 30), "c.npy": (33, 37)}
CODE = """
import atexit, os, pathlib, resource, sys
here = pathlib.Path(sys.argv[1], f"peak-{os.getpid()}")
atexit.register(lambda: here.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)))
from parallel_et.launch import start
start(sys.argv[2], sys.argv[3:])
"""


def patches(ranks, *args, cwd, **env):
    return launch(ranks, "-m", "parallel_et", "patches", *args, cwd=cwd, **env)


def made(place, *args, ranks=None):
    """Run the command and return its patches."""
    args = (*args, "--output", "out.h5", "--fresh")
    done = call("patches", *args, cwd=place) if ranks is None else patches(ranks, *args, cwd=place)
    assert done.returncode == 0, done.stderr
    with h5py.File(place / "out.h5") as file:
        assert dict(file.attrs) == dict(file["patches"].attrs)
        return file["patches"][()], [s for s in json.loads(file.attrs["steps"]) if s["step"] != "cut"]


def all_windows(images, size, stride=1):
    return np.array(
        [
            image[y : y + size, x : x + size]
            for image in images
            for y in range(0, image.shape[0] - size + 1, stride)
            for x in range(0, image.shape[1] - size + 1, stride)
        ]
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return with_images(tmp_path_factory.mktemp("patches"))


def with_images(place):
    (place / "images").mkdir()
    for name, image in arrays().items():
        if name.endswith("npy"):
            np.save(place / "images" / name, image)
        else:
            Image.fromarray(image).save(place / "images" / name)
    return place


def arrays():
    """Return images with correlated neighbouring pixels."""
    rng, images = np.random.default_rng(5), {}
    for name, shape in SHAPES.items():
        rough = np.cumsum(np.cumsum(rng.normal(0, 1, shape), 0), 1)
        images[name] = ((rough - rough.min()) / np.ptp(rough) * 255).astype(np.uint8)
    return images


def test_all_overlapping_patches_and_those_of_a_stride(place):
    images = list(arrays().values())
    found, steps = made(place, "images", "--size", "26", "--all")
    assert len(found) == 15 * 35 + 25 * 5 + 8 * 12
    np.testing.assert_array_equal(found, all_windows(images, 26))
    assert steps == []
    assert found.dtype == np.float32
    found, _ = made(place, "images", "--size", "10", "--all", "--stride", "7", ranks=2)
    np.testing.assert_array_equal(found, all_windows(images, 10, 7))


def test_patches_in_colour_have_red_green_and_blue_of_each_pixel(tmp_path):
    rng = np.random.default_rng(3)
    colours, plain = rng.integers(0, 256, (9, 8, 3), np.uint8), rng.integers(0, 256, (7, 6), np.uint8)
    Image.fromarray(colours).save(tmp_path / "a.png")
    Image.fromarray(plain).save(tmp_path / "b.png")
    found, _ = made(tmp_path, "a.png", "b.png", "--all", "--size", "5", "--colour")
    whole = [colours, np.repeat(plain[..., None], 3, 2)]
    np.testing.assert_array_equal(found, all_windows(whole, 5).astype(np.float32))
    scaled, _ = made(tmp_path, "a.png", "--count", "40", "--size", "5", "--colour", "--mean-free", "--scale", "0", "1")
    assert scaled.shape == (40, 5, 5, 3)
    assert (scaled.min(), scaled.max()) == (0, 1)
    done = call("patches", "a.png", "--all", "--colour", "--on-off", cwd=tmp_path)
    assert "--on-off: expected none with --colour, found True" in done.stderr


def test_clamped_images_have_the_percentile_as_their_largest_value(place):
    image = arrays()["a.png"].astype(float)
    found, steps = made(place, "images/a.png", "--size", "8", "--all", "--clamp", "5")
    ordered = np.sort(image.ravel())
    at = 0.95 * (image.size - 1)
    value = ordered[int(at)] + (at - int(at)) * (ordered[int(at) + 1] - ordered[int(at)])
    np.testing.assert_allclose(found, all_windows([np.where(image > value, value, image)], 8), rtol=1e-6)
    assert steps == [{"step": "clamp", "brightest percent": 5.0}]


def test_a_difference_of_gaussians_is_that_of_two_plain_convolutions(place):
    image = arrays()["c.npy"].astype(float)

    def smooth(values, sigma):
        reach = int(4 * sigma + 0.5)
        kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
        padded = np.pad(values, reach, mode="symmetric")
        for axis in (0, 1):
            padded = np.apply_along_axis(np.convolve, axis, padded, kernel / kernel.sum(), "valid")
        return padded

    found, steps = made(place, "images/c.npy", "--size", "9", "--all", "--dog", "1", "3")
    np.testing.assert_allclose(found, all_windows([smooth(image, 1) - smooth(image, 3)], 9), atol=1e-4)
    assert steps == [{"step": "difference of Gaussians", "sigmas": [1.0, 3.0], "edges": "reflected"}]


@pytest.mark.parametrize("name", ["b.tif", "c.npy"])
def test_pseudo_whitening_multiplies_each_wave_by_its_factor(place, name):
    image = arrays()[name].astype(float)
    height, width = image.shape
    waves = [np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n) for n in (height, width)]
    fy, fx = (np.minimum(np.arange(n), n - np.arange(n)) / n for n in (height, width))
    f = np.sqrt(fy[:, None] ** 2 + fx**2)
    spectrum = waves[0] @ image @ waves[1] * f * np.exp(-((f / 0.4) ** 4))
    white = (waves[0].conj() @ spectrum @ waves[1].conj()).real / image.size
    np.testing.assert_allclose(filter_image(image, Steps(whiten=True)), white, atol=1e-4)
    found, steps = made(place, f"images/{name}", "--size", "9", "--all", "--whiten")
    np.testing.assert_allclose(found, all_windows([white], 9), atol=1e-4)
    assert steps == [{"step": "whiten", "filter": "f exp(-(f/f0)^4)", "f0": 0.4}]


def test_steps_on_patches_are_those_of_a_plain_computation(place):
    X = all_windows(arrays().values(), 6).astype(float).reshape(-1, 36)
    X -= X.mean(1)[:, None]
    found, _ = made(place, "images", "--size", "6", "--all", "--mean-free")
    np.testing.assert_allclose(found.reshape(X.shape), X, atol=1e-4)
    U, s, _ = np.linalg.svd(np.cov(X.T, bias=True))
    matrix = U @ np.diag((s + 0.1) ** -0.5) @ U.T
    X = (X - X.mean(0)) @ matrix
    found, _ = made(place, "images", "--size", "6", "--all", "--mean-free", "--zca", "0.1")
    np.testing.assert_allclose(found.reshape(X.shape), X, atol=1e-4)
    with h5py.File(place / "out.h5") as file:
        np.testing.assert_allclose(file["zca/matrix"], matrix, atol=1e-8)
        assert file["zca/mean"].shape == (36,)
    each = 3 * X / np.abs(X).max(1)[:, None]
    found, steps = made(place, "images", "--size", "6", "--all", "--mean-free", "--zca", "0.1", "--contrast", "3")
    np.testing.assert_allclose(found.reshape(X.shape), each, atol=1e-4)
    assert steps[-1] == {"step": "contrast", "largest magnitude of each patch": 3.0}
    X = np.stack([np.clip(X, 0, None), -np.clip(X, None, 0)], 1)
    every = ("--mean-free", "--zca", "0.1", "--on-off", "--scale", "-1", "10")
    found, steps = made(place, "images", "--size", "6", "--all", *every, ranks=2)
    assert found.shape == (len(X), 2, 6, 6)
    np.testing.assert_allclose(found.reshape(X.shape), -1 + 11 * X / X.max(), atol=1e-4)
    assert [step["step"] for step in steps] == ["mean-free", "zca", "on-off", "scale"]
    np.testing.assert_allclose(steps[-1]["from"], [0, X.max()], rtol=1e-9)
    assert found.min() == -1
    assert found.max() == 10


def test_zca_leaves_patches_of_unit_covariance(place):
    found, _ = made(place, "images", "--size", "5", "--count", "20000", "--zca", "1e-6")
    np.testing.assert_allclose(np.cov(found.reshape(-1, 25).T), np.eye(25), atol=0.01)


@pytest.mark.mpi
@pytest.mark.parametrize("kept", [True, False])
def test_patches_have_the_same_bits_on_any_number_of_ranks(monkeypatch, capsys, kept):
    monkeypatch.setattr(cutting, "GROUP_BYTES", 1 << 16)
    monkeypatch.setattr(image_collection, "IMAGE_CACHE_BYTES", 1 << 29 if kept else 1)
    ranks = Ranks()
    place = ranks.from_root(lambda: with_images(Path(mkdtemp())))
    steps = ("--clamp", "2", "--dog", "1", "3", "--mean-free", "--zca", "0.01", "--on-off", "--scale", "0", "10")
    args = (str(place / "images"), "--size", "12", "--count", "5001", *steps, "--output")
    assert ranks.run_on_root(lambda alone: main(alone, [*args, str(place / "alone.h5")])) == 0
    assert main(ranks, [*args, str(place / "together.h5")]) == 0
    if ranks.is_root:
        assert ("too large to be kept" in capsys.readouterr().out) != kept
        with h5py.File(place / "alone.h5") as alone, h5py.File(place / "together.h5") as together:
            for name in ("patches", "zca/matrix", "zca/mean"):
                assert alone[name][()].tobytes() == together[name][()].tobytes()
            assert alone.attrs["steps"] == together.attrs["steps"]
        shutil.rmtree(place)


def test_a_patch_depends_on_the_seed_and_its_number_alone(place):
    few, _ = made(place, "images", "--count", "100", ranks=2)
    more, _ = made(place, "images", "--count", "9000")
    other, _ = made(place, "images", "--count", "100", "--seed", "2")
    assert few.shape == (100, 26, 26)
    np.testing.assert_array_equal(few, more[:100])
    assert (few != other).any()


def test_each_place_is_as_likely_as_any_other(place):
    album = ImageCollection(Steps(), (26, 26))
    album.set_entries([entry for name in SHAPES for entry in album.inspect(str(place / "images" / name))])
    places = PatchPlaces(album, 746_000, 1, 7)
    assert places.total == 746
    images, tops, lefts = places.locate(0, places.points)
    counts = np.unique(np.stack([images, tops, lefts]), axis=1, return_counts=True)[1]
    assert len(counts) == 746
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)
    np.testing.assert_array_equal(places.locate(4000, 9000)[1], tops[4000:9000])


def test_bad_files_are_fatal_or_named_once_and_skipped(place, tmp_path):
    for name, image in arrays().items():
        np.save(tmp_path / f"{name}.npy", image)
    whole = (place / "images/a.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "small.npy", np.ones((26, 25)))
    np.save(tmp_path / "wild.npy", np.full((40, 40), np.nan))
    args = (".", "--all", "--output", "out.h5")
    done = patches(2, *args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "expected" in done.stderr
    assert any(done.stderr.startswith(name) for name in ("b.png", "small.npy", "wild.npy"))
    assert not list(tmp_path.glob("out*"))
    done = patches(3, *args, "--bad", "skip", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("skipped") == 3
    assert "skipped small.npy: expected at least 26 x 26 pixels, found 26 x 25\n" in done.stdout
    assert "skipped wild.npy: expected finite numbers" in done.stdout
    assert "skipped b.png: expected " in done.stdout
    with h5py.File(tmp_path / "out.h5") as file:
        assert len(file["patches"]) == 746
        sizes = [(i["file"], i["height"], i["width"]) for i in json.loads(file.attrs["images"])]
    assert sizes == [(f"{name}.npy", *shape) for name, shape in SHAPES.items()]
    done = call("patches", "small.npy", "--all", "--bad", "skip", "--output", "none.h5", cwd=tmp_path)
    assert done.returncode == 2
    assert "small.npy: expected images, found only bad files: 1" in done.stderr


AT_ONCE = "import parallel_et.storage.output as output\noutput.SYNC_SECONDS = 0.0\n"  # every write is flushed


@pytest.mark.parametrize("how", ["SIGKILL", "SIGUSR1"])
def test_what_was_interrupted_goes_on_and_ends_as_if_nothing_had_been(place, tmp_path, how):
    args = (place / "images", "--size", "16", "--count", "60000", "--dog", "1", "3", "--zca", "0.1", "--output")
    assert call("patches", *args, "whole.h5", cwd=tmp_path).returncode == 0
    pausing = paused(tmp_path, "storage.output", "Output.write", AT_ONCE)
    process = start(3, *args, tmp_path / "torn.h5", name="patches", cwd=tmp_path, **pausing)
    journal = tmp_path / "torn.h5.part.journal"
    wait_for(lambda: len(list(journal.glob("*.rows"))) == 3, process)
    os.kill(ranks_of(tmp_path)[1], signal.Signals[how])
    (tmp_path / "go").touch()
    _, code, said = ended(process, tmp_path)
    assert not (tmp_path / "torn.h5").exists()
    if how == "SIGUSR1":
        assert code == 75, said
        assert "stopped by a signal: written" in said
    args = (*args, tmp_path / "torn.h5")
    done = patches(2, *args, cwd=tmp_path) if how == "SIGKILL" else call("patches", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "patches already exist" in done.stdout
    with h5py.File(tmp_path / "whole.h5") as whole, h5py.File(tmp_path / "torn.h5") as again:
        assert whole["patches"][()].tobytes() == again["patches"][()].tobytes()
        assert whole["zca/matrix"][()].tobytes() == again["zca/matrix"][()].tobytes()
    assert sorted(p.name for p in tmp_path.glob("torn*")) == ["torn.h5"]


LATE = """
import time
import parallel_et.storage.output as output
write, clock = output.Output.write, time.monotonic
def writing(*args):
    write(*args)
    time.monotonic = lambda: clock() + 7200
output.Output.write = writing
"""


def test_a_time_limit_that_comes_while_patches_are_written_anew_leaves_them_to_be_continued(place, tmp_path):
    np.save(tmp_path / "a.npy", arrays()["c.npy"])
    args = ("a.npy", "--size", "8", "--count", "50000", "--output", "out.h5")
    assert call("patches", *args, "--seed", "3", cwd=tmp_path).returncode == 0
    stopped = patches(2, *args, "--fresh", "--max-time", "1:00:00", cwd=tmp_path, **with_startup_code(tmp_path, LATE))
    assert stopped.returncode == 75, stopped.stderr
    assert "stopped by the time limit: written 8192 of 50000 patches; the same command without" in stopped.stdout
    (tmp_path / "a.npy").rename(tmp_path / "a.old")
    np.save(tmp_path / "a.npy", arrays()["c.npy"] + 1)
    refused = call("patches", *args, cwd=tmp_path)
    assert refused.returncode == 2
    assert "part of another output: attribute images state" in refused.stderr
    (tmp_path / "a.old").replace(tmp_path / "a.npy")
    done = call("patches", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "8192 patches already exist" in done.stdout
    with h5py.File(tmp_path / "out.h5") as file:
        assert file.attrs["seed"] == 1
        assert file["patches"].shape == (50_000, 8, 8)
    assert [p.name for p in tmp_path.glob("out*")] == ["out.h5"]


def test_a_signal_is_heard_between_two_images(tmp_path):
    np.save(tmp_path / "stack.npy", np.random.default_rng(1).random((60, 40, 40), np.float32))
    pausing = paused(
        tmp_path, "preprocessing.image_collection", "ImageCollection.image", "module.IMAGE_CACHE_BYTES = 1\n"
    )  # a piece takes many images
    process = start(2, "stack.npy", "--count", "5000", name="patches", cwd=tmp_path, **pausing)
    wait_for((tmp_path / "here").exists, process)
    for rank in ranks_of(tmp_path):
        os.kill(rank, signal.SIGTERM)
    (tmp_path / "go").touch()
    _, code, said = ended(process, tmp_path)
    assert code == 75, said
    assert "stopped by a signal: written 0 of 5000 patches; the same command resumes" in said


def test_a_list_of_many_images_is_stored(tmp_path):
    np.save(tmp_path / "stack.npy", np.random.default_rng(1).random((4000, 8, 8), np.float32))
    found, _ = made(tmp_path, "stack.npy", "--size", "8", "--all")
    assert found.shape == (4000, 8, 8)
    with h5py.File(tmp_path / "out.h5") as file:
        assert len(file.attrs["images"]) > 1 << 17
        assert json.loads(file.attrs["images"])[-1] == {"file": "stack.npy", "number": 3999, "height": 8, "width": 8}


def test_patches_are_never_all_in_memory(place, tmp_path):
    peaks = {}
    for count in (1000, 100_000):  # 2.5 MB and 256 MB on disk
        here = tmp_path / str(count)
        here.mkdir()
        call = (place / "images", "--size", "18", "--count", count, "--on-off", "--scale", "0", "1")
        done = launch(1, "-c", CODE, here, "patches", *call, "--output", here / "out.h5")
        assert done.returncode == 0, done.stderr
        (peak,) = here.glob("peak-*")
        peaks[count] = 1024 * int(peak.read_text())
    assert (tmp_path / "100000/out.h5").stat().st_size > 250e6
    assert peaks[100_000] - peaks[1000] < 10 * cutting.GROUP_BYTES


def test_the_tutorials_way_from_images_to_fields(place, tmp_path):
    done = patches(2, place / "images", "--size", "6", "--count", "2000", "--dog", "1", "3", "--on-off", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "result: patches.h5:/patches" in done.stdout
    (tmp_path / "job.toml").write_text("""
        model = { name = "mca", causes = 6, learn = ["W", "sigma", "pi"] }
        data = { source = "patches.h5:/patches" }
        inference = { candidates = 4, gamma = 2 }
        anneal = { iterations = 3 }
    """)
    trained = train(2, "job.toml", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    with h5py.File(tmp_path / "runs/job/result.h5") as file:
        assert file["params/W"].shape == (72, 6)
