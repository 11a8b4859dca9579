"""The table metrics.csv: no line is repeated or missing after any fault."""

import csv
import os
import signal

import h5py
import numpy as np
import pytest
from launch import call, ended, learned, ranks_of, start, wait_for, with_startup_code
from restarts import number

CSV = ("--set", "run.metrics=csv", "--allow", "run.metrics", "--set", "run.checkpoint.every=20")
SLOW = """
import time
from parallel_et.runs.checkpointer import Checkpointer
after = Checkpointer._after
Checkpointer._after = lambda checkpointer: time.sleep(0.05) or after(checkpointer)
"""
MAY = ("--allow", "run.checkpoint")


def table(place):
    with open(place / "runs/job/metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def agrees(place):
    """Assert that the table has the bits of the history of the result."""
    rows = table(place)
    with h5py.File(place / "runs/job/result.h5") as file:
        history = {name: values[()] for name, values in file["history"].items()}
    assert [int(row["iteration"]) for row in rows] == list(range(1, 301))
    assert set(rows[0]) == {"iteration", *history}
    assert list(rows[0])[:3] == ["iteration", "free_energy", "temperature"]
    for name, values in history.items():
        np.testing.assert_array_equal(np.array([float(row[name]) for row in rows]), values)


def test_it_is_the_history_of_the_result_also_after_kills_and_torn_lines(place, undisturbed):
    path = place / "runs/job/metrics.csv"
    process = start(2, "job.toml", *CSV, *MAY, cwd=place, **with_startup_code(place, SLOW))
    wait_for(lambda: number(place) >= 20, process)
    os.kill(ranks_of(place)[0], signal.SIGKILL)
    ended(process, place)
    with path.open("a") as file:
        file.write("299,1.0,2")  # a partial line of an iteration that is repeated
    done = call("train", "job.toml", *CSV, *MAY, "--max-time", "0:00:00", cwd=place)
    assert done.returncode == 75, done.stderr
    assert [int(row["iteration"]) for row in table(place)] == list(range(1, number(place) + 1))
    done = call("train", "job.toml", *CSV, *MAY, cwd=place)
    assert done.returncode == 0, done.stderr
    agrees(place)
    assert learned(place / "runs/job/result.h5") == learned(undisturbed / "runs/job/result.h5")


def test_a_run_that_went_without_has_all_lines_from_then_on(torn):
    last = torn / "runs/job/checkpoints/000300.h5"
    last.unlink()
    done = call("train", "job.toml", *CSV, *MAY, cwd=torn)
    assert done.returncode == 0, done.stderr
    agrees(torn)


@pytest.mark.parametrize("what", ["folder", "link"])
def test_a_place_that_cannot_be_written_is_told_once_and_ends_nothing(torn, what):
    (torn / "runs/job/checkpoints/000300.h5").unlink()
    path, other = torn / "runs/job/metrics.csv", torn / "mine.txt"
    other.write_text("mine")
    path.mkdir() if what == "folder" else path.symlink_to(other)
    done = call("train", "job.toml", *CSV, *MAY, cwd=torn)
    assert done.returncode == 0, done.stderr
    if what == "folder":
        line = "warning: runs/job/metrics.csv: Is a directory; the next successful write includes all iterations\n"
        assert done.stdout.count(line) == done.stdout.count("metrics.csv") == 1
    else:
        agrees(torn)
    assert other.read_text() == "mine"
