"""Comparison of selections on few points."""

from parallel_et.job.job import JOBS
from parallel_et.papers.selections import cluster_rows, selection_rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.trials.runner import TrialsOptions

JOB = str(JOBS / "thesis-2018" / "gp-clusters-line.toml")
RBF, LINEAR = (['inference.selection="gp"', f'inference.gp={{kernel="{k}", first="own"}}'] for k in ("rbf", "linear"))


def test_from_the_optimum_on_a_line_a_linear_kernel_wanders_away(tmp_path):
    experiment = {"job": "line", "optimum": True, "published": {}, "variants": {"RBF": RBF, "linear": LINEAR}}
    options = TrialsOptions(JOB, ["anneal.iterations=25"], 1)
    rbf, linear = cluster_rows(Ranks(), experiment, options, tmp_path / "line", range(301, 303))
    assert rbf.measured.startswith("right in 2 of 2")
    assert linear.measured.startswith("right in 0 of 2")
    assert rbf.job == "line, from the optimum: RBF"


def test_each_selection_is_compared_with_the_first(tmp_path):
    experiment = {
        "job": "bars",
        "published": {"text": "as good"},
        "truth": {"pi": 0.2},
        "variants": {"own": [], "random": ['inference.selection="random"']},
    }
    job = str(JOBS / "thesis-2018" / "gp-bars.toml")
    options = TrialsOptions(job, ["data.points=300", "anneal.iterations=8", "run.seed=303"], 2)
    own, random = selection_rows(Ranks(), experiment, options, tmp_path / "bars", range(303, 305))
    assert own.verdict == "the first"
    assert random.measured == "all causes in 0 of 2"
