"""Trials on planted fields, counted by cosines, and their resumption."""

from parallel_et.job.job import JOBS
from parallel_et.papers.planted import run_planted
from parallel_et.parallel.communicator import Ranks
from parallel_et.trials.runner import TrialsOptions

SMALL = ["model.causes=4", "data.points=600", "anneal.iterations=10"]


def test_variants_count_the_fields_that_they_find(tmp_path, capsys):
    options = TrialsOptions(str(JOBS / "planted" / "nmf.toml"), [*SMALL, "run.seed=21"], 3)
    variants = {"moments": [], "all the same": ["model.init={ W = 1.0 }", "anneal.renew=0"]}
    for _ in range(2):
        found = run_planted(Ranks(), options, variants, tmp_path / "nmf", range(21, 24))
        (trials, shares), (_, others) = found["moments"], found["all the same"]
        assert [trial.seed for trial in trials] == [21, 22, 23]
        assert shares.tolist() == [1.0, 1.0, 1.0]
        assert others.max() < 0.5
    assert "3 of 3 trials already exist" in capsys.readouterr().out
