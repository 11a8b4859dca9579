"""The command trials: reliability of the jobs of the paper on few successive seeds, resumption and errors."""

import os
import re
import shutil
import signal
import tomllib
from pathlib import Path
from tempfile import mkdtemp

import h5py
import numpy as np
import pytest
from damaged_results import change, put
from launch import call, ended, launch, paused, ranks_of, start, wait_for

from parallel_et.cli.trials import main
from parallel_et.job.job import read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.storage.atomic import hdf5_image
from parallel_et.storage.checksum import write_with_checksum
from parallel_et.trials.runner import wilson
from parallel_et.trials.table import read_trials

JOBS = Path(__file__).parent.parent.parent / "jobs" / "et-2010"
JOB = """
[model]
name = "linca"
causes = 10
sigma = 3.0
pi = 0.2
learn = ["W", "sigma"]
[data]
source = "bars"
points = 300
[inference]
candidates = 5
gamma = 3
[anneal]
iterations = 60
temperature = [[0.1, 8.0], [0.8, 1.0]]
noise.W = 0.05
[run]
seed = 3
"""
JOB_TOML = read_job(tomllib.loads(JOB)).toml()
FILE = "runs/job-trials.h5"
COLUMNS = ("seed", "causes", "found", "mae", "sigma", "pi", "free_energy", "iterations")


@pytest.mark.parametrize(
    "name, least, mae",  # a job with the published reliability has fewer than ``least`` of 12 once in 1000
    [("linca-bars-noisy", 11, 0.24), ("nmf-bars-noisy", 10, 0.24), ("mca-bars-noisy", 7, 0.35)],
)
def test_the_noisy_bars_are_found_about_as_often_as_published(tmp_path, name, least, mae):
    done = launch(2, "-m", "parallel_et", "trials", JOBS / f"{name}.toml", "--count", "12", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, trials = map(int, re.search(r"all 10 causes found in (\d+) of (\d+) trials", done.stdout).groups())
    assert trials == 12
    assert found >= least
    assert float(re.search(r"all causes: mean ([\d.]+)", done.stdout)[1]) <= mae


@pytest.fixture
def place(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def trials(ranks, *args, place):
    if ranks is None:
        return call("trials", "job.toml", *args, cwd=place)
    return launch(ranks, "-m", "parallel_et", "trials", "job.toml", *args, cwd=place)


def halted(*args, place, after="add"):
    """Start the command on two ranks; each rank waits for the file go after a trial, or another step."""
    # check for the file before each trial
    looking = "import parallel_et.control.stopping as stopping\nstopping.FILE_CHECK_SECONDS = 0.0\n"
    pausing = paused(place, "trials.table", f"Trials.{after}", looking)
    return start(2, "job.toml", *args, name="trials", cwd=place, **pausing)


def rows(path):
    """Return all columns of a file of trials."""
    with h5py.File(path) as file:
        return {name: column[()] for name, column in file.items()}


def same(one, other):
    for name in (*COLUMNS, "W"):
        assert one[name].tobytes() == other[name].tobytes(), name


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    place = tmp_path_factory.mktemp("undisturbed")
    (place / "job.toml").write_text(JOB)
    done = trials(None, "--count", "12", place=place)
    assert done.returncode == 0, done.stderr
    return rows(place / FILE)


def test_the_file_has_a_row_a_trial_that_a_plain_run_would_have_learned(place, undisturbed):
    assert set(undisturbed) == {*COLUMNS, "seconds", "W"}
    assert undisturbed["seed"].tolist() == list(range(3, 15))
    assert undisturbed["W"].shape == (12, 25, 10)
    for index in (0, 7):
        done = call("train", "job.toml", "--set", f"run.seed={3 + index}", "--fresh", cwd=place)
        assert done.returncode == 0, done.stderr
        with h5py.File(place / "runs/job/result.h5") as file:
            for name in ("W", "sigma", "pi"):
                assert (file[f"params/{name}"][()] == undisturbed[name][index]).all()
            assert file["history/free_energy"][-1] == undisturbed["free_energy"][index]
            assert len(file["history/free_energy"]) == undisturbed["iterations"][index]
        found = undisturbed["found"][index]
        assert f"{'all' if found == 10 else f'{found} of'} 10 causes found" in done.stdout


@pytest.mark.mpi
def test_trials_are_the_same_however_they_are_spread(monkeypatch):
    ranks = Ranks()
    place = ranks.from_root(lambda: Path(mkdtemp()))
    monkeypatch.chdir(place)
    args = ["job.toml", "--count", "5", "--set", "anneal.iterations=20", "--output"]
    if ranks.is_root:
        (place / "job.toml").write_text(JOB)
    assert ranks.run_on_root(lambda alone: main(alone, [*args, "alone.h5"])) == 0
    for share in ("1", "2", "3", "5"):
        assert main(ranks, [*args, f"{share}.h5", "--ranks-per-trial", share]) == 0
        if ranks.is_root:
            same(rows(f"{share}.h5"), rows("alone.h5"))
    if ranks.is_root:
        assert sorted(path.name for path in place.iterdir()) == [
            *(f"{s}.h5" for s in (1, 2, 3, 5)),
            "alone.h5",
            "job.toml",
        ]
        shutil.rmtree(place)


def test_trials_that_were_killed_go_on_without_those_that_were_done(place, undisturbed):
    process = halted("--count", "12", place=place)
    parts = place / f"{FILE}.parts"
    wait_for(lambda: len(list(parts.glob("*.h5"))) == 2, process)
    for pid in ranks_of(place):
        os.kill(pid, signal.SIGKILL)
    _, code, _ = ended(process, place)
    assert code != 0
    kept = {int(path.stem): rows(path)["seconds"][0] for path in parts.glob("*.h5")}
    assert len(kept) == 2
    seed = min(kept)
    (parts / f"{seed}.h5").write_bytes((parts / f"{seed}.h5").read_bytes()[:3000])
    done = trials(3, "--count", "12", place=place)
    assert done.returncode == 0, done.stderr
    assert f"warning: {FILE}.parts/{seed}.h5: expected" in done.stdout
    assert f"{FILE}: {len(kept) - 1} of 12 trials already exist" in done.stdout
    found = rows(place / FILE)
    same(found, undisturbed)
    again = dict(zip(found["seed"].tolist(), found["seconds"], strict=True))
    assert all((again[s] == seconds) == (s != seed) for s, seconds in kept.items())
    assert not parts.exists()


def test_more_trials_are_added_to_those_that_are_there(place, undisturbed):
    assert trials(None, "--count", "5", place=place).returncode == 0
    before = rows(place / FILE)
    assert before["seed"].tolist() == [3, 4, 5, 6, 7]
    late = trials(None, "--count", "2", "--set", "run.seed=13", "--set", "run.threads=2", place=place)
    assert "seeds 13 to 14" in late.stdout
    done = trials(2, "--count", "12", place=place)
    assert f"{FILE}: 7 of 12 trials already exist" in done.stdout
    assert "of 12 trials (" in done.stdout
    found = rows(place / FILE)
    same(found, undisturbed)
    assert (found["seconds"][:5] == before["seconds"]).all()
    once_more = trials(None, "--count", "12", place=place)
    assert (rows(place / FILE)["seconds"] == found["seconds"]).all()
    assert once_more.stdout.splitlines()[1:] == done.stdout.splitlines()[-len(once_more.stdout.splitlines()) + 1 :]


def test_trials_of_another_job_are_refused_or_put_aside(place):
    assert trials(None, "--count", "1", place=place).returncode == 0
    other = ("--count", "1", "--set", "model.pi=0.3")
    refused = trials(None, *other, place=place)
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        f"{FILE}: holds trials of another job; use another --output, or --fresh to start over",
        "  model.pi: 0.2 there, 0.3 here",
    ]
    before = rows(place / FILE)
    fresh = trials(None, *other, "--fresh", place=place)
    assert fresh.returncode == 0, fresh.stderr
    assert f"the earlier trials were moved to {FILE}.old-1" in fresh.stdout
    same(rows(place / f"{FILE}.old-1"), before)
    assert rows(place / FILE)["W"].tobytes() != before["W"].tobytes()
    assert sorted(path.name for path in place.iterdir()) == ["job.toml", "runs"]


@pytest.mark.parametrize("way", ["one rank", "all ranks", "file"])
def test_they_stop_after_the_trials_that_run_and_go_on(place, undisturbed, way):
    process = halted("--count", "12", place=place)
    parts = place / f"{FILE}.parts"
    wait_for(lambda: list(parts.glob("*.h5")), process)
    if way == "one rank":
        os.kill(ranks_of(place)[1], signal.SIGUSR1)
    elif way == "all ranks":
        process.send_signal(signal.SIGTERM)
    else:
        (parts / "stop").touch()
    (place / "go").touch()
    _, code, said = ended(process, place)
    assert code == 75, said
    there = len(rows(place / FILE)["seed"])
    assert 1 <= there < 12
    reason = "the file stop" if way == "file" else "a signal"
    assert f"stopped by {reason} after {there} of 12 trials; the same command resumes" in said
    assert [path.name for path in (place / "runs").iterdir()] == [Path(FILE).name]
    assert trials(None, "--count", "12", place=place).returncode == 0
    same(rows(place / FILE), undisturbed)


def test_they_stop_before_the_time_limit(place):
    done = trials(2, "--count", "3", "--max-time", "0.01 s", place=place)
    assert done.returncode == 75, done.stderr
    assert "stopped by the time limit after 0 of 3 trials" in done.stdout
    assert list((place / "runs").iterdir()) == []


def test_the_best_of_each_set_is_that_of_the_smallest_sigma_or_the_largest_free_energy(place, undisturbed):
    found = np.random.default_rng(1).permutation([10] * 6 + [9] * 6)
    write_with_checksum(place / "given.h5", hdf5_image({"": {**undisturbed, "found": found}}, {"job": JOB_TOML}))
    sigma, energy = (undisturbed[name] for name in ("sigma", "free_energy"))
    for by, merit, words in (("sigma", -sigma, "smallest sigma"), ("free_energy", energy, "largest free energy")):
        for given, size in (((), 12), (("--of", "5"), 5), (("--of", "3"), 3)):
            options = ("--count", "12", "--output", "given.h5", "--best", by, *given)
            done = trials(None, *options, place=place)
            assert done.returncode == 0, done.stderr
            sets = 12 // size
            best = [k * size + merit[k * size : (k + 1) * size].argmax() for k in range(sets)]
            good = (found[best] == 10).sum()
            low, high = wilson(good, sets)
            interval = f"({good / sets:.0%}, 95 % interval {low:.0%} to {high:.0%})"
            assert f"best of {size} by {words}: all 10 causes found in {good} of {sets} sets {interval}" in done.stdout
            assert ("the last 2 trials are not used" in done.stdout) == (size == 5)
            assert "all 10 causes found in 6 of 12 trials (50%" in done.stdout


def test_trials_of_data_without_known_causes_are_ranked(tmp_path):
    np.save(tmp_path / "d.npy", np.random.default_rng(1).normal(size=(60, 4)))
    (tmp_path / "job.toml").write_text(
        '[model]\nname = "linca"\ncauses = 3\nlearn = ["W", "sigma"]\n[data]\nsource = "d.npy"\n'
        "[inference]\ncandidates = 2\ngamma = 1\n[anneal]\niterations = 5\n"
    )
    for options, name, sign in (((), "free_energy", -1), (("--best", "sigma"), "sigma", 1)):
        done = trials(None, "--count", "6", *options, place=tmp_path)
        assert done.returncode == 0, done.stderr
        found = rows(tmp_path / FILE)
        order = [int(seed) for seed in re.findall(r"^  seed (\d+): free energy ", done.stdout, re.MULTILINE)]
        assert order == (1 + np.argsort(sign * found[name])).tolist()
        assert "causes found" not in done.stdout
        assert np.isnan(found["mae"]).all()
    refused = trials(None, "--best", "sigma", "--of", "2", place=tmp_path)
    assert refused.stderr == "--of: expected a generator with known causes, found d.npy\n"
    np.save(tmp_path / "d.npy", np.ones((60, 5)))
    refused = trials(2, "--count", "7", place=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"{FILE}: /W: expected the shape (5, 3), found (4, 3); use another")


def test_trials_on_other_data_of_the_same_name_are_not_added(tmp_path):
    rows = np.random.default_rng(1).normal(0, 3, (60, 4))
    np.save(tmp_path / "data.npy", rows)
    text = JOB.replace('"bars"\npoints = 300', '"data.npy"').replace("iterations = 60", "iterations = 3")
    (tmp_path / "job.toml").write_text(text)
    assert trials(None, "--count", 1, place=tmp_path).returncode == 0
    np.save(tmp_path / "data.npy", 100 * rows)
    done = trials(None, "--count", 2, place=tmp_path)
    assert done.returncode == 2
    assert "expected trials on data of " in done.stderr
    assert trials(None, "--count", 2, "--fresh", place=tmp_path).returncode == 0


def test_a_trial_that_somebody_else_has_taken_is_told_at_the_end_and_run_by_the_next(place, undisturbed):
    process = halted("--count", "12", place=place)
    parts = place / f"{FILE}.parts"
    wait_for(lambda: len(list(parts.glob("*.h5"))) == 2, process)
    last = undisturbed["seed"][-1]
    (parts / f"{last}.taken").touch()
    (parts / "note.h5").touch()
    (place / "go").touch()
    _, code, said = ended(process, place)
    assert code == 2, said
    assert f"{FILE}: expected 12 trials, found none with seed {last}; the same command runs this trial\n" in said
    assert trials(None, "--count", "12", place=place).returncode == 0
    same(rows(place / FILE), undisturbed)


@pytest.mark.parametrize("after", ["take", "add"])
def test_one_group_that_fails_ends_all(place, after):
    process = halted("--count", "12", place=place, after=after)
    parts = place / f"{FILE}.parts"
    wait_for((place / "here").exists, process)
    wait_for(lambda: shutil.rmtree(parts, ignore_errors=True) or not parts.exists(), process)
    (place / "go").touch()
    _, code, said = ended(process, place)
    assert code == 2, said
    assert "expected a place to write to, found " in said


def test_trials_that_vanish_are_told_at_the_end_and_run_again(place, undisturbed):
    process = halted("--count", "12", place=place)
    parts = place / f"{FILE}.parts"
    wait_for(lambda: len(list(parts.glob("*.h5"))) == 2, process)
    gone = sorted(parts.glob("*.h5"))
    for path in gone:
        path.unlink()
    (place / "go").touch()
    _, code, said = ended(process, place)
    assert code == 2, said
    assert re.search(
        rf"{FILE}.parts/({gone[0].stem}|{gone[1].stem}).h5: expected a file of trials, found nothing", said
    )
    assert trials(None, "--count", "12", place=place).returncode == 0
    same(rows(place / FILE), undisturbed)


def test_a_seed_that_only_one_group_would_reject_ends_all():
    job = JOBS / "linca-bars-noisy.toml"
    done = launch(2, "-m", "parallel_et", "trials", job, "--count", "2", "--set", f"run.seed={2**63 - 1}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{job}: run.seed: expected a value below")


def test_the_interval_is_wilsons():
    low, high = wilson(46, 50)
    assert (round(low, 3), round(high, 3)) == (0.812, 0.968)
    assert wilson(50, 50)[1] == 1.0
    assert wilson(0, 5)[0] == 0.0


FAULTS = {
    "a bit": (None, "expected a file of trials, found a damaged one: its checksum is wrong"),
    "no seeds": (put("/seed", None), "/seed: expected finite numbers of 0 or more, found nothing there"),
    "a short column": (put("/sigma", [1.0]), "/sigma: expected the shape 2, found 1"),
    "pi 2": (put("/pi", [0.1, 2.0]), "/pi: expected finite numbers of 1e-09 or more and up to 1, found 2"),
    "W not a number": (put("/W", np.full((2, 25, 10), np.nan)), "/W: expected finite numbers"),
    "W flat": (put("/W", np.ones((2, 25))), "/W: expected the shape 2 x any x 10, found 2 x 25"),
    "half a seed": (put("/seed", [1.5, 2.5]), "/seed: expected whole numbers, found float64"),
    "no job": (put("job", None), "attribute job: expected a text, found nothing"),
    "job no TOML": (put("job", "[model"), "attribute job: expected TOML, found an error: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_trials_that_cannot_be_are_refused(place, undisturbed, fault):
    two = {name: column[:2] for name, column in undisturbed.items()}
    write_with_checksum(place / "given.h5", hdf5_image({"": two}, {"job": JOB_TOML}))
    assert len(read_trials(place / "given.h5")[1]) == 2
    how, line = FAULTS[fault]
    if how is None:
        content = bytearray((place / "given.h5").read_bytes())
        content[len(content) // 2] ^= 1
        (place / "given.h5").write_bytes(content)
    else:
        change(place / "given.h5", how)
    done = trials(None, "--count", "2", "--output", "given.h5", place=place)
    assert done.returncode == 2
    assert done.stderr.startswith(f"given.h5: {line}")
    assert done.stderr.endswith("; use another --output, or --fresh to start over\n")
    assert done.stderr.count("\n") == 1
