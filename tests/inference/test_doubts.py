"""Signs of a poor optimum: duplicate fields, combined fields, and skewed residuals."""

import h5py
import numpy as np
import pytest
from launch import call
from problems import job_table, params_of, problem_of

from parallel_et.data.planted import DENSITY
from parallel_et.inference.diagnostics import diagnostics
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.chapters import write_report
from parallel_et.runs.directory import RunDirectory

DUPLICATES = "fields 1 and 4 are duplicates"
COMBINATION = "field 4 combines fields 0 and 1"
MISSING = "the residual of the data has a skewness of"


def case(name, seed):
    """Return a problem with points of five fields, and the true parameters."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(12, 5))
    W = W if name == "linca" else np.abs(W) * (rng.random(W.shape) < DENSITY) + 0.05
    W[:6, 0], W[6:, 1] = 1 + W[:6, 0], 1 + W[6:, 1]  # far from each other
    params = params_of(W / np.linalg.norm(W, axis=0), 0.05, 0.2)
    inference = {"candidates": 3, "gamma": 2} if name == "cut" else {"scheme": "exact"}
    model = {"name": "nmf" if name == "cut" else name, "causes": 5}
    draw, _ = problem_of(job_table(model, inference), np.ones((1, 12)))
    Y, _ = draw.model.draw(params, rng, 1000)
    return problem_of(job_table(model, inference), Y)[0], params


@pytest.mark.parametrize("name", ["linca", "nmf", "mca", "cut"])
def test_true_parameters_have_no_signs(name):
    for seed in range(3):
        problem, params = case(name, seed)
        assert diagnostics(problem, Ranks(), params) == ""


@pytest.mark.parametrize("name", ["linca", "nmf", "mca"])
@pytest.mark.parametrize("what", ["duplicates", "combination", "missing"])
def test_each_sign_is_reported(name, what):
    problem, params = case(name, 2)
    W = params["W"].copy()
    if what == "duplicates":
        W[:, 4] = 1.1 * W[:, 1]
    elif what == "combination":
        W[:, 4] = problem.model.mean(params, np.array([0, 1], np.int32))
    else:
        W[:, 4] = np.random.default_rng(5).permutation(W[:, 4])
    found = diagnostics(problem, Ranks(), {**params, "W": W})
    assert {"duplicates": DUPLICATES, "combination": COMBINATION, "missing": MISSING}[what] in found
    assert MISSING in found


def test_many_signs_are_counted():
    problem, params = case("nmf", 1)
    found = diagnostics(problem, Ranks(), {**params, "W": np.repeat(params["W"][:, :1], 5, 1)})
    assert (
        "fields 0 and 1 are duplicates, fields 0 and 2 are duplicates, fields 0 and 3 are duplicates, 7 more" in found
    )


def test_the_signs_of_a_run_are_in_its_log_result_and_report(tmp_path):
    (tmp_path / "job.toml").write_text(
        '[model]\nname = "nmf"\ncauses = 6\ninit = { W = { mean = 1.0, std = 0.3 } }\n'
        '[data]\nsource = "planted"\nfields = "sparse"\npoints = 1000\ndims = 12\n'
        '[inference]\nscheme = "exact"\n[anneal]\niterations = 20\n[run]\nseed = 2\n'
    )
    for more, doubtful in ((), True), (("--set", 'model.init={ W = { moments = "third" } }'), False):
        place = tmp_path / str(doubtful)
        done = call("train", tmp_path / "job.toml", "--output", place, *more)
        assert done.returncode == 0, done.stderr
        with h5py.File(place / "result.h5") as file:
            found = file.attrs["diagnostics"]
        assert bool(found) is doubtful
        assert (f"note: {found}; another seed" in done.stdout) is doubtful
        write_report(RunDirectory(str(place)), {}, place / "report")
        assert ("a better optimum is likely" in (place / "report/report.html").read_text()) is doubtful
