"""Fixtures for runs with real faults, whose results must have the bits of an undisturbed run."""

import shutil
import subprocess

import numpy as np
import pytest
from launch import call, learned
from restarts import JOB, checkpoints


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    place = tmp_path_factory.mktemp("undisturbed")
    np.save(place / "data.npy", np.random.default_rng(1).normal(size=(1500, 20)) * 3)
    (place / "job.toml").write_text(JOB)
    done = call("train", "job.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert checkpoints(place) == ["000100.h5", "000200.h5", "000300.h5"]
    return place


@pytest.fixture
def place(undisturbed, tmp_path):
    """A folder with job and data, without a run."""
    for name in ("data.npy", "job.toml"):
        shutil.copy(undisturbed / name, tmp_path)
    return tmp_path


@pytest.fixture
def torn(undisturbed, place):
    """A run with checkpoints and without a result."""
    shutil.copytree(undisturbed / "runs", place / "runs")
    (place / "runs/job/result.h5").unlink()
    return place


@pytest.fixture
def ends_the_same(undisturbed):
    """A function that asserts exit code 0 and the result of the undisturbed run."""

    def check(place, done):
        assert done.returncode == 0, done.stderr
        assert learned(place / "runs/job/result.h5") == learned(undisturbed / "runs/job/result.h5")

    return check


@pytest.fixture
def disk(place):
    """A small disk for the runs, which a test can fill or make read-only."""
    disk = place / "runs"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "none", disk], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)
