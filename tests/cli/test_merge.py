"""The command merge: images from patches, and denoising, compared with plain computations."""

import shutil
from contextlib import chdir
from pathlib import Path
from tempfile import mkdtemp

import h5py
import numpy as np
import pytest
from launch import call
from PIL import Image

from parallel_et.cli import infer, merge, patches, train
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing import merging

JOB = """
model = { name = "linca", causes = 12, init = { W = { rows = "random" } } }
data = { source = "noisy.h5:/patches" }
inference = { candidates = 4, gamma = 2 }
anneal = { iterations = 5 }
"""


def picture(shape, seed=1):
    """Return an image of stripes with an edge."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[0], : shape[1]]
    image = np.where(x + y > shape[0], 60 + 40 * (y // 3 % 2), 180)
    return (image[(...,) + (None,) * (len(shape) - 2)] + rng.integers(0, 3, shape)).astype(np.uint8)


def made(place, name, *args, fails=None):
    """Run a command and return its output, or its error line."""
    done = call(name, *args, cwd=place)
    assert done.returncode == (2 if fails else 0), done.stderr
    if fails:
        assert done.stderr.count("\n") == 1
        assert fails in done.stderr
    return done.stdout


def averaged(rows, shape, size):
    """Assemble patches at all positions one by one."""
    total, count = np.zeros(shape), np.zeros(shape)
    places = [(y, x) for y in range(shape[0] - size + 1) for x in range(shape[1] - size + 1)]
    for row, (y, x) in zip(rows, places, strict=True):
        inside = slice(y, y + size), slice(x, x + size)
        total[inside] += row.reshape(size, size, *shape[2:])
        count[inside] += 1
    return total / count


def decibels(image, truth):
    return 10 * np.log10(255**2 / np.mean((image - truth) ** 2))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return denoised(tmp_path_factory.mktemp("merge"), Ranks())


def denoised(place, ranks):
    """Cut patches of a noisy image, train a model, and infer them."""
    Image.fromarray(picture((30, 41))).save(place / "clean.png")
    (place / "job.toml").write_text(JOB)
    with chdir(place):
        cut = ("clean.png", "--all", "--size", "6", "--mean-free", "--noise", "20", "--seed", "3")
        assert patches.main(ranks, [*cut, "--output", "noisy.h5", "--quiet"]) == 0
        assert train.main(ranks, ["job.toml", "--quiet"]) == 0
        assert infer.main(ranks, ["runs/job", "noisy.h5:/patches", "--what", "reconstruction", "--quiet"]) == 0
    return place


def test_patches_with_noise_keep_the_picture_without_it_and_their_means(place):
    clean = picture((30, 41)).astype(float)
    with h5py.File(place / "noisy.h5") as file:
        np.testing.assert_array_equal(file["truth/0"], clean)
        rows, means = file["patches"][()].reshape(-1, 36), file["means"][()]
    np.testing.assert_allclose(rows.mean(1), 0, atol=1e-5)
    noisy = averaged(rows + means[:, None], (30, 41), 6)
    noise = noisy - clean
    assert abs(noise.std() - 20) < 5 * 20 / np.sqrt(2 * noise.size)
    assert abs(noise.mean()) < 5 * 20 / np.sqrt(noise.size)
    said = made(place, "merge", "noisy.h5", "--output", "noisy.npy")
    np.testing.assert_allclose(np.load(place / "noisy.npy"), noisy, atol=1e-3)
    assert said == f"noisy.npy: 30 x 41 pixels of 900 patches, {decibels(noisy, clean):.2f} dB\n"


def test_the_noise_is_that_of_the_seed_and_differs_from_picture_to_picture(tmp_path):
    np.save(tmp_path / "stack.npy", np.zeros((2, 20, 20)))
    found = []
    for seed in (1, 1, 2):
        args = ("stack.npy", "--all", "--size", "20", "--noise", "1", "--seed", seed, "--output", "out.h5", "--fresh")
        made(tmp_path, "patches", *args)
        with h5py.File(tmp_path / "out.h5") as file:
            found += list(file["patches"][()])
    np.testing.assert_array_equal(found[0], found[2])
    different = [found[0], found[1], found[4], found[5]]
    assert np.abs(np.corrcoef(np.reshape(different, (4, -1))) - np.eye(4)).max() < 5 / 20


def test_a_posterior_of_patches_becomes_the_mean_of_its_reconstructions(place):
    said = made(place, "merge", "posterior.h5", "--output", "denoised.png")
    with h5py.File(place / "noisy.h5") as noisy, h5py.File(place / "posterior.h5") as file:
        rows = file["reconstruction"][()] + noisy["means"][()][:, None]
    expected, clean = averaged(rows, (30, 41), 6), picture((30, 41)).astype(float)
    np.testing.assert_array_equal(np.asarray(Image.open(place / "denoised.png")), np.rint(expected))
    assert said == f"denoised.png: 30 x 41 pixels of 900 patches, {decibels(expected, clean):.2f} dB\n"
    assert decibels(expected, clean) > 26  # of 22
    Image.fromarray(picture((30, 41), 2)).save(place / "other.png")
    again = made(place, "merge", "posterior.h5", "--output", "denoised.png", "--truth", "other.png", "--fresh")
    assert f"{decibels(expected, picture((30, 41), 2)):.2f} dB" in again


@pytest.mark.parametrize(
    "steps",
    [
        ("--mean-free",),
        ("--mean-free", "--on-off", "--scale", "-1", "10"),
        ("--stride", "2"),
        ("--colour", "--mean-free", "--stride", "4"),
        ("--colour", "--scale", "0", "1"),
    ],
)
def test_what_was_cut_from_several_pictures_becomes_these_again(tmp_path, steps):
    colours = picture((21, 25, 3)) if "--colour" in steps else picture((21, 25))
    stack = np.random.default_rng(1).integers(0, 256, (2, 9, 25))
    Image.fromarray(colours).save(tmp_path / "a.png")
    np.save(tmp_path / "b.npy", stack)
    made(tmp_path, "patches", "a.png", "b.npy", "--all", "--size", "5", *steps)
    names = [f"again/{name}.png" for name in ("a", "b-1", "b-2")]
    said = made(tmp_path, "merge", "patches.h5", "--output", "again")
    assert [line.partition(":")[0] for line in said.splitlines()] == names
    assert "dB" not in said
    for name, image in zip(names, (colours, *stack), strict=True):
        expected = image if image.ndim == colours.ndim else np.repeat(image[..., None], 3, 2)
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / name)), expected)


def test_the_value_of_white_is_an_option(tmp_path):
    np.save(tmp_path / "a.npy", picture((9, 9)).astype(int) * 257)
    made(tmp_path, "patches", "a.npy", "--all", "--size", "4")
    assert "is --peak the value of white?" in made(tmp_path, "merge", "patches.h5", "--output", "a.png")
    assert "peak" not in made(tmp_path, "merge", "patches.h5", "--output", "a.png", "--fresh", "--peak", "65535")
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "a.png")), picture((9, 9)))


@pytest.mark.mpi
def test_a_picture_has_the_same_bytes_on_any_number_of_ranks(monkeypatch, capsys):
    monkeypatch.setattr(merging, "BAND_BYTES", 1)  # one row of positions at a time
    ranks = Ranks()
    place = ranks.run_on_root(lambda alone: denoised(Path(mkdtemp()), alone))
    monkeypatch.chdir(place)
    cut = ["clean.png", "--all", "--size", "6", "--mean-free", "--noise", "20", "--seed", "3", "--output", "again.h5"]
    assert patches.main(ranks, cut) == 0
    assert ranks.run_on_root(lambda alone: merge.main(alone, ["posterior.h5", "--output", "alone.npy"])) == 0
    assert merge.main(ranks, ["posterior.h5", "--output", "together.npy"]) == 0
    if ranks.is_root:
        assert Path("alone.npy").read_bytes() == Path("together.npy").read_bytes()
        with h5py.File("noisy.h5") as alone, h5py.File("again.h5") as together:
            for name in ("patches", "means", "truth/0"):
                assert alone[name][()].tobytes() == together[name][()].tobytes()
        assert "together.npy: 30 x 41 pixels of 900 patches, " in capsys.readouterr().out
        shutil.rmtree(place)


def test_mistakes_are_told_in_a_line(place, tmp_path):
    def cut(*args):
        made(place, "patches", "clean.png", *args, "--size", "6", "--output", "bad.h5", "--fresh")
        return ("merge", "bad.h5", "--output", "bad.png")

    made(place, *cut("--count", "9"), fails="bad.h5: expected patches of all places (--all), found random places")
    made(
        place,
        *cut("--all", "--whiten", "--zca", "1"),
        fails="expected only steps that can be undone, found whiten, zca",
    )
    made(place, *cut("--all", "--stride", "4"), fails="found a --stride that leaves out an edge of image 0, 30 x 41")
    whole = (place / "noisy.h5").read_bytes()
    for name, words in (
        (("posterior.h5", "--output", "a.jpg"), "--output: expected a name that ends in .png or .npy, found a.jpg"),
        (("posterior.h5", "--output", "clean.png"), "clean.png: expected the name of a new file, found a file"),
        (("posterior.h5", "--output", "none/a/../b.png", "--peak", "0"), "--peak: expected a positive number"),
        (("runs/job/result.h5", "--output", "a.png"), "result.h5: expected a file of infer or of patches, found"),
        (("missing.h5", "--output", "a.png"), "missing.h5: expected an HDF5 file, found nothing there"),
        (("clean.png", "--output", "a.png"), "clean.png: expected an HDF5 file, found something else"),
    ):
        made(place, "merge", *name, fails=words)
    Image.fromarray(picture((30, 40))).save(tmp_path / "small.png")
    args = ("posterior.h5", "--output", "a.png", "--truth", tmp_path / "small.png")
    made(place, "merge", *args, fails="small.png: expected an image of 30 x 41 pixels, found 30 x 40")
    made(place, "infer", "runs/job", "noisy.h5:/patches", "--what", "evidence", "--output", "evidence.h5")
    made(
        place, "merge", "evidence.h5", "--output", "a.png", fails="expected a dataset /reconstruction, found /evidence"
    )
    made(place, "patches", "clean.png", "--all", "--size", "6", "--noise", "-1", fails="--noise: expected a positive")
    (place / "noisy.h5").write_bytes(whole)
    made(place, "merge", "posterior.h5", "--output", "a.png", fails="posterior.h5: expected data of ")
    assert not (place / "a.png").exists()
