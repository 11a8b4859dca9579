"""The command generate, and the distribution of its points."""

import os
import signal

import brute
import h5py
import numpy as np
import pytest
from launch import ended, paused, ranks_of, start, wait_for

from parallel_et import fit
from parallel_et.cli import generate, infer
from parallel_et.parallel.communicator import Ranks

MODELS = ["linca", "nmf", "mca"]


def learn(model, output, data=None, ranks=None):
    """Write a result of a model of 3 x 3 images."""
    job = {
        "model": {"name": model, "causes": 6, "sigma": 1.5, "pi": 0.3},
        "data": {"source": "bars", "points": 100, "grid": 3} if data is None else {"source": data},
        "inference": {"candidates": 4, "gamma": 2},
        "anneal": {"iterations": 3},
    }
    fit(job, output=output, comm=None if ranks is None else ranks.comm)


def draw(*args, ranks=None):
    return generate.main(ranks or Ranks(), [str(arg) for arg in args])


def contents(path):
    with h5py.File(path) as file:
        return {name: file[name][()] for name in ("points", "states", "params/W", "params/sigma", "params/pi")}


def bits(path):
    return {name: values.tobytes() for name, values in contents(path).items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    for model in MODELS:
        learn(model, str(runs / model))
    return runs


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("model", MODELS)
def test_points_and_their_causes_are_distributed_as_the_model_says(runs, model):
    N = 40_000
    assert draw(runs / model, "--points", N, "--output", "a.h5") == 0
    found = contents("a.h5")
    Y, s, W = found["points"].reshape(N, 9).astype(float), found["states"], found["params/W"]
    states = brute.all_states(6)
    p = 0.3 ** states.sum(1) * 0.7 ** (6 - states.sum(1))
    means = np.array([brute.mean(model, W, state) for state in states])

    def agree(values, mean, variance):
        assert (np.abs(values.mean(0) - mean) < 5 * np.sqrt(variance / N)).all()

    agree(s.sum(1), 6 * 0.3, 6 * 0.3 * 0.7)
    agree(s, 0.3, 0.3 * 0.7)
    agree(Y, p @ means, p @ means**2 - (p @ means) ** 2 + 1.5**2)
    clean = means[s @ (1 << np.arange(6)[::-1])]  # of the written states
    noise = (Y - clean) / 1.5
    agree(noise, 0.0, 1.0)
    agree(noise**2, 1.0, 2.0)
    agree(noise[:, 1:] * noise[:, :-1], 0.0, 1.0)
    agree(noise[256:] * noise[:-256], 0.0, 1.0)  # of successive groups


def test_the_file_says_what_it_is_and_its_points_have_the_shape_of_the_data(runs, capsys):
    assert draw(runs / "mca", "--points", 700, "--seed", 3, "--sigma", 0, "--output", "clean.h5") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [
        f"{runs / 'mca'}: the parameters of result.h5, after 3 iterations",
        "700 points of 9 dimensions by 6 causes, on 1 rank",
    ]
    assert said[-1] == "result: clean.h5:/points"
    found = contents("clean.h5")
    assert (found["points"].shape, found["points"].dtype) == ((700, 3, 3), np.float32)
    assert (found["states"].shape, found["states"].dtype) == ((700, 6), np.uint8)
    with h5py.File(runs / "mca/result.h5") as run, h5py.File("clean.h5") as file:
        W, about = run["params/W"][()], dict(file.attrs)
        assert about["job"] == run.attrs["job"]
    assert (about["drawn from"], about["iteration"], about["model"]) == (str(runs / "mca"), 3, "mca")
    assert (about["seed"], about["sigma"], about["pi"]) == (3, 0.0, 0.3)
    assert (found["params/W"] == W).all()
    expected = np.array([brute.mean("mca", W, s) for s in found["states"]])  # sigma = 0: points without noise
    np.testing.assert_array_equal(found["points"].reshape(700, 9), expected.astype(np.float32))


def test_another_seed_draws_others_and_fewer_points_are_the_first(runs):
    for name, args in (("a", (2000, "--seed", 1)), ("b", (2000, "--seed", 2)), ("c", (1001,))):
        assert draw(runs / "nmf", "--output", f"{name}.h5", "--points", *args) == 0
    a, b, c = (contents(f"{name}.h5") for name in "abc")
    assert (a["states"] != b["states"]).any()
    for name in ("points", "states"):
        np.testing.assert_array_equal(a[name][:1001], c[name])


def test_what_was_drawn_trains_a_model_and_is_inferred(runs):
    assert draw(runs / "linca", "--points", 900, "--output", "more.h5") == 0
    learn("linca", "again", "more.h5:/points")
    assert infer.main(Ranks(), ["again", "more.h5:/points", "--what", "map", "--output", "map.h5"]) == 0
    with h5py.File("map.h5") as file:
        assert file["map"].shape == (900, 6)
    assert draw("again", "--points", 10) == 0
    assert contents("generated.h5")["points"].shape == (10, 3, 3)


def test_a_run_that_still_goes_on_and_whose_data_are_gone_is_drawn_from_all_the_same(tmp_path, capsys):
    np.save("data.npy", np.random.default_rng(1).normal(size=(50, 2, 2)))
    learn("linca", "run", "data.npy")
    (tmp_path / "run/result.h5").unlink()
    assert draw("run", "--points", 5, "--output", "a.h5") == 0
    (tmp_path / "data.npy").unlink()
    assert draw("run", "--points", 5, "--output", "b.h5") == 0
    said = capsys.readouterr().out
    assert "the parameters of 000003.h5, after 3 iterations" in said
    assert said.count("warning: the shape of the points is not known, so they are written as vectors (data.npy: ") == 1
    a, b = contents("a.h5"), contents("b.h5")
    assert (a["points"].shape, b["points"].shape) == ((5, 2, 2), (5, 4))
    assert a["points"].tobytes() == b["points"].tobytes()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGUSR1"])
def test_what_was_interrupted_goes_on_and_ends_as_if_nothing_had_been(runs, tmp_path, capsys, how):
    call = (runs / "mca", "--points", 60_001, "--output")
    small = (  # small pieces, flushed at once, to be interrupted
        "import parallel_et.storage.output, parallel_et.cli.generate\n"
        "parallel_et.storage.output.SYNC_SECONDS, parallel_et.cli.generate.PIECE = 0.0, 1\n"
    )
    pausing = paused(tmp_path, "storage.output", "Output.write", small)
    process = start(3, *call, "torn.h5", name="generate", cwd=tmp_path, **pausing)
    journal = tmp_path / "torn.h5.part.journal"
    wait_for(lambda: sum(len(p.read_text()) > 0 for p in journal.glob("*.rows")) == 3, process)
    os.kill(ranks_of(tmp_path)[1], signal.Signals[how])
    (tmp_path / "go").touch()
    _, code, said = ended(process, tmp_path)
    assert not (tmp_path / "torn.h5").exists()
    if how == "SIGUSR1":
        assert code == 75, said
        assert "stopped by a signal: written" in said
    assert draw(*call, "torn.h5") == 0
    assert "already exist" in capsys.readouterr().out
    assert draw(*call, "whole.h5") == 0
    assert bits("whole.h5") == bits("torn.h5")
    assert sorted(path.name for path in tmp_path.glob("torn*")) == ["torn.h5"]


@pytest.mark.mpi
def test_the_same_bits_are_written_by_any_number_of_ranks(tmp_path_factory, monkeypatch):
    ranks = Ranks()
    monkeypatch.chdir(ranks.from_root(lambda: tmp_path_factory.mktemp("ranks")))
    for model, points in (("linca", 5003), ("mca", 1), ("mca", 700)):
        learn(model, model, ranks=ranks)
        call = (model, "--points", points, "--quiet", "--output")
        assert draw(*call, f"{points}.h5", ranks=ranks) == 0
        assert ranks.run_on_root(lambda root, call=call: draw(*call, "alone.h5", "--fresh", ranks=root)) == 0
        assert ranks.from_root(lambda name=f"{points}.h5": bits(name) == bits("alone.h5"))
