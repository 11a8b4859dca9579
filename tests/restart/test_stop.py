"""Stopping on request, killing, and resumption of runs."""

import os
import signal
import time

import h5py
from launch import call, ended, ranks_of, start, wait_for, with_startup_code
from mpi4py import MPI
from restarts import ENDLESS, number

from parallel_et.job.job import read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.checkpointer import Checkpointer, Claim
from parallel_et.runs.directory import RunDirectory

SLOW = """
import time
from parallel_et.runs.checkpointer import Checkpointer
after = Checkpointer._after
Checkpointer._after = lambda checkpointer: time.sleep(0.1) or after(checkpointer)
"""


def test_whatever_stops_it_it_stops_well_and_goes_on_to_the_same_bits(place, ends_the_same):
    often = ("--set", "run.checkpoint.every=7", "--allow", "run.checkpoint")
    slow = with_startup_code(place, SLOW)  # the run cannot end before it receives the request
    for ranks, way in ((3, "SIGTERM"), (2, "SIGUSR1"), (2, "SIGUSR2"), (2, "file"), (3, "all ranks")):
        before = number(place)
        process = start(ranks, "job.toml", *often, cwd=place, **slow)
        wait_for(lambda before=before: number(place) > before, process)
        if way == "file":
            (place / "runs/job/stop").touch()
        elif way == "all ranks":
            process.send_signal(signal.SIGTERM)  # mpirun passes it on
        else:
            os.kill(ranks_of(place)[-1], signal.Signals[way])
        _, code, said = ended(process, place)
        assert code == 75, said
        reason = "the file stop" if way == "file" else "a signal"
        assert f"stopped by {reason} after {number(place)} iterations; the same command resumes" in said
        assert not (place / "runs/job/result.h5").exists()
        assert not (place / "runs/job/lock").exists()
    before = number(place)
    done = call("train", "job.toml", *often, "--max-time", "0:00:00", cwd=place)
    assert done.returncode == 75, done.stderr
    assert f"stopped by the time limit after {before + 1} iterations; the same command resumes" in done.stdout
    ends_the_same(place, call("train", "job.toml", *often, cwd=place))


def test_the_log_goes_on_without_gaps_or_repeats(place):
    options = (*ENDLESS, "--set", "run.checkpoint.every=50")
    process = start(2, "job.toml", *options, cwd=place)
    wait_for(lambda: number(place) >= 200, process)
    os.kill(ranks_of(place)[1], signal.SIGKILL)
    ended(process, place)
    log = place / "runs/job/log.txt"
    with log.open("a") as file:
        file.write("2026-01-01 00:00:00  iteration 999999/1000000  T 2  a line of an iteration that was lost\n")
    process = start(2, "job.toml", *options, cwd=place)
    wait_for(lambda: "iteration" in log.read_text().partition("resumes from")[2].partition("iterations")[2], process)
    process.send_signal(signal.SIGTERM)
    _, code, _ = ended(process, place)
    assert code == 75
    logged = [
        int(line.split("iteration ")[1].split("/")[0])
        for line in log.read_text().splitlines()
        if "  iteration " in line
    ]
    assert logged == sorted(set(logged))
    assert 999999 not in logged
    with h5py.File(sorted((place / "runs/job/checkpoints").glob("*.h5"))[-1]) as file:
        assert len(file["history/free_energy"]) == file.attrs["iteration"] == number(place)


def test_a_second_signal_ends_it_at_once(place):
    process = start(2, "job.toml", *ENDLESS, cwd=place)
    wait_for(lambda: number(place), process)
    pids = ranks_of(place)
    os.kill(pids[0], signal.SIGSTOP)  # no iteration can end now
    os.kill(pids[1], signal.SIGUSR1)
    time.sleep(1.5)
    assert process.poll() is None
    while process.poll() is None:  # those within a second of the first count as the same
        os.kill(pids[1], signal.SIGUSR1)
        time.sleep(1.5)
    _, code, said = ended(process, place)
    assert code not in (0, 75)
    assert "a second signal, SIGUSR1: ended at once" in said


def test_a_run_killed_before_its_first_checkpoint_says_that_it_starts_over(place):
    options = (*ENDLESS, "--set", "run.checkpoint.every='1 h'")
    process = start(2, "job.toml", *options, cwd=place)
    log = place / "runs/job/log.txt"
    wait_for(lambda: log.exists() and "iteration 1/" in log.read_text(), process)
    os.kill(ranks_of(place)[0], signal.SIGKILL)
    ended(process, place)
    done = call("train", "job.toml", *options, "--max-time", "0:00:00", cwd=place)
    assert done.returncode == 75
    assert "runs/job: this run has no checkpoint yet and starts from the beginning" in done.stdout


def test_a_wish_to_stop_while_it_starts_is_heard_and_an_old_one_is_not(place):
    (place / "runs/job").mkdir(parents=True)
    (place / "runs/job/stop").touch()
    os.utime(place / "runs/job/stop", (1, 1))
    short = ("--set", "anneal.iterations=3")
    assert call("train", "job.toml", *short, cwd=place).returncode == 0
    assert not (place / "runs/job/stop").exists()
    process = start(2, "job.toml", *ENDLESS, "--output", "runs/other", cwd=place)
    wait_for(lambda: len(ranks_of(place)) == 2, process)
    (place / "runs/other").mkdir(exist_ok=True)
    (place / "runs/other/stop").touch()
    _, code, said = ended(process, place)
    assert code == 75, said


def test_checkpoints_by_the_clock_begin_early_and_take_a_hundredth_of_the_time_at_most(place):
    job = read_job(str(place / "job.toml"), ["run.checkpoint.every='10 min'", f"data.source='{place / 'data.npy'}'"])
    checkpointer = Checkpointer(Claim(RunDirectory(str(place / "run")), job, print), Ranks(MPI.COMM_SELF))
    now = checkpointer.written = time.monotonic()
    for written_at, cost, due in ((0, 0.0, 60), (3, 0.0, 600), (3, 2.0, 600), (3, 20.0, 2000)):
        checkpointer.written_at, checkpointer.cost = written_at, cost  # iteration and seconds of the last checkpoint
        assert not checkpointer._due(now + due - 1)
        assert checkpointer._due(now + due + 1)
