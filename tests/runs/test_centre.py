"""Centred data: an exact mean, stored in the result and added to reconstructions; the same bits on any ranks."""

import h5py
import numpy as np
import pytest
from launch import call, launch, learned
from mpi4py import MPI

from parallel_et import fit, load
from parallel_et.errors import UserError

TABLE = (np.random.default_rng(1).normal(size=(700, 12)) + 50 * np.arange(12)).astype(np.float32)
TEXT = """
[model]
name = "linca"
causes = 4
[data]
source = "data.npy"
centre = true
[inference]
candidates = 3
gamma = 2
[anneal]
iterations = 6
[run]
checkpoint = { every = 2 }
"""
JOB = {
    "model": {"name": "linca", "causes": 4},
    "data": {"centre": True},
    "inference": {"candidates": 3, "gamma": 2},
    "anneal": {"iterations": 3},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("centre")
    np.save(place / "data.npy", TABLE)
    (place / "job.toml").write_text(TEXT)
    done = call("train", "job.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "note" not in done.stdout
    return place


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_it_learns_what_it_learns_of_data_that_were_centred_before(kind):
    mean = np.array([float(np.mean(column, dtype=np.longdouble)) for column in TABLE.T])
    one = fit(JOB, TABLE.astype(kind))
    other = fit({**JOB, "data": {}}, (TABLE.astype(np.float64) - mean).astype(kind))
    np.testing.assert_allclose(one.data["mean"], mean, rtol=1e-15)
    np.testing.assert_allclose(one.W, other.W, rtol=1e-4, atol=1e-7)
    assert other.data == {}
    assert one.metadata["data fingerprint"] == fit({**JOB, "data": {}}, TABLE.astype(kind)).metadata["data fingerprint"]


@pytest.mark.mpi
def test_the_same_bits_on_any_number_of_ranks():
    job = {**JOB, "run": {"threads": 2}}
    together, alone = fit(job, TABLE), fit(JOB, TABLE, comm=MPI.COMM_SELF)
    assert together.data["mean"].tobytes() == alone.data["mean"].tobytes()
    assert together.W.tobytes() == alone.W.tobytes()
    assert together.metadata["data fingerprint"] == alone.metadata["data fingerprint"]


@pytest.mark.parametrize("ranks, more", [(None, ["--set", "data.memory=4000"]), (2, ["--set", "data.memory=4000"])])
def test_the_same_bits_streamed_and_stopped(place, ranks, more):
    name = f"runs/{ranks}"
    done = call("train", "job.toml", *more, "--output", name, "--max-time", "0:00:00", cwd=place)
    assert done.returncode == 75, done.stderr
    done = launch(ranks, "-m", "parallel_et.train", "job.toml", *more, "--output", name, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "resumes from" in done.stdout
    assert learned(place / name / "result.h5") == learned(place / "runs/job/result.h5")
    means = [load(place / run).data["mean"].tobytes() for run in (name, "runs/job")]
    assert means[0] == means[1]


def test_infer_and_generate_undo_it(place):
    run = load(place / "runs/job")
    for source in ("data.npy", "job"):
        done = call("infer", "runs/job", source, "--output", f"{source}.h5", cwd=place)
        assert done.returncode == 0, done.stderr
    assert call("generate", "runs/job", "--points", 5000, cwd=place).returncode == 0
    with h5py.File(place / "data.npy.h5") as one, h5py.File(place / "job.h5") as other:
        assert one["reconstruction"][()].tobytes() == other["reconstruction"][()].tobytes()
        expected = one["means"][()] @ run.W.T + run.data["mean"]
        np.testing.assert_allclose(one["reconstruction"][()], expected, rtol=1e-12)
        evidence = one["evidence"][()].mean()
    assert abs(evidence - run.history["free_energy"][-1]) < 0.1  # the free energy is that of centred points
    with h5py.File(place / "generated.h5") as file:
        np.testing.assert_array_equal(file["data/mean"][()], run.data["mean"])
        assert np.abs(file["points"][()].mean(0) - TABLE.mean(0)).max() < 0.1
    done = call("report", "runs/job", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "the mean of each dimension is subtracted" in (place / "runs/job/report/report.html").read_text()


def test_a_result_without_its_mean_or_with_one_too_many_is_refused(place, tmp_path):
    run = load(place / "runs/job")
    for name, data, line in (
        ("none.h5", {}, "/data/mean: expected finite numbers, found nothing there"),
        ("short.h5", {"mean": np.zeros(3)}, "/data/mean: expected the shape 12, found 3"),
        ("more.h5", {**run.data, "more": np.zeros(12)}, "/data: expected mean, found also more"),
    ):
        run.data.clear()
        run.data.update(data)
        run.write(tmp_path / name)
        with pytest.raises(UserError, match=line):
            load(tmp_path / name)
