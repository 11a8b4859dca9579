"""The reconstruction errors of a run and of classical NMF."""

import sys

import brute
import numpy as np
import pytest
from problems import job_table, random_data, random_params
from scipy.optimize import nnls
from sklearn.decomposition import NMF

from parallel_et import fit
from parallel_et.__main__ import COMMANDS
from parallel_et.cli import compare as command
from parallel_et.data.base import ArrayRows
from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.result import Result
from parallel_et.runs.setup import model_of
from parallel_et.runs.stored_run import StoredRun
from parallel_et.trials import comparison
from parallel_et.trials.comparison import (
    LOSSES,
    Starts,
    classical_nmf,
    compare_with_nmf,
    reconstruction_error,
    spread_points,
)

MODELS = ["linca", "nmf", "mca"]


def problem(name, points):
    """Return a run and non-negative points."""
    params = random_params(name, 7, 5, seed=1)
    job = check_job(job_table({"name": name, "causes": 5}, {"candidates": 3, "gamma": 2, "singletons": True}))
    run = StoredRun(job, *model_of(job, 7), Result(params, {}), "result.h5")
    return run, ArrayRows(np.abs(random_data(name, points, params, seed=2)))


@pytest.mark.parametrize("name", MODELS)
def test_the_reconstruction_error_equals_brute_force(name):
    run, source = problem(name, 70)
    params, total = run.params, 0.0
    for y in source.table:
        sigma, pi = float(params["sigma"]), float(params["pi"])
        states = brute.considered(name, params["W"], sigma, pi, y, 3, 2, True)
        q, _ = brute.posterior(name, params["W"], sigma, pi, y, states, 1.0)
        shown = sum(p * brute.mean(name, params["W"], s) for p, s in zip(q, states, strict=True))
        if name != "mca":
            np.testing.assert_allclose(shown, params["W"] @ (q @ states))  # the equation of the paper
        total += ((y - shown) ** 2).sum()
    assert reconstruction_error(Ranks(), run, source) == pytest.approx(total / (70 * 7), rel=1e-11)


def test_classical_nmf_is_the_best_of_its_starts():
    rng = np.random.default_rng(3)
    Y = rng.gamma(1.0, 1.0, (60, 4)) @ rng.gamma(0.5, 1.0, (4, 9)) + 0.3 * rng.random((60, 9))
    said = []
    found = classical_nmf(Y, 4, Starts(3), said.append)
    assert (found.W.shape, found.points, found.converged, len(found.errors), len(said)) == ((9, 4), 60, 3, 3, 3)
    assert found.error == min(found.errors)
    assert f"error {found.errors[2]:.6g} after" in said[2]
    other = NMF(4, init="nndsvda", max_iter=2000, tol=1e-5).fit(Y)
    assert found.error < 1.1 * other.reconstruction_err_**2 / Y.size
    second_way = sum(nnls(found.W, y)[1] ** 2 for y in Y) / Y.size  # the best s_n >= 0 for these fields
    assert found.error == pytest.approx(second_way, rel=1e-3)


def test_the_nmf_that_minimises_the_divergence_is_that_and_is_told_by_its_squared_error():
    rng = np.random.default_rng(3)
    Y = rng.poisson(rng.gamma(1.0, 1.0, (60, 4)) @ rng.gamma(0.5, 1.0, (4, 9))) + 0.1
    found = {loss: classical_nmf(Y, 4, Starts(3, loss=loss)) for loss in LOSSES}
    assert found["squares"].error < found["divergence"].error
    W = found["divergence"].W.T
    shares = rng.random((60, 4))
    for _ in range(3000):  # the update of Lee and Seung (1999), with these fields
        shares *= (Y / (shares @ W)) @ W.T / W.sum(1)
    assert found["divergence"].error == pytest.approx(((Y - shares @ W) ** 2).mean(), rel=0.01)


def test_of_more_points_than_there_is_room_for_some_are_taken_and_that_is_said(monkeypatch):
    monkeypatch.setattr(comparison, "NMF_DATA_BYTES", 1 << 15)  # two stretches of 256 points with 7 values each
    run, source = problem("nmf", 2000)
    Y = spread_points(source)
    np.testing.assert_array_equal(Y, np.concatenate([source.table[:256], source.table[-256:]]))
    said = []
    found = compare_with_nmf(Ranks(), run, source, Starts(1), said.append)
    assert found.classical.points == 512
    assert said[0] == f"nmf: reconstruction error {found.error:.6g}, of 2000 points"
    assert said[1] == "classical NMF: uses the points that fit in 0 MiB, 512 of 2000"


def test_the_command_prints_both_errors(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(4)
    np.save("data.npy", (rng.random((200, 3)) < 0.4) @ rng.gamma(1.0, 4.0, (3, 8)) + 0.1 * rng.random((200, 8)))
    job = {
        "model": {"name": "nmf", "causes": 3, "sigma": 0.2, "pi": 0.4},
        "data": {"source": "data.npy"},
        "inference": {"candidates": 3, "gamma": 3},
        "anneal": {"iterations": 30, "temperature": [[0.1, 20.0], [0.8, 1.0]]},
    }
    fit(job, output="run")
    assert command.main(Ranks(), ["run", "--starts", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said[1:5]] == ["nmf", *["classical NMF"] * 2, "classical NMF with 3 fields"]
    own, other = (float(said[i].split("error ")[1].split(",")[0]) for i in (1, 4))
    word = "above" if own > other else "below"
    assert said[5] == f"nmf is {abs(own / other - 1) * 100:.2f} % {word} classical NMF"
    np.save("data.npy", 100 * np.load("data.npy"))
    with pytest.raises(UserError, match=r"data.npy: expected the data that the run was trained on, found other data"):
        command.main(Ranks(), ["run"])
    np.save("data.npy", np.zeros((10, 8)))
    with pytest.raises(UserError, match=r"data.npy: expected the run's 200 points of 8 dimensions, found 10 of 8"):
        command.main(Ranks(), ["run"])


def test_negative_values_are_refused_in_one_line():
    run, source = problem("nmf", 40)
    source.table[3, 4] = -0.5
    with pytest.raises(UserError, match=r"^classical NMF: expected no negative values, found -0.5$"):
        compare_with_nmf(Ranks(), run, source, Starts(1))


def test_without_scikit_learn_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.decomposition", None)  # simulates a missing module
    run, source = problem("nmf", 40)
    with pytest.raises(UserError, match=r"^classical NMF: expected scikit-learn, found none \(.*; pip install scikit"):
        compare_with_nmf(Ranks(), run, source, Starts(1))


def test_the_help_shows_an_example(capsys):
    assert "compare" in COMMANDS
    with pytest.raises(SystemExit):
        command.main(Ranks(), ["--help"])
    assert "mpirun -n 4 python -m parallel_et compare runs/digits" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.parametrize("points", [3, 777])
def test_all_ranks_have_both_errors_to_the_same_bits_on_any_number(points):
    ranks = Ranks()
    run, source = problem("mca", points)
    found = compare_with_nmf(ranks, run, source, Starts(1))
    alone = ranks.run_on_root(lambda root: compare_with_nmf(root, run, source, Starts(1)))
    assert (found.error, found.classical.errors) == (alone.error, alone.classical.errors)
    assert found.excess == found.error / found.classical.error - 1
    source.table[1, 2] = -1.0
    with pytest.raises(UserError, match="expected no negative values, found -1"):
        compare_with_nmf(ranks, run, source, Starts(1))
