"""Trials over values of a key, compared by held-out evidence."""

import csv
import re

import numpy as np
import pytest
from launch import call, launch

from parallel_et.data.base import ArrayRows
from parallel_et.data.holdout import split_holdout
from parallel_et.runs.api import fit
from parallel_et.trials.sweep import Choice, values_of
from parallel_et.trials.table import read_trials

JOB = """
[model]
name = "linca"
causes = 3
[data]
source = "points.npy"
[inference]
scheme = "exact"
[anneal]
iterations = 15
[run]
seed = 4
"""
VARY = ("job.toml", "--vary", "model.causes=1,2,3,4", "--count", "3")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with points of three causes, and trials with one to four causes."""
    place, rng = tmp_path_factory.mktemp("vary"), np.random.default_rng(1)
    fields = rng.normal(0, 3, (3, 8))
    np.save(place / "points.npy", (rng.random((600, 3)) < 0.4) @ fields + rng.normal(0, 0.5, (600, 8)))
    (place / "job.toml").write_text(JOB)
    return place


@pytest.fixture(scope="module")
def done(place):
    return call("trials", *VARY, cwd=place)


def test_the_number_of_causes_is_told(place, done):
    assert done.returncode == 0, done.stderr
    assert "data.holdout=0.1 is added, because the job holds out no rows" in done.stdout
    with open(place / "runs/job-vary/table.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["model.causes"] for row in rows] == ["1", "2", "3", "4"]
    held = [float(row["holdout_evidence"]) for row in rows]
    assert held[0] < held[1] < held[2] - 1
    assert abs(held[3] - held[2]) < 0.5
    best = max(rows, key=lambda row: float(row["holdout_evidence"]))["model.causes"]
    assert best in ("3", "4")
    assert f"best: model.causes={best}" in done.stdout
    assert re.search(rf"\n +3 +{held[2]:.4f} ± \d\.\d{{4}} ", done.stdout)


def test_means_and_errors_are_those_of_the_trials_and_paired_by_seed(place, done):
    Y, found = np.load(place / "points.npy"), {}
    for causes in (1, 3):
        for seed in (4, 5, 6):
            job = {"model": {"name": "linca", "causes": causes}, "inference": {"scheme": "exact"}}
            job |= {"anneal": {"iterations": 15}, "run": {"seed": seed}}
            learned, held = (Y[part.row_numbers(0, part.points)] for part in split_holdout(ArrayRows(Y), 0.1, seed))
            found[causes, seed] = fit(job, learned).score(held)
    one, three = (np.array([found[causes, seed] for seed in (4, 5, 6)]) for causes in (1, 3))
    with open(place / "runs/job-vary/table.csv") as file:
        rows = {row["model.causes"]: {k: float(v) for k, v in row.items()} for row in csv.DictReader(file)}
    np.testing.assert_allclose(rows["1"]["holdout_evidence"], one.mean(), rtol=1e-8)
    np.testing.assert_allclose(rows["1"]["error"], one.std(ddof=1) / np.sqrt(3), rtol=1e-6)
    gap, error = rows["1"]["below_best"] - rows["3"]["below_best"], (three - one).std(ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(gap, (three - one).mean(), rtol=1e-6)
    if rows["3"]["below_best"] == 0:
        np.testing.assert_allclose(rows["1"]["below_best_error"], error, rtol=1e-6)


def test_the_same_command_runs_only_what_is_missing_also_on_several_ranks(place, done):
    before = (place / "runs/job-vary/table.csv").read_text()
    stored = place / "runs/job-vary/model.causes=2.h5"
    _, trials = read_trials(stored)
    stored.unlink()
    again = launch(2, "-m", "parallel_et", "trials", *VARY, cwd=place)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("3 of 3 trials already exist") == 3
    assert [t.holdout for t in read_trials(stored)[1]] == [t.holdout for t in trials]
    after = (place / "runs/job-vary/table.csv").read_text()
    assert [line.rpartition(",")[0] for line in after.splitlines()] == [
        line.rpartition(",")[0]
        for line in before.splitlines()  # except the seconds
    ]


def test_two_keys_make_all_pairs(place, tmp_path):
    keys = ("--vary", "model.causes=1,2", "--vary", "data.centre=true,false")
    short = ("--set", "anneal.iterations=2", "--count", "1", "--output", tmp_path / "pairs")
    done = call("trials", "job.toml", *keys, *short, cwd=place)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "pairs").glob("*.h5"))) == 4
    assert "model.causes=1+data.centre=true.h5" in [path.name for path in (tmp_path / "pairs").iterdir()]
    assert "seed 4; a larger --count gives standard errors" in done.stdout


def test_it_stops_in_time_and_goes_on(place, tmp_path):
    there = ("--output", tmp_path / "stopped")
    done = call("trials", *VARY, *there, "--max-time", "0:00:00", cwd=place)
    assert done.returncode == 75
    assert "stopped by the time limit after 0 of 3 trials; the same command resumes" in done.stdout


@pytest.mark.parametrize(
    "text, expected",
    [
        ("model.causes=5,10", ["model.causes=5", "model.causes=10"]),
        ("model.name=linca, nmf", ["model.name=linca", "model.name=nmf"]),
        ('model.learn=["W"],["W","pi"]', ['model.learn=["W"]', 'model.learn=["W", "pi"]']),
        ("anneal.noise.W=0.1,0.1", ["anneal.noise.W=0.1"]),
    ],
)
def test_values_are_numbers_words_or_lists(text, expected):
    assert values_of(text) == expected


def test_files_of_any_values_have_names_of_their_own():
    choices = [Choice((f"data.source={name}",)) for name in ("a/b.npy", "a_b.npy", "x" * 300, "x" * 301)]
    names = [choice.file for choice in choices]
    assert len(set(names)) == 4
    assert not any("/" in name or len(name) > 120 for name in names)


@pytest.mark.parametrize(
    "option, words",
    [
        ("model.causes", "--vary: expected section.key=A,B,… with numbers, words or lists, found"),
        ("causes=1,2", "--vary: expected section.key=A,B,…"),
        ("model.cause=1,2", "model.cause: unknown key, did you mean causes?"),
        ("model.causes=1,0", "model.causes: expected a value of 1 or more, found 0"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_run(place, tmp_path, option, words):
    done = call("trials", place / "job.toml", "--vary", option, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_best_of_several_is_another_question(place):
    done = call("trials", *VARY, "--best", "sigma", cwd=place)
    assert done.returncode == 2
    assert "--best: expected none with --vary" in done.stderr
