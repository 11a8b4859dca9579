"""The same job gives the same bits on any number of ranks and threads."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import launch, train

HERE = Path(__file__).parent
RANKS_AND_THREADS = [(2, 1), (3, 1), (4, 1), (7, 1), (None, 3), (2, 2)]


@pytest.fixture(scope="module")
def on_one_rank(tmp_path_factory):
    path = tmp_path_factory.mktemp("bits") / "1.npz"
    done = launch(None, HERE / "many_fits.py", path, 1)
    assert done.returncode == 0, done.stderr
    return np.load(path)


@pytest.mark.parametrize("ranks, threads", RANKS_AND_THREADS)
def test_parameters_and_free_energy_are_bit_equal(on_one_rank, ranks, threads, tmp_path):
    done = launch(ranks, HERE / "many_fits.py", tmp_path / "n.npz", threads)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "n.npz")
    assert set(found) == set(on_one_rank)
    different = [name for name in found if found[name].tobytes() != on_one_rank[name].tobytes()]
    assert different == []


def test_the_jobs_learn_something(on_one_rank):
    settled = len(on_one_rank["until it has settled/free_energy"])
    assert 3 < settled < 200
    for name in ("linca", "nmf", "mca", "exact"):
        energy = on_one_rank[f"{name}/free_energy"]
        assert np.isfinite(energy).all()
        assert float(on_one_rank[f"{name}/sigma"]) != 1.5


def test_the_command_writes_the_same_result_on_any_number_of_ranks(tmp_path):
    job = HERE.parent / "jobs" / "demo.toml"
    results = []
    for ranks in (None, 3):
        done = train(ranks, job, "--output", tmp_path / str(ranks), "--quiet", "--set", "anneal.iterations=20")
        assert done.returncode == 0, done.stderr
        with h5py.File(tmp_path / str(ranks) / "result.h5") as file:
            results.append({name: file[name][()].tobytes() for name in ("params/W", "history/free_energy", "truth/W")})
    assert results[0] == results[1]


def test_threads_are_no_part_of_what_a_run_is(tmp_path):
    job = HERE.parent / "jobs" / "demo.toml"
    short = ("--output", tmp_path / "run", "--set", "anneal.iterations=2", "--set", "run.picture=false")
    assert train(None, job, *short).returncode == 0
    again = train(None, job, *short, "--set", "run.threads=2")
    assert again.returncode == 0, again.stderr
    assert "this run is finished" in again.stdout
