"""Trials of maximal causes: representation of all causes, and log likelihoods."""

from dataclasses import replace

import numpy as np
import pytest
from brute import all_states, log_joint
from scipy.special import logsumexp

from parallel_et.cli.reproduce import main
from parallel_et.errors import UserError
from parallel_et.inference.recovery import recovery
from parallel_et.job.job import JOBS, read_job
from parallel_et.papers.likelihood import compare_likelihoods
from parallel_et.papers.represented import evaluate_trials
from parallel_et.papers.table import format_table
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source
from parallel_et.runs.trainer import new_training
from parallel_et.trials.runner import TrialsOptions, run_trials
from parallel_et.trials.table import read_trials

PAPER = JOBS / "mca-2008"


def test_a_cause_is_represented_by_its_own_unit_whatever_the_field(tmp_path):
    """Test bars of three pixels with the sum of bars of one pixel: no field is close, all causes are represented."""
    job, path = str(PAPER / "rmca2-bars-widths.toml"), tmp_path / "trials.h5"
    options = TrialsOptions(job, ["run.seed=11"], 2, output=str(path))
    assert run_trials(Ranks(), options) == 0
    outcome = evaluate_trials(options, path, range(11, 13))
    assert outcome.units.tolist() == [6, 6]
    assert outcome.complete == 2
    assert [trial.found for trial in outcome.trials] != [6, 6]
    assert np.isnan(outcome.errors).all()


def test_a_trial_ends_after_the_same_units_have_represented_all_causes_for_some_iterations(tmp_path):
    job = str(PAPER / "rmca-nn-bars-noisy.toml")
    settings, path = ["run.seed=5", "anneal.iterations=1500"], tmp_path / "trials.h5"
    options = TrialsOptions(job, settings, 1, output=str(path), until=200)
    assert run_trials(Ranks(), options) == 0
    (trial,) = read_trials(path)[1]
    training = new_training(
        read_job(job, [*settings, f"anneal.iterations={trial.iterations}", "run.snapshots=50"]), Ranks()
    )
    training.run()
    assert training.state.params["W"].tobytes() == trial.params["W"].tobytes()
    model, scheme, snapshots = training.problem.model, training.problem.scheme, training.history.snapshots["W"]
    pi, causes = training.state.params["pi"], training.truth["W"]
    units = [tuple(recovery(model, scheme, {"W": W, "pi": pi}, causes).unit) for W in snapshots]
    assert len(set(units[-1])) == 10
    assert len(set(units[-5:])) == 1 < len(set(units[-6:]))
    windows = [units[end - 5 : end] for end in range(5, len(units))]
    assert not any(len(set(some)) == 1 and len(set(some[0])) == 10 for some in windows)  # it did not go on for nothing
    with pytest.raises(UserError, match="expected trials with --until never, found 200; use another --output"):
        run_trials(Ranks(), replace(options, until=None))


def test_learned_probabilities_are_compared_with_the_frequencies_in_the_data(tmp_path):
    job, path = str(PAPER / "mca3-bars-noisy.toml"), tmp_path / "trials.h5"
    options = TrialsOptions(job, ["run.seed=3"], 1, output=str(path))
    assert run_trials(Ranks(), options) == 0
    outcome = evaluate_trials(options, path, range(3, 4))
    assert outcome.complete == 1
    (trial,) = read_trials(path)[1]
    source = open_source(read_job(job, ["run.seed=3"]))
    seen = np.concatenate([states for _, _, states in source.draw_groups(0, 500)]).mean(0)
    nearest = np.linalg.norm(trial.params["W"][:, :, None] - source.truth()["W"][:, None], axis=0).argmin(0)
    assert outcome.errors[0] == pytest.approx(np.abs(trial.params["pi"][nearest] - seen).mean())
    assert outcome.errors[0] < 0.012


def test_the_table_has_the_figures_of_a_row(tmp_path):
    argv = ["mca-2008", "--only", "mca3-bars-noisy", "--trials", "1", "--output", str(tmp_path)]
    assert main(Ranks(), argv) == 0
    assert "| mca3-bars-noisy | 90 of 100, pi within 0.006 | " in (tmp_path / "table-only.md").read_text()


def test_the_table_lists_trials_with_their_own_seeds():
    rows = [{"job": "a"}, {"job": "b", "seed": 7}, {"job": "c", "variant": "with noise", "seed": 9}]
    settings = format_table({"title": "", "seed": 1, "experiment": rows}, [], {}).splitlines()
    assert settings[-2:] == ["Those of b have 7 and following.", "Those with noise have 9 and following."]


def test_the_likelihood_of_a_curve_sums_all_states(tmp_path):
    keys = """
        data = { source = "bars", points = 30, grid = 2, overlap = "max", noise = { kind = "poisson" } }
        inference = { candidates = 4, gamma = 4 }
        anneal = { iterations = 3, temperature = 2.0 }
    """
    for name, model in (
        ("exact", 'name = "mca", noise = "poisson", each = ["pi"]'),
        ("held", 'name = "rmca", total = 9.0, pi = 0.2'),
    ):
        (tmp_path / f"{name}.toml").write_text(f"model = {{ causes = 4, {model} }}\n{keys}")
    jobs = {name: str(tmp_path / f"{name}.toml") for name in ("exact", "held")}
    curves, generating = compare_likelihoods(Ranks(), jobs, jobs["exact"], range(5, 7), tmp_path / "curves")
    source = open_source(read_job(jobs["exact"], ["data.seed=5"]))
    Y, states = source.read(0, 30)[:, :4], all_states(4)
    truth = [[log_joint("mca poisson", source.fields.T, None, 0.2, y, s) for s in states] for y in Y]
    assert generating == pytest.approx(logsumexp(truth, axis=1).mean(), rel=1e-12)
    assert [course.iteration.tolist() for course in curves["held"]] == [[1, 2, 3]] * 2
    for name in jobs:
        assert np.isfinite([course.likelihood for course in curves[name]]).all()
        assert curves[name][0].likelihood[-1] != curves[name][1].likelihood[-1]  # from other starts
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
