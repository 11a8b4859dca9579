"""The methods of a trained model, compared with the output of the commands."""

import h5py
import numpy as np
import pytest
from launch import call
from problems import job_table, random_data, random_params

from parallel_et import fit, load
from parallel_et.errors import UserError

JOB = job_table({"name": "linca", "causes": 4}, {"candidates": 3, "gamma": 2}, {"iterations": 4})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with centred points, its points, and its result."""
    place = tmp_path_factory.mktemp("run")
    points = random_data("linca", 90, random_params("linca", 6, 4, seed=1), seed=2) + 3.0
    np.save(place / "points.npy", points)
    return place, points, fit({**JOB, "data": {"centre": True}}, points, output=str(place / "run"))


def test_it_infers_what_the_command_infers(run):
    place, points, trained = run
    done = call("infer", "run", "points.npy", cwd=place)
    assert done.returncode == 0, done.stderr
    again = load(place / "run")
    with h5py.File(place / "posterior.h5") as file:
        for name, found in (
            ("means", trained.transform(points)),
            ("map", again.map_states(points)),
            ("reconstruction", again.reconstruct(points)),
            ("evidence", trained.evidence(points)),
        ):
            assert found.tobytes() == file[name][:].tobytes()
    assert trained.score(points) == trained.evidence(points).mean()


def test_it_draws_what_the_command_draws(run):
    place, _, trained = run
    done = call("generate", "run", "--points", "300", cwd=place)
    assert done.returncode == 0, done.stderr
    points, states = trained.generate(300)
    with h5py.File(place / "generated.h5") as file:
        np.testing.assert_array_equal(points.astype(np.float32), file["points"][:])
        np.testing.assert_array_equal(states, file["states"][:])


@pytest.mark.mpi
def test_ranks_share_the_points_and_all_have_the_whole():
    from mpi4py import MPI

    points = random_data("linca", 90, random_params("linca", 6, 4, seed=1), seed=2)
    trained = fit(JOB, points)
    assert trained.transform(points, MPI.COMM_WORLD).tobytes() == trained.transform(points).tobytes()
    assert trained.map_states(points, MPI.COMM_WORLD).tobytes() == trained.map_states(points).tobytes()
    points[77, 2] = np.nan
    with pytest.raises(UserError, match="row 77: expected numbers"):
        trained.evidence(points, MPI.COMM_WORLD)


def test_it_says_what_it_is_in_five_lines(run):
    lines = repr(run[2]).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("linca: 4 causes, et: ")
    assert lines[1].startswith("90 points of 6 dimensions, 4 iterations, free energy ")


def test_points_of_another_size_masked_ones_and_none_are_refused(run):
    _, points, trained = run
    with pytest.raises(UserError, match="data: expected points of 6 dimensions, found 5"):
        trained.transform(points[:, :5])
    with pytest.raises(UserError, match="points: expected a positive number, found 0"):
        trained.generate(0)
    hidden = np.ma.masked_array(points, points == points[7, 3])
    for use in (trained.transform, lambda data: fit(JOB, data)):
        with pytest.raises(UserError, match="data: row 7: expected numbers, found a masked value"):
            use(hidden)
    assert trained.transform(np.ma.masked_array(points)).tobytes() == trained.transform(points).tobytes()


def test_progress_is_shown_if_that_is_wished(capfd):
    points = random_data("linca", 90, random_params("linca", 6, 4, seed=1), seed=2)
    fit(JOB, points)
    assert capfd.readouterr().out == ""
    fit(JOB, points, progress=True)
    assert "iteration 4/4" in capfd.readouterr().out
