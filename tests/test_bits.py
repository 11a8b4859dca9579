"""The same job gives the same bits on any number of ranks and threads."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import call, launch, train
from many_fits import JOBS, PARALLEL_JOBS, THREADED_JOBS, fits
from mpi4py import MPI

from parallel_et.parallel.communicator import Ranks

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def on_one_rank():
    return Ranks().run_on_root(lambda root: fits(1, root.comm))


def results_of(learned, names):
    """Return the results of some jobs."""
    return {name: value for name, value in learned.items() if name.partition("/")[0] in names}


def assert_same(found, expected):
    assert set(found) == set(expected)
    assert [name for name in found if found[name].tobytes() != expected[name].tobytes()] == []


@pytest.mark.mpi
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_parameters_and_free_energy_are_bit_equal(on_one_rank, threads):
    """Compare all jobs with one thread or one rank, and otherwise one job for each way of sharing work."""
    names = tuple(JOBS) if threads == 1 or MPI.COMM_WORLD.size == 1 else PARALLEL_JOBS
    found = fits(threads, MPI.COMM_WORLD, names)
    if MPI.COMM_WORLD.rank == 0:
        assert_same(found, results_of(on_one_rank, names))


def test_parameters_and_free_energy_are_bit_equal_on_seven_ranks_of_one_and_two_threads(on_one_rank, tmp_path):
    done = launch(7, HERE / "support/many_fits.py", tmp_path)
    assert done.returncode == 0, done.stderr
    for threads, names in ((1, PARALLEL_JOBS), (2, THREADED_JOBS)):
        assert_same(np.load(tmp_path / f"{threads}.npz"), results_of(on_one_rank, names))


def test_the_jobs_learn(on_one_rank):
    settled = len(on_one_rank["until it has settled/free_energy"])
    assert 3 < settled < 200
    assert 1.0 < float(on_one_rank["a scheme that learns/warmth"]) < 1.5
    assert on_one_rank["restarted fields/renewed_fields"].sum() > 0
    assert 3 < len(on_one_rank["held out until they get no better/holdout_evidence"]) < 200
    for name in ("linca", "nmf", "mca", "exact"):
        energy = on_one_rank[f"{name}/free_energy"]
        assert np.isfinite(energy).all()
        assert float(on_one_rank[f"{name}/sigma"]) != 1.5


def test_the_command_writes_the_same_result_on_any_number_of_ranks(tmp_path):
    job = HERE.parent / "jobs" / "demo.toml"
    results = []
    for ranks in (None, 3):
        args = (job, "--output", tmp_path / str(ranks), "--quiet", "--set", "anneal.iterations=20")
        done = call("train", *args) if ranks is None else train(ranks, *args)
        assert done.returncode == 0, done.stderr
        with h5py.File(tmp_path / str(ranks) / "result.h5") as file:
            results.append({name: file[name][()].tobytes() for name in ("params/W", "history/free_energy", "truth/W")})
    assert results[0] == results[1]


def test_a_finished_run_is_recognised_with_another_number_of_threads(tmp_path):
    job = HERE.parent / "jobs" / "demo.toml"
    short = ("--output", tmp_path / "run", "--set", "anneal.iterations=2", "--set", "run.picture=false")
    assert call("train", job, *short).returncode == 0
    again = call("train", job, *short, "--set", "run.threads=2")
    assert again.returncode == 0, again.stderr
    assert "this run is finished" in again.stdout
