"""Locks of runs: one job at a time, and the lock of a dead job is taken over."""

import json
import os
import shutil
import signal
import threading

from launch import call, ended, ranks_of, start, train, wait_for
from restarts import ENDLESS, number

from parallel_et.storage import lock


def test_two_jobs_do_not_work_on_one_directory(place):
    process = start(2, "job.toml", *ENDLESS, cwd=place)
    wait_for(lambda: number(place), process)
    before = (place / "runs/job/lock").read_text()
    second = ("job.toml", *ENDLESS)
    for done in (train(2, *second, cwd=place), call("train", *second, "--fresh", cwd=place)):
        assert done.returncode == 2
        assert done.stderr.startswith("runs/job: expected that no other job works on it, found process ")
        assert done.stderr.count("\n") == 1
    assert json.loads((place / "runs/job/lock").read_text())["token"] == json.loads(before)["token"]
    (place / "runs/job/lock").unlink()
    wait_for((place / "runs/job/lock").exists, process)  # it is taken again
    process.send_signal(signal.SIGTERM)
    _, code, said = ended(process, place)
    assert code == 75, said


def lock_of(place, **changes):
    """Write the lock of a job on another node, or of a dead job."""
    holder = {
        "host": "elsewhere",
        "boot": "b",
        "pid": 1,
        "start": "1",
        "job": "",
        "restart": "0",
        "token": "t",
        "beat": 3,
    }
    (place / "runs/job/lock").write_text(json.dumps({**holder, **changes}))


def test_a_lock_of_a_killed_job_is_taken_over(torn, ends_the_same):
    process = start(1, "job.toml", *ENDLESS, "--output", "runs/killed", cwd=torn)
    wait_for(lambda: (torn / "runs/killed/checkpoints").exists(), process)
    os.kill(ranks_of(torn)[0], signal.SIGKILL)
    ended(process, torn)
    shutil.copy(torn / "runs/killed/lock", torn / "runs/job/lock")
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    assert "the lock of a job that died (" in done.stdout


def test_a_lock_of_another_node_without_signs_of_life_is_taken_over(torn, ends_the_same, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_TIMEOUT_SECONDS", 2.0)
    lock_of(torn)
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    assert "held by a job on elsewhere; waiting up to 2 s for a heartbeat" in done.stdout


def test_a_lock_of_another_node_with_signs_of_life_is_respected(torn, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_TIMEOUT_SECONDS", 200.0)
    over = threading.Event()

    def live():
        beat = 0
        while not over.wait(0.5):
            beat += 1
            lock_of(torn, beat=beat)

    lock_of(torn)
    alive = threading.Thread(target=live)
    alive.start()
    try:
        done = call("train", "job.toml", cwd=torn)
    finally:
        over.set()
        alive.join()
    assert done.returncode == 2
    assert done.stderr == ("runs/job: expected that no other job works on it, found process 1 on elsewhere\n")


def test_a_requeued_job_takes_its_own_lock_at_once(torn, ends_the_same, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    lock_of(torn, job="17")
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    assert "waiting" not in done.stdout
