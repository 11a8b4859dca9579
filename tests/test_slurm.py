"""Jobs on a real Slurm of two nodes: after any end of a job the run resumes, and the result has the same bits."""

import mmap
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from cluster import PROGRAMS, Cluster
from launch import call, paused
from requirements import need, without

from parallel_et.runs.api import load

SCRIPTS = Path(__file__).parent.parent / "slurm"
TRAIN = SCRIPTS / "train.sbatch"
JOB = """
[model]
name = "linca"
causes = 10
pi = 0.2
[data]
source = "bars"
points = 2000
[inference]
candidates = 5
gamma = 3
[anneal]
iterations = 600
temperature = [[0.1, 10.0], [0.8, 1.0]]
noise.W = 0.05
[run]
checkpoint = { every = 20 }
"""
NOTICE = "--signal=B:USR1@40"
WHOLE = ("--nodes=2", "--ntasks-per-node=1", "--time=10", "--output=out.log")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster for these tests."""
    need(*PROGRAMS)
    if os.geteuid():
        without("Slurm's daemons are started by root only")
    it = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        it.start()
        yield it
    finally:
        it.stop()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The directory of a run of the job outside Slurm."""
    place = with_job(tmp_path_factory.mktemp("undisturbed"))
    done = call("train", "job.toml", "--quiet", cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "runs/job"


@pytest.fixture
def place(tmp_path):
    return with_job(tmp_path)


def with_job(place):
    (place / "job.toml").write_text(JOB)
    return place


def to_freeze(place):
    """Return the environment of a job that pauses after its first checkpoint, to be frozen there."""
    return paused(place, "runs.checkpoints", "Checkpoints.save")


@pytest.fixture(scope="module")
def limited(cluster, tmp_path_factory):
    """A job that has notice of its time limit while other tests run."""
    place = with_job(tmp_path_factory.mktemp("limited"))
    job = cluster.submit(*WHOLE, "--ntasks-per-node=2", NOTICE, TRAIN, "job.toml", cwd=place, **to_freeze(place))
    cluster.freeze(job, place / "runs/job", 4, place / "out.log")
    cluster.limit(job, place / "out.log")
    threading.Thread(target=cluster.thaw, args=(job, place / "out.log"), daemon=True).start()
    return job, place


@pytest.fixture(scope="module")
def overtaken(cluster, tmp_path_factory):
    """A job with an iteration that outlasts the notice. Its time limit ends it while other tests run."""
    place = with_job(tmp_path_factory.mktemp("overtaken"))
    job = cluster.submit(*WHOLE, NOTICE, TRAIN, "job.toml", cwd=place, **to_freeze(place))
    cluster.freeze(job, place / "runs/job", 2, place / "out.log")
    cluster.limit(job, place / "out.log")
    return job, place


@pytest.fixture(scope="module")
def stuck(cluster, undisturbed, tmp_path_factory):
    """A job without progress: each run in it stops at once with the exit code for resumption."""
    place = with_job(tmp_path_factory.mktemp("stuck"))
    python = place / "python"
    python.write_text(f'#!/bin/bash\n[[ $1 == -m ]] && exit 75\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return cluster.submit(*WHOLE, TRAIN, "job.toml", cwd=place, MAX_STALLS="2", PYTHON=str(python)), place


@pytest.fixture(scope="module", autouse=True)
def in_background(request):
    """Start the slow jobs before all tests."""
    for name in ("limited", "overtaken", "stuck"):
        request.getfixturevalue(name)


def assert_same(run, undisturbed, said):
    found, expected = load(str(run)), load(str(undisturbed))
    np.testing.assert_array_equal(found.W, expected.W, err_msg=said)
    assert found.history.keys() == expected.history.keys()
    for name in expected.history:
        if not name.startswith("seconds_"):
            np.testing.assert_array_equal(found.history[name], expected.history[name], err_msg=f"{name}\n{said}")


def test_a_job_that_is_requeued_by_others_resumes(cluster, undisturbed, place):
    size = ("--nodes", 2, "--ntasks-per-node", 1, "--time", "10:00")
    written = call("slurm", "job.toml", *size, "--write", "job.sbatch", cwd=place)
    assert written.returncode == 0, written.stderr
    log = place / "out.log"
    job = cluster.submit("--output=out.log", "job.sbatch", cwd=place, **to_freeze(place))
    cluster.freeze(job, place / "runs/job", 2, log)
    cluster.ask("scontrol", "requeue", job)
    state, code, said = cluster.end(job, 150, log)
    assert (state, code) == ("COMPLETED", 0), said
    assert "stopped by a signal" in said
    assert "resumes from" in said
    assert cluster.field(job, "Restarts") == "1"
    assert_same(place / "runs/job", undisturbed, said)
    assert not (place / "runs/job.restarts").exists()


def test_a_cancelled_job_is_not_requeued_and_resumes_when_submitted_again(cluster, undisturbed, place):
    log = place / "out.log"
    job = cluster.submit(*WHOLE, TRAIN, "job.toml", cwd=place, **to_freeze(place))
    cluster.freeze(job, place / "runs/job", 2, log)
    cluster.ask("scancel", job)
    state, _, said = cluster.end(job, 60, log)
    assert state == "CANCELLED", said
    assert "stopped by a signal" in said
    assert "queued again" not in said
    again = cluster.submit(*WHOLE, TRAIN, "job.toml", cwd=place)
    state, code, said = cluster.end(again, 120, log)
    assert (state, code) == ("COMPLETED", 0), said
    assert "resumes from" in said
    assert_same(place / "runs/job", undisturbed, said)


def test_a_job_started_by_mpirun_is_requeued_after_the_notice(cluster, undisturbed, place):
    log = place / "out.log"
    script = SCRIPTS / "train-mpirun.sbatch"
    job = cluster.submit(*WHOLE, script, "job.toml", "--output", "there", "--fresh", cwd=place, **to_freeze(place))
    cluster.freeze(job, place / "there", 2, log)
    cluster.ask("scancel", "--batch", "--signal=USR1", job)
    cluster.thaw(job, log)
    state, code, said = cluster.end(job, 150, log)
    assert (state, code) == ("COMPLETED", 0), said
    assert said.count("stopped with work left and queued again") == 1
    assert "on 2 ranks" in said
    assert "resumes from" in said
    assert_same(place / "there", undisturbed, said)


def test_each_job_of_a_chain_resumes_the_one_before(cluster, undisturbed, place):
    said = cluster.ask(
        SCRIPTS / "chain.sh", 3, *WHOLE, "--open-mode=append", TRAIN, "job.toml", cwd=place, **to_freeze(place)
    )
    jobs, log = said.rpartition("scancel ")[2].split(), place / "out.log"
    assert len(jobs) == 3
    cluster.freeze(jobs[0], place / "runs/job", 2, log)
    cluster.ask("scancel", "--batch", "--signal=USR1", jobs[0])
    cluster.thaw(jobs[0], log)
    ends = [cluster.end(job, 120, log) for job in jobs]
    assert [end[:2] for end in ends] == [("FAILED", 75), ("COMPLETED", 0), ("COMPLETED", 0)], ends[-1][2]
    assert ends[-1][2].count("resumes from") == 1
    assert "this run is finished" in ends[-1][2]
    assert_same(place / "runs/job", undisturbed, ends[-1][2])


def test_a_job_that_its_user_stops_is_not_requeued(cluster, place):
    log = place / "out.log"
    job = cluster.submit(*WHOLE, TRAIN, "job.toml", cwd=place, **to_freeze(place))
    cluster.freeze(job, place / "runs/job", 2, log)
    (place / "runs/job/stop").touch()
    cluster.thaw(job)
    state, code, said = cluster.end(job, 60, log)
    assert (state, code) == ("FAILED", 75), said
    assert "stopped by runs/job/stop" in said


def test_tasks_of_an_array_share_the_seeds(cluster, place):
    job = cluster.submit(
        "--array=0-1", "--ntasks=1", "--output=%a.log", SCRIPTS / "trials-array.sbatch", "job.toml",
        "--set", "anneal.iterations=20", cwd=place, TRIALS="3", SEED="5",
    )  # fmt: skip
    for task, seeds in ((0, "seeds 5 to 7"), (1, "seeds 8 to 10")):
        state, code, said = cluster.end(f"{job}_{task}", 90, place / f"{task}.log")
        assert (state, code) == ("COMPLETED", 0), said
        assert seeds in said
        assert "of 3 trials" in said


def test_ranks_that_were_started_separately_are_refused_in_one_line(cluster, place):
    log = place / "out.log"
    job = cluster.submit(*WHOLE, TRAIN, "job.toml", cwd=place, MPI="none")
    state, code, said = cluster.end(job, 60, log)
    assert (state, code) == ("FAILED", 2), said
    assert said.count("expected 2 ranks, found 2 times rank 0 of 1") == 1
    assert not (place / "runs/job").exists()


def test_a_single_rank_in_a_batch_script_is_allowed(cluster, place):
    text = f"#!/bin/sh\n{sys.executable} -m parallel_et.train job.toml --set anneal.iterations=2\n"
    (place / "plain.sh").write_text(text)
    state, code, said = cluster.end(cluster.submit(*WHOLE, "plain.sh", cwd=place), 60, place / "out.log")
    assert (state, code) == ("COMPLETED", 0), said
    assert "on 1 rank" in said


def test_only_shared_memory_of_killed_ranks_is_removed(cluster, place):
    left, used, young = (Path(f"/dev/shm/mpich_shm_{os.getpid()}_{name}") for name in ("left", "used", "young"))
    try:
        for path in (left, used, young):
            path.write_bytes(bytes(4096))
        os.utime(left, (0, 0))
        os.utime(used, (0, 0))
        with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
            job = cluster.submit(*WHOLE, TRAIN, "job.toml", "--dry-run", cwd=place)
            os.utime(young, (2**32, 2**32))  # never old enough, however long the job waits
            state, code, said = cluster.end(job, 60, place / "out.log")
        assert (state, code) == ("COMPLETED", 0), said
        assert [path.exists() for path in (left, used, young)] == [False, True, True]
    finally:
        for path in (left, used, young):
            path.unlink(missing_ok=True)


def test_a_job_without_progress_gives_up(cluster, stuck):
    job, place = stuck
    state, code, said = cluster.end(job, 150, place / "out.log")
    assert (state, code) == ("FAILED", 1), said
    assert said.count("queued again") == 2
    assert "gave up: 2 starts in a row without a newer checkpoint in runs/job/checkpoints, the newest: none" in said


def test_a_job_is_requeued_before_its_time_limit(cluster, limited, undisturbed):
    job, place = limited
    state, code, said = cluster.end(job, 200, place / "out.log")
    assert (state, code) == ("COMPLETED", 0), said
    assert int(cluster.field(job, "Restarts")) >= 1
    assert cluster.field(job, "NodeList") == "n[1-2]"
    assert "on 4 ranks" in said
    assert "stopped with work left and queued again" in said
    assert "resumes from" in said
    assert "DUE TO TIME LIMIT" not in said
    assert_same(place / "runs/job", undisturbed, said)


def test_a_job_that_is_ended_by_its_time_limit_is_requeued(cluster, overtaken, undisturbed):
    job, place = overtaken
    state, code, said = cluster.end(job, 200, place / "out.log")
    assert (state, code) == ("COMPLETED", 0), said
    assert "DUE TO TIME LIMIT" in said
    assert "resumes from" in said
    assert_same(place / "runs/job", undisturbed, said)
