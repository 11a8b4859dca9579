"""Ctrl-C in the terminal of mpirun: the first stops the run with a checkpoint, the second ends it at once."""

import os
import signal
import time

import numpy as np
import pytest
from launch import TIMEOUT_SECONDS, call, paused, ranks_of, wait_for
from restarts import ENDLESS, number
from terminal import Terminal

from parallel_et.control import signals

SMALL = """
[model]
name = "linca"
causes = 4
sigma = 1.0
[data]
source = "rows.npy"
[inference]
candidates = 3
gamma = 2
[anneal]
iterations = 3
"""
ITERATIONS = ("--set", "run.checkpoint.every=7", "--allow", "run.checkpoint")


@pytest.mark.parametrize("ranks", [None, 2])
def test_the_first_stops_after_the_iteration_with_a_checkpoint_and_the_run_goes_on(place, ends_the_same, ranks):
    pause = paused(place, "runs.trainer", "History.add")  # stops the root in an iteration
    terminal = Terminal(ranks, "train", "job.toml", *ITERATIONS, cwd=place, **pause)
    wait_for((place / "here").exists, terminal.process)
    terminal.type()
    wait_for(lambda: "Ctrl-C" in terminal.output, terminal.process)
    (place / "go").touch()
    assert terminal.wait() == 75, terminal.output
    assert "\nCtrl-C: stops after this iteration, with a checkpoint; press it again to end at once\n" in terminal.output
    assert "stopped by a signal after 1 iterations; the same command resumes\n" in terminal.output
    assert terminal.output.count("Ctrl-C: stops") == 1  # only the root prints
    assert "Traceback" not in terminal.output
    assert number(place) == 1
    assert not (place / "runs/job/lock").exists()
    ends_the_same(place, call("train", "job.toml", *ITERATIONS, cwd=place))


def test_the_second_ends_it_at_once(place):
    pause = paused(place, "runs.trainer", "History.add")
    terminal = Terminal(2, "train", "job.toml", *ENDLESS, cwd=place, **pause)
    wait_for((place / "here").exists, terminal.process)
    terminal.type()
    wait_for(lambda: "Ctrl-C" in terminal.output, terminal.process)
    time.sleep(1.5)  # within a second it would count as the same
    assert terminal.process.poll() is None
    terminal.type()  # no iteration can end now
    assert terminal.wait() != 75, terminal.output  # mpirun has an exit code of its own here, at times 0
    no_rank_is_left(place)
    assert number(place) == 0
    assert not (place / "runs/job/result.h5").exists()


def no_rank_is_left(place):
    """Wait until no process runs in a folder."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while ranks_of(place) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not ranks_of(place)


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A folder with a run, rows and images."""
    place = tmp_path_factory.mktemp("things")
    rng = np.random.default_rng(1)
    np.save(place / "rows.npy", rng.normal(size=(4000, 9)))
    np.save(place / "picture.npy", rng.normal(size=(90, 90)))
    (place / "small.toml").write_text(SMALL)
    done = call("train", "small.toml", "--quiet", cwd=place)
    assert done.returncode == 0, done.stderr
    return place


OTHERS = [
    (
        "infer",
        "runs/small rows.npy",
        "storage.output",
        "Output.write",
        "as soon as the current rows are written",
        "points",
    ),
    (
        "patches",
        "picture.npy --size 5 --count 9000",
        "storage.output",
        "Output.write",
        "as soon as the current rows are written",
        "of 9000 patches",
    ),
    (
        "trials",
        "small.toml --count 9",
        "trials.table",
        "Trials.add",
        "after the current trials",
        "of 9 trials",
    ),
    (
        "reproduce",
        "et-2010 --only nmf-bars-noisy --trials 9",
        "trials.table",
        "Trials.add",
        "after the current trials",
        "of 9 trials",
    ),
]


def asked_to_stop(things, place, name, args, module, method, answer):
    """Return a terminal with a running command that has answered to the first Ctrl-C."""
    (place / "runs").mkdir()
    for path in ("rows.npy", "picture.npy", "small.toml", "runs/small"):
        (place / path).symlink_to(things / path)
    terminal = Terminal(2, name, *args.split(), cwd=place, **paused(place, module, method))
    wait_for((place / "here").exists, terminal.process)
    terminal.type()
    wait_for(lambda: f"\nCtrl-C: stops {answer}; press it again to end at once\n" in terminal.output, terminal.process)
    return terminal


@pytest.mark.parametrize("name, args, module, method, answer, end", OTHERS)
def test_the_other_commands_stop_well_too(things, tmp_path, name, args, module, method, answer, end):
    terminal = asked_to_stop(things, tmp_path, name, args, module, method, answer)
    (tmp_path / "go").touch()
    assert terminal.wait() == 75, terminal.output
    assert "stopped by a signal" in terminal.output
    assert f"{end}; the same command resumes" in terminal.output


@pytest.mark.parametrize("name, args, module, method, answer, end", OTHERS)
def test_a_second_ends_them_at_once_too(things, tmp_path, name, args, module, method, answer, end):
    terminal = asked_to_stop(things, tmp_path, name, args, module, method, answer)
    time.sleep(1.5)  # within a second it would count as the same
    assert terminal.process.poll() is None
    terminal.type()  # the current piece never ends
    assert terminal.wait() != 75, terminal.output
    no_rank_is_left(tmp_path)
    assert "the same command resumes" not in terminal.output


def test_it_is_not_heard_where_it_is_ignored_as_in_the_background_of_a_script():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.listen_for_signals()
    for which in (signal.SIGINT, signal.SIGUSR1):
        os.kill(os.getpid(), which)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not signals.received_signal() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert signals.received_signal() == "SIGUSR1"
