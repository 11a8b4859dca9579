"""The command reproduce: experiments of a paper, compared with its figures."""

import os
import re
import shutil
import signal
import time
import tomllib
from math import comb

import numpy as np
import pytest
from scipy.io import wavfile

from parallel_et.cli import EXIT_STOPPED, reproduce
from parallel_et.cli.reproduce import JOBS, main
from parallel_et.control.signals import signals_restored
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.job.job import read_job
from parallel_et.papers import kinds
from parallel_et.papers.occlusion import explain_scenes
from parallel_et.papers.sources import find_own_data, prepare_data
from parallel_et.papers.table import summarise_trials
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.datasets import ICON_NAMES, write_icons
from parallel_et.storage.hdf5 import read_attributes
from parallel_et.trials.table import Trial, read_trials

TABLES = sorted(JOBS.glob("*/table.toml"))


def a_trial(seed, found=10):
    return Trial(seed, 10, found, 0.1, 0.0, 100, 1.5, {"W": np.zeros((25, 10))})


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_a_table_has_every_job_of_its_paper_and_all_are_valid(path):
    named = {experiment["job"] for experiment in tomllib.loads(path.read_text())["experiment"]}
    there = {job.stem for job in path.parent.glob("*.toml")} - {"table"}
    assert named == there
    for job in there:
        read_job(str(path.parent / f"{job}.toml"))


@pytest.mark.parametrize(
    ("complete", "of", "verdict"),
    [(50, 50, "met"), (49, 50, "as good"), (92, 100, f"worse (p = {comb(100, 8) / comb(150, 8):.2g})")],
)
def test_a_figure_is_worse_if_chance_does_not_explain_it(complete, of, verdict):
    """Compare 92 of 100 with 50 of 50: p is the probability that all 8 failures of 150 trials are among these 100."""
    trials = [a_trial(seed, 10 if seed < complete else 9) for seed in range(of)]
    row = summarise_trials({"job": "bars", "published": {"found": 50, "of": 50, "mae": 0.2}}, trials, range(of))
    assert row.verdict == verdict
    assert row.published == "50 of 50, MAE 0.200"
    assert row.measured.startswith(f"{complete} of {of}, ")
    assert (row.trials, row.seconds) == (of, 1.5)


def test_only_the_trials_that_were_asked_for_count():
    trials = [a_trial(seed, 9) for seed in range(10)] + [a_trial(seed) for seed in range(10, 14)]
    row = summarise_trials({"job": "bars", "published": {"found": 1, "of": 2}}, trials, range(10, 14))
    assert row.measured == "4 of 4, 10.00 causes, MAE 0.100"


def test_an_experiment_on_artificial_data_goes_on_where_it_was(tmp_path, capsys):
    argv = ["et-2010", "--only", "linca-bars-noisy", "--output", str(tmp_path / "here")]
    assert main(Ranks(), [*argv, "--trials", "2"]) == 0
    assert main(Ranks(), [*argv, "--trials", "3"]) == 0
    printed = capsys.readouterr().out
    assert "2 of 3 trials already exist" in printed
    table = (tmp_path / "here/table-only.md").read_text()
    assert table in printed
    (row,) = (line for line in table.splitlines() if line.startswith("| linca-bars-noisy |"))
    assert "| 50 of 50, MAE 0.210 |" in row
    assert " of 3, " in row
    assert "| 3 |" in row


def test_it_stops_in_time_and_says_so_by_its_exit_code(tmp_path):
    argv = ["et-2010", "--only", "linca-bars-noisy", "--output", str(tmp_path), "--max-time", "1 s"]
    assert main(Ranks(), argv) == EXIT_STOPPED
    assert not (tmp_path / "table-only.md").exists()


def test_digits_of_a_user_are_compared_with_classical_nmf(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "mine").mkdir()
    strokes = rng.random((12, 28, 28)) < 0.1
    np.save(tmp_path / "mine/digits.npy", np.einsum("nh,hij->nij", rng.random((60, 12)) < 0.2, strokes).clip(0, 1.0))
    argv = ["et-2010", "--only", "nmf-digits", "--data", str(tmp_path / "mine"), "--output", str(tmp_path / "here")]
    assert main(Ranks(), argv) == 0
    table = (tmp_path / "here/table-only.md").read_text()
    assert "% against NMF by squares" in table
    assert f"Data `digits`: from {tmp_path / 'mine/digits.npy'}" in table
    assert (tmp_path / "here/nmf-digits/report/report.html").exists()


def test_data_of_a_user_and_those_that_ship_are_not_mixed_up(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    np.save(tmp_path / "mine/grass.npy", np.random.default_rng(1).random((40, 50)))
    trained = []
    monkeypatch.setattr(reproduce, "real_data_rows", lambda *args: trained.append(args[2].set[0].partition("=")[2]))
    argv = ["et-2010", "--only", "mca-grass", "--output", str(tmp_path / "here")]
    for more in (["--data", str(tmp_path / "mine")], []):
        assert main(Ranks(), [*argv, *more]) == EXIT_STOPPED
    own, shipped = (read_attributes(source.partition(":")[0])["images"] for source in trained)
    assert "mine/grass.npy" in own
    assert "mine/grass.npy" not in shipped


def test_grass_and_sound_of_a_user_may_be_fewer_than_the_papers(tmp_path, monkeypatch):
    shutil.copytree(JOBS / "et-2010", tmp_path / "jobs/et-2010")
    job = tmp_path / "jobs/et-2010/linca-sound.toml"
    job.write_text(re.sub("(?m)^iterations = 400", "iterations = 10", job.read_text()))
    monkeypatch.setattr(reproduce, "JOBS", tmp_path / "jobs")
    rng = np.random.default_rng(1)
    (tmp_path / "mine/sound").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "mine/grass.npy", rng.random((40, 50)))
    wavfile.write(tmp_path / "mine/sound/a.wav", 16000, rng.normal(0, 3000, 700).astype(np.int16))
    ranks = Ranks()
    own = find_own_data(str(tmp_path / "mine"))
    sources = {name: prepare_data(name, tmp_path / "data", own[name], ranks) for name in ("grass", "sound")}
    assert FileRows(sources["grass"]).points == 40000
    assert 400 < FileRows(sources["sound"]).points <= 501  # without silence at both ends
    argv = ["et-2010", "--only", "linca-sound", "--data", str(tmp_path / "mine"), "--output", str(tmp_path / "here")]
    assert main(ranks, argv) == 0
    done = tomllib.loads((tmp_path / "here/linca-sound/job.toml").read_text())
    assert done["data"]["points"] == FileRows(sources["sound"]).points
    assert done["anneal"]["iterations"] == 10


def test_a_signal_between_two_experiments_is_heard(tmp_path, monkeypatch, capsys):
    only = ["--only", "linca-bars-noisy", "--trials", "1"]

    def signalled(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)  # a thread receives it
        return summarise_trials(*args)

    monkeypatch.setattr(kinds, "summarise_trials", signalled)
    with signals_restored():
        assert main(Ranks(), ["et-2010", *only, "--output", str(tmp_path)]) == EXIT_STOPPED
    assert (
        "stopped by a signal before linca-bars-noisy, begun by moments; the same command resumes"
        in capsys.readouterr().out
    )


def test_data_of_a_user_that_are_there_twice_are_refused(tmp_path):
    for name in ("grass.png", "grass-2.png"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"expected one grass, found grass-2.png, grass.png"):
        find_own_data(str(tmp_path))


def test_the_best_of_sets_on_the_same_data_and_scenes_beyond_gamma_are_rows(tmp_path):
    rows = main(Ranks(), ["oca-2014", "--only", "bars-5x5-clean", "--output", str(tmp_path), "--trials", "2"])
    assert rows == 0
    table = (tmp_path / "table-only.md").read_text()
    assert "| bars-5x5-clean | 78 of 100 | " in table
    assert "| bars-5x5-clean: best of 20 by sigma | 50 of 50 | " in table
    first = read_trials(tmp_path / "bars-5x5-clean.h5")[1]
    second = read_trials(tmp_path / f"bars-5x5-clean-sets/{first[0].seed}.h5")[1]
    assert [t.seed for t in first] == [t.seed for t in second]
    assert first[0].free_energy == second[0].free_energy  # on data of the same seed
    assert first[1].free_energy != second[1].free_energy


def test_scenes_of_any_number_of_causes_are_explained_by_what_was_learned(tmp_path):
    settings = ["anneal.iterations=60", "run.seed=1001", "run.snapshots=0"]
    found = explain_scenes(Ranks(), str(JOBS / "oca-2014/colored-bars.toml"), settings, tmp_path / "run", None)
    many = found.causes > 3
    assert 50 < many.sum() < 200
    assert found.recognised[~many].mean() > 0.9
    assert found.recognised[many].mean() > 0.7


def test_icons_of_a_theme_stand_for_objects(tmp_path):
    for name in ICON_NAMES:
        (tmp_path / "theme" / f"{name}.png").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "theme" / f"{name}.png").write_bytes(name.encode())
    place = write_icons(tmp_path, tmp_path / "theme")
    assert len(list(place.iterdir())) == 20
    assert (place / "places-folder.png").read_bytes() == b"places/folder"
    with pytest.raises(UserError, match="expected an icon, found none; apt-get install tango-icon-theme"):
        write_icons(tmp_path, tmp_path)
