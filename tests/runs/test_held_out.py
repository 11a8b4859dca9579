"""Held-out rows: they are not learned from, and their evidence is reported."""

import numpy as np
import pytest
from launch import call
from problems import job_table, random_data, random_params

from parallel_et import fit
from parallel_et.data.base import ArrayRows
from parallel_et.data.holdout import split_holdout
from parallel_et.errors import UserError

ET = {"candidates": 4, "gamma": 2}
TV = {"scheme": "tv", "states": 6, "gamma": 3, "rounds": 3}


@pytest.fixture(scope="module")
def points():
    return random_data("linca", 700, random_params("linca", 9, 5, seed=1), seed=2)


def job(inference=ET, anneal=None, **data):
    table = job_table({"name": "linca", "causes": 5}, inference, {"iterations": 4, **(anneal or {})}, seed=3)
    return {**table, "data": {"holdout": 0.2, **data}}


def parts(points):
    return [points[part.row_numbers(0, part.points)] for part in split_holdout(ArrayRows(points), 0.2, 3)]


def test_a_run_learns_what_it_learns_from_the_others_alone(points):
    learned, held = parts(points)
    for inference, anneal, data in ((ET, {"cut": {"schedule": 1.0}}, {"centre": True}), (TV, {}, {})):
        found = fit(job(inference, anneal, **data), points)
        alone = job(inference, anneal, **data)
        del alone["data"]["holdout"]
        other = fit(alone, learned)
        for name, value in other.params.items():
            assert found.params[name].tobytes() == value.tobytes()
        assert found.history["free_energy"].tobytes() == other.history["free_energy"].tobytes()
        np.testing.assert_allclose(found.history["holdout_evidence"][-1], other.score(held), rtol=1e-9)
        assert (found.metadata["N"], found.metadata["held out"]) == (len(learned), len(held)) == (560, 140)


def test_the_data_are_the_same_whatever_is_held_out(points):
    without = job()
    del without["data"]["holdout"]
    assert fit(job(), points).metadata["data fingerprint"] == fit(without, points).metadata["data fingerprint"]


def test_it_is_looked_at_once_a_pass_or_as_often_as_new_points_take_rounds_and_at_the_end(points):
    seen = [np.isfinite(fit(j, points).history["holdout_evidence"]) for j in (job(anneal={"batch": 200}), job(TV))]
    assert seen[0].tolist() == [False, False, True, True]
    assert seen[1].tolist() == [False, False, True, True]
    assert np.isfinite(fit(job(), points).history["holdout_evidence"]).all()


def test_rows_that_are_streamed_give_the_same_bits(points, tmp_path):
    np.save(tmp_path / "points.npy", points)
    tables = [job(source=f"{tmp_path}/points.npy", **more) for more in ({}, {"memory": "8 kB"}, {"memory": "40 kB"})]
    for table in tables:
        table["run"]["block"] = 16
    found = [fit(table) for table in tables]
    for other in found[1:]:
        for name in ("free_energy", "holdout_evidence"):
            assert other.history[name].tobytes() == found[0].history[name].tobytes()


def test_a_run_ends_when_they_get_no_better(points):
    stop = {"change": 0.05, "iterations": 3, "holdout": True}
    found = fit(job(anneal={"iterations": 100, "temperature": [[0, 3.0], [10, 1.0]], "stop": stop}), points)
    evidence = found.history["holdout_evidence"]
    assert 13 <= len(evidence) < 100
    best, calm = -np.inf, 0
    for t, value in enumerate(evidence):
        best, calm = (value, 0) if t < 10 or value > best + 0.05 else (best, calm + 1)
        assert (calm == 3) == (t == len(evidence) - 1)


def test_a_run_that_is_told_to_stop_goes_on_to_the_same_end(points, tmp_path):
    stop = {"change": 0.05, "iterations": 3, "holdout": True}
    table = job(anneal={"iterations": 60, "stop": stop})
    whole = fit(table, points)

    def end(params, settings, info):
        if settings.iteration == len(whole.history["free_energy"]) - 2:  # has converged
            raise KeyError

    table["run"] = {"seed": 3, "checkpoint": {"every": 1}}
    with pytest.raises(KeyError):
        fit(table, points, output=str(tmp_path / "run"), watch=end)
    again = fit(table, points, output=str(tmp_path / "run"))
    assert again.history["holdout_evidence"].tobytes() == whole.history["holdout_evidence"].tobytes()
    assert again.metadata["restarts"] == 1


def test_a_bad_row_is_named_by_its_number_in_the_file(points):
    for number in (0, 123, 699):
        bad = points.copy()
        bad[number, 4] = np.nan
        with pytest.raises(UserError, match=f"row {number}: expected numbers .* in column 4"):
            fit(job(), bad)


def test_a_stop_by_rows_that_are_held_out_needs_such(points):
    table = job(anneal={"stop": {"change": 0.1, "holdout": True}})
    del table["data"]["holdout"]
    with pytest.raises(UserError, match=r"anneal\.stop\.holdout: expected data\.holdout as well, found none"):
        fit(table, points)
    table = job(anneal={"stop": {"change": 0.1, "holdout": True, "fields": True}})
    with pytest.raises(UserError, match=r"anneal\.stop: expected fields or holdout"):
        fit(table, points)


def test_log_metrics_and_dry_run_tell_of_them(points, tmp_path):
    np.save(tmp_path / "points.npy", points)
    (tmp_path / "job.toml").write_text(
        '[model]\nname = "linca"\ncauses = 5\n[data]\nsource = "points.npy"\nholdout = 0.2\n'
        '[inference]\nscheme = "exact"\n[anneal]\niterations = 3\n[run]\nmetrics = "csv"\n'
    )
    dry = call("train", "job.toml", "--dry-run", cwd=tmp_path)
    assert "560 points of 9 dimensions and 140 held out" in dry.stdout
    done = call("train", "job.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs/job/metrics.csv").read_text().splitlines()
    last = dict(zip(*(line.split(",") for line in (lines[0], lines[-1])), strict=True))
    assert f"held out {float(last['holdout_evidence']):.5g}  used 560" in done.stdout


def test_a_model_without_evidence_holds_out_none(points):
    table = {"model": {"name": "ssmca", "causes": 4}, "inference": {"scheme": "sample"}, "data": {"holdout": 0.2}}
    with pytest.raises(UserError, match=r"data\.holdout: expected none for a model without evidence, found 0\.2"):
        fit(table, points)
