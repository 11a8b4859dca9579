"""Comparison of schemes: log likelihoods over the iterations, and the row of the table."""

import numpy as np
from brute import all_states, log_joint
from scipy.special import logsumexp

from parallel_et import load
from parallel_et.cli.reproduce import JOBS, arguments, chosen
from parallel_et.job.job import read_job
from parallel_et.papers.schemes import SchemeOutcome, run_schemes
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source
from parallel_et.trials.runner import TrialsOptions
from parallel_et.trials.table import Trial

JOB = """
[model]
name = "linca"
causes = 6
[data]
source = "bars"
points = 30
grid = 3
[inference]
scheme = "exact"
[anneal]
iterations = 3
"""


def test_the_likelihood_sums_all_states_for_any_scheme(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    variants = {
        "exact": [],
        "by samples": ['inference={ scheme = "sample", candidates = 3, random = 1, samples = 60 }'],
    }
    options = TrialsOptions(str(tmp_path / "job.toml"), ["run.seed=5"], 2)
    found = run_schemes(Ranks(), options, variants, tmp_path / "bars", range(5, 7))
    assert (tmp_path / "bars.png").exists()
    Y = open_source(read_job(str(tmp_path / "job.toml"), ["run.seed=5"])).read(0, 30)[:, :9]
    for name, place in (("exact", "bars-exact"), ("by samples", "bars-by-samples")):
        assert [trial.seed for trial in found[name].trials] == [5, 6]
        result = load(tmp_path / place)
        W, sigma, pi = (result.params[key] for key in ("W", "sigma", "pi"))
        logs = [[log_joint("linca", W, float(sigma), float(pi), y, s) for s in all_states(6)] for y in Y]
        np.testing.assert_allclose(found[name].curve[-1], logsumexp(logs, axis=1).mean(), rtol=1e-9)
        assert len(found[name].curve) == 3
    np.testing.assert_allclose(found["exact"].curve[:-1], load(tmp_path / "bars-exact").history["free_energy"][1:])


def test_errors_of_parameters_are_those_of_complete_trials():
    trials = [
        Trial(seed, 6, found, 0.1, 0.0, 3, 1.0, {"sigma": np.array(sigma)})
        for seed, found, sigma in ((1, 6, 2.02), (2, 5, 3.0), (3, 6, 1.94))
    ]
    assert SchemeOutcome(trials, np.zeros(3)).summarise({"sigma": 2.0}) == "all causes in 2 of 3, sigma within 3.0%"


def test_long_experiments_run_only_by_name():
    def jobs(*more):
        return [row["job"] for row in chosen(arguments(["thesis-2018", *more]))["experiment"]]

    everything = {path.stem for path in (JOBS / "thesis-2018").glob("*.toml")} - {"table"}
    assert everything - set(jobs()) == {"patches-1600", "ssmca-patches"}
    assert jobs("--only", "patches-1600") == ["patches-1600"]
