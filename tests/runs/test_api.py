from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from launch import launch
from mpi4py import MPI
from problems import job_table, random_data, random_params

from parallel_et import fit, load
from parallel_et.errors import UserError

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def test_the_bars_example_runs_and_its_result_loads(tmp_path):
    done = launch(None, EXAMPLES / "bars.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = load(tmp_path / "runs/example")
    best = np.abs(result.W[:, :, None] - result.truth["W"][:, None, :]).mean(0).min(0)
    assert (best < 1.0).all()
    lines = [line for line in (EXAMPLES / "bars.py").read_text().splitlines() if line and not line.startswith('"""')]
    assert len(lines) <= 10


@pytest.mark.mpi
def test_fit_takes_an_array_and_a_communicator_and_gives_the_same_on_all_ranks():
    from mpi4py import MPI

    params = random_params("linca", 6, 4, seed=1)
    Y = random_data("linca", 90, params, seed=2)
    table = job_table({"name": "linca", "causes": 4}, {"candidates": 3, "gamma": 2})
    seen = []
    together = fit(table, Y, comm=MPI.COMM_WORLD, watch=lambda params, settings, info: seen.append(settings.iteration))
    alone = fit(table, Y, comm=MPI.COMM_SELF)
    assert together.W.tobytes() == alone.W.tobytes()
    assert seen == ([0, 1, 2] if MPI.COMM_WORLD.rank == 0 else [])


@pytest.mark.mpi
def test_bad_rows_in_an_array_are_an_error_on_all_ranks():
    Y = np.ones((90, 3))
    Y[77, 2] = np.nan
    table = job_table({"name": "linca", "causes": 4}, {"candidates": 3, "gamma": 2})
    with pytest.raises(UserError, match="data: row 77: expected numbers below 1e\\+100, found nan in column 2"):
        fit(table, Y)


def test_a_run_that_is_there_is_not_overwritten(tmp_path):
    Y = np.random.default_rng(1).normal(size=(50, 3))
    table = job_table({"name": "linca", "causes": 4}, {"candidates": 3, "gamma": 2})
    first = fit(table, Y, output=str(tmp_path / "run"))
    before = (tmp_path / "run/result.h5").read_bytes()
    with pytest.raises(UserError, match="expected the data of the existing run"):
        fit(table, Y[:20], output=str(tmp_path / "run"))
    with pytest.raises(UserError, match="holds a run of another job"):
        fit({**table, "run": {"seed": 2}}, Y, output=str(tmp_path / "run"))
    again = fit(table, Y, output=str(tmp_path / "run"))
    assert (tmp_path / "run/result.h5").read_bytes() == before
    assert again.W.tobytes() == first.W.tobytes()


def test_a_fit_that_was_interrupted_goes_on(tmp_path):
    Y = np.random.default_rng(1).normal(size=(50, 3))
    table = job_table({"name": "linca", "causes": 4}, {"candidates": 3, "gamma": 2}, {"iterations": 9})
    table["run"]["checkpoint"] = {"every": 4}

    def interrupt(params, settings, info):
        seen.append(settings.iteration)
        if settings.iteration == 5:
            raise KeyboardInterrupt

    seen = []
    with pytest.raises(KeyboardInterrupt):
        fit(table, Y, output=str(tmp_path / "run"), watch=interrupt)
    resumed = fit(
        table, Y, output=str(tmp_path / "run"), watch=lambda params, settings, info: seen.append(settings.iteration)
    )
    assert seen == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8]
    whole = fit(table, Y)
    assert resumed.W.tobytes() == whole.W.tobytes()
    assert resumed.history["free_energy"].tobytes() == whole.history["free_energy"].tobytes()


def test_data_given_to_fit_stand_for_those_of_a_job_file(tmp_path):
    Y = np.random.default_rng(1).normal(size=(50, 3))
    (tmp_path / "job.toml").write_text('[model]\nname = "linca"\ncauses = 3\n[inference]\ncandidates = 2\ngamma = 1\n')
    result = fit(str(tmp_path / "job.toml"), Y.tolist())
    assert result.W.shape == (3, 3)
    assert 'source = "array:data"' in result.metadata["job"]
    for bad, words in (
        (Y[0], "points x dimensions"),
        (np.array([[1, None]], object), "expected numbers, found object"),
    ):
        with pytest.raises(UserError, match=words):
            fit(str(tmp_path / "job.toml"), bad)


def test_fits_in_threads_give_what_each_gives_alone(tmp_path):
    """Fit jobs with and without point states, run directories and shared data on all ranks."""
    Y = np.abs(np.random.default_rng(1).normal(size=(300, 8)))
    tables = [
        job_table({"name": model, "causes": 4}, {"candidates": 3, "gamma": 2, **scheme})
        for model in ("linca", "mca")
        for scheme in ({}, {"scheme": "tv", "states": 8})
    ]
    for table in tables:
        table["run"]["checkpoint"] = {"every": 1, "keep": 2}
    alone = [fit(table, Y, comm=MPI.COMM_SELF) for table in tables]  # loads the kernels

    def one(number):
        place = str(tmp_path / str(number))
        found = [fit(tables[number % 4], Y, comm=MPI.COMM_SELF, output=place) for _ in range(2)]
        found += [load(place), fit(tables[number % 4], Y, comm=MPI.COMM_SELF)]
        return [each.W.tobytes() == alone[number % 4].W.tobytes() for each in found]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(16))) == [[True] * 4] * 16


@pytest.mark.parametrize("progress", [False, True])
def test_a_callback_cannot_change_the_run(progress):
    Y = np.random.default_rng(1).normal(size=(50, 3))
    table = job_table({"name": "linca", "causes": 4}, {"candidates": 3, "gamma": 2})

    def spoil(params, settings, info):
        for array in (*params.values(), info.unused):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 1

    assert fit(table, Y, watch=spoil, progress=progress).W.tobytes() == fit(table, Y).W.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        fit(table, Y, watch=lambda params, settings, info: params["W"].fill(0))


@pytest.mark.parametrize(
    "name, value", [("job", 0), ("job", None), ("job", b"job.toml"), ("output", 3), ("output", "a\0b"), ("watch", 3)]
)
def test_an_argument_of_another_kind_is_refused_in_one_line(name, value):
    table = job_table({"name": "linca", "causes": 4}, {"candidates": 3, "gamma": 2})
    with pytest.raises(UserError, match=f"^{name}: expected .*, found [^\n]*$"):
        fit(**{"job": table, "data": np.ones((9, 3)), name: value})
