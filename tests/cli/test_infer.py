"""The command infer."""

import os
import shutil
import signal
from contextlib import chdir
from pathlib import Path
from tempfile import mkdtemp

import h5py
import numpy as np
import pytest
from launch import call, ended, launch, paused, ranks_of, start, wait_for

from parallel_et import schemes
from parallel_et.cli import infer, train
from parallel_et.parallel.communicator import Ranks

JOB = """
[model]
name = "{model}"
causes = 7
learn = ["W", "sigma", "pi"]
[data]
source = "bars"
points = 600
grid = 4
[inference]
candidates = 4
gamma = 2
singletons = {singletons}
[anneal]
iterations = 5
"""


def contents(path):
    with h5py.File(path) as file:
        return {name: item[()] for name, item in file.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("infer"), Ranks())


def trained(place, ranks):
    """Train two models, and write new data."""
    with chdir(place):
        for model, singletons in (("linca", "false"), ("mca", "true")):
            Path(f"{model}.toml").write_text(JOB.format(model=model, singletons=singletons))
            assert train.main(ranks, [f"{model}.toml", "--quiet"]) == 0
    rng = np.random.default_rng(2)
    with h5py.File(place / "runs/linca/result.h5") as file:
        fields = file["params/W"][()]
    several = (rng.random((1001, 7)) < 0.4) @ fields.T
    np.save(place / "new.npy", (several + rng.normal(0, 1, several.shape)).astype(np.float32))
    return place


@pytest.mark.mpi
@pytest.mark.parametrize("model", ["linca", "mca"])
def test_every_row_gets_its_own_on_any_number_of_ranks(monkeypatch, capsys, model):
    ranks = Ranks()
    place = ranks.run_on_root(lambda alone: trained(Path(mkdtemp()), alone))
    monkeypatch.chdir(place)
    args = [f"runs/{model}", "new.npy", "--output"]
    assert ranks.run_on_root(lambda alone: infer.main(alone, [*args, "alone.h5"])) == 0
    assert infer.main(ranks, [*args, "together.h5"]) == 0
    if not ranks.is_root:
        return
    printed = capsys.readouterr().out
    assert f"1001 points of 16 dimensions, on {ranks.size} rank" in printed
    assert "written with the writer" in printed
    found, alone = contents("together.h5"), contents("alone.h5")
    assert {name: values.tobytes() for name, values in found.items()} == {
        name: values.tobytes() for name, values in alone.items()
    }
    shapes = {name: values.shape for name, values in found.items()}
    assert shapes == {
        "evidence": (1001,),
        "candidates": (1001, 4),
        "means": (1001, 7),
        "map": (1001, 7),
        "map_gamma": (1001,),
        "reconstruction": (1001, 16),
    }
    assert (found["map"].sum(1) <= found["map_gamma"]).all()
    assert (found["map"].sum(1) > 2).any()  # gamma was raised
    if model == "linca":
        with h5py.File("runs/linca/result.h5") as file:
            W = file["params/W"][()]
        np.testing.assert_allclose(found["reconstruction"], found["means"] @ W.T, atol=1e-10)
    shutil.rmtree(place)


def test_only_what_was_asked_for_is_written_and_the_jobs_own_data_will_do(place):
    done = call("infer", "runs/mca", "job", "--what", "evidence,map", "--output", "some.h5", cwd=place)
    assert done.returncode == 0, done.stderr
    found = contents(place / "some.h5")
    assert set(found) == {"evidence", "map", "map_gamma"}
    assert len(found["evidence"]) == 600
    with h5py.File(place / "runs/mca/result.h5") as file:
        energy = file["history/free_energy"][-1]
    assert found["evidence"].mean() >= energy - 1  # one iteration later


def test_a_run_that_still_goes_on_is_read_from_its_checkpoint(place):
    shutil.copytree(place / "runs/linca", place / "runs/going")
    (place / "runs/going/result.h5").unlink()
    done = call("infer", "runs/going", "new.npy", "--output", "going.h5", "--what", "evidence", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "the parameters of 000005.h5, after 5 iterations" in done.stdout


def test_a_bad_row_is_told_in_one_line_when_it_is_reached(place, tmp_path):
    bad = np.ones((10, 16))
    bad[7, 3] = np.nan
    np.save(place / "bad.npy", bad)
    done = call("infer", "runs/linca", "bad.npy", "--output", tmp_path / "out.h5", "--quiet", cwd=place)
    line = "bad.npy: row 7: expected numbers below 1e+100, found nan in column 3\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    assert not (tmp_path / "out.h5").exists()


# every write is flushed, and there are many pieces
PIECES = """
import parallel_et.cli.infer as infer
module.SYNC_SECONDS, infer.PIECE = 0.0, 1
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGUSR1"])
def test_what_was_interrupted_goes_on_and_ends_as_if_nothing_had_been(place, tmp_path, how):
    np.save(tmp_path / "data.npy", np.random.default_rng(3).normal(3, 5, (5000, 16)).astype(np.float32))
    args = (place / "runs/mca", tmp_path / "data.npy", "--output")
    assert call("infer", *args, "whole.h5", cwd=tmp_path).returncode == 0
    pausing = paused(tmp_path, "storage.output", "Output.write", PIECES)
    process = start(3, *args, tmp_path / "torn.h5", name="infer", cwd=tmp_path, **pausing)
    journal = tmp_path / "torn.h5.part.journal"
    wait_for(lambda: len(list(journal.glob("*.rows"))) == 3, process)
    os.kill(ranks_of(tmp_path)[1], signal.Signals[how])
    (tmp_path / "go").touch()
    _, code, said = ended(process, tmp_path)
    assert not (tmp_path / "torn.h5").exists()
    if how == "SIGUSR1":
        assert code == 75, said
        assert "stopped by a signal after" in said
    done = launch(2, "-m", "parallel_et", "infer", *args, tmp_path / "torn.h5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "points already exist" in done.stdout
    a, b = contents(tmp_path / "whole.h5"), contents(tmp_path / "torn.h5")
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)
    assert sorted(p.name for p in tmp_path.glob("torn*")) == ["torn.h5"]


def test_rows_of_other_data_of_the_same_name_are_not_added(place, tmp_path):
    np.save(tmp_path / "data.npy", np.ones((3000, 16)))
    args = ("runs/mca", tmp_path / "data.npy", "--output", tmp_path / "out.h5")
    done = call("infer", *args, "--max-time", "0:00:00", cwd=place)
    assert done.returncode == 75, done.stderr
    np.save(tmp_path / "data.npy", np.zeros((3000, 16)))
    done = call("infer", *args, cwd=place)
    assert done.returncode == 2
    assert "part of another output: attribute data state" in done.stderr


def test_another_inference_of_the_same_name_is_not_continued(place, tmp_path):
    shutil.copy(place / "new.npy", tmp_path / "data.npy")
    args = ("runs/linca", tmp_path / "data.npy", "--output", tmp_path / "out.h5")
    done = call("infer", *args, "--max-time", "0:00:00", cwd=place)
    assert done.returncode == 75, done.stderr
    other = call("infer", *args, "--what", "means", cwd=place)
    assert other.returncode == 2
    assert "part of another output" in other.stderr
    again = call("infer", *args, "--what", "means", "--fresh", cwd=place)
    assert again.returncode == 0, again.stderr
    assert set(contents(tmp_path / "out.h5")) == {"means"}


TABLES = {"evidence", "candidates", "means", "map", "map_gamma", "reconstruction"}
SCHEMES = {
    # keys of [inference], and the number of candidates of a point
    "et": ("candidates = 3\ngamma = 2", 3),
    "exact": ("", 5),
    "hard": ("gamma = 2", 0),
    "tv": ("states = 6\ngamma = 2", 0),
    "sample": ("candidates = 4\nrandom = 1\nsamples = 80\nchains = 4", 4),
}


def test_the_table_of_schemes_has_all():
    assert set(SCHEMES) == set(schemes.SCHEMES.names())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_gives_the_documented_tables(tmp_path, scheme):
    keys, count = SCHEMES[scheme]
    model = '[model]\nname = "linca"\ncauses = 5\n[data]\nsource = "bars"\npoints = 60\ngrid = 3\n'
    job = f'{model}[inference]\nscheme = "{scheme}"\n{keys}\n[anneal]\niterations = 2\n'
    (tmp_path / "job.toml").write_text(job)
    assert call("train", "job.toml", "--output", "run", cwd=tmp_path).returncode == 0
    done = call("infer", "run", "job", "--output", "all.h5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = contents(tmp_path / "all.h5")
    assert set(found) == TABLES - ({"candidates"} if count == 0 else set())
    done = call("infer", "run", "job", "--output", "one.h5", "--what", "candidates", cwd=tmp_path)
    if count == 0:
        expected = f"no candidates of a run with scheme {scheme}, which has no preselection"
        assert (done.returncode, done.stderr) == (2, f"--what: expected {expected}, found candidates\n")
        assert not (tmp_path / "one.h5").exists()
        return
    assert done.returncode == 0, done.stderr
    candidates = contents(tmp_path / "one.h5")["candidates"]
    np.testing.assert_array_equal(candidates, found["candidates"])
    assert candidates.shape == (60, count)
    assert (np.diff(candidates, axis=1) > 0).all()
    others = np.ones((60, 5), bool)
    np.put_along_axis(others, candidates, False, 1)
    assert not found["means"][others].any(), "a cause that is no candidate is active"
