"""Runs that cannot be lost: faults are made for real, and the run ends with the bits of one that nothing disturbed."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress

import h5py
import numpy as np
import pytest
from launch import ended, learned, ranks_of, start, train, wait_for
from mpi4py import MPI

from parallel_et.io.directory import RunDirectory
from parallel_et.job import read_job
from parallel_et.keeper import Keeper
from parallel_et.parallel.ranks import Ranks

JOB = """
[model]
name = "linca"
causes = 8
learn = ["W", "sigma", "pi"]
[data]
source = "data.npy"
[inference]
candidates = 5
gamma = 3
[anneal]
iterations = 300
temperature = [[0.1, 5.0], [0.8, 1.0]]
cut = { schedule = [[0.3, 0.0], [0.6, 1.0]], share = 0.9 }
noise.W = 0.05
[run]
snapshots = 50
checkpoint = { every = 100, keep = 3 }
"""
ENDLESS = ("--set", "anneal.iterations=1000000", "--set", "anneal.temperature=2.0", "--set", "run.snapshots=0")


def checkpoints(place):
    return sorted(path.name for path in (place / "runs/job/checkpoints").glob("*.h5"))


def number(place):
    return max((int(name[:6]) for name in checkpoints(place)), default=0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    place = tmp_path_factory.mktemp("undisturbed")
    np.save(place / "data.npy", np.random.default_rng(1).normal(size=(1500, 20)) * 3)
    (place / "job.toml").write_text(JOB)
    done = train(None, "job.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert checkpoints(place) == ["000100.h5", "000200.h5", "000300.h5"]
    return place


@pytest.fixture
def place(undisturbed, tmp_path):
    """Job and data, no run yet."""
    for name in ("data.npy", "job.toml"):
        shutil.copy(undisturbed / name, tmp_path)
    return tmp_path


@pytest.fixture
def torn(undisturbed, place):
    """A run whose result is not there, but its checkpoints are."""
    shutil.copytree(undisturbed / "runs", place / "runs")
    (place / "runs/job/result.h5").unlink()
    return place


@pytest.fixture
def disk(place):
    """A small disk of its own for the runs; it can be filled and made read-only."""
    disk = place / "runs"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "none", disk], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def same(place, undisturbed):
    assert learned(place / "runs/job/result.h5") == learned(undisturbed / "runs/job/result.h5")


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "cut off":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "something else":
        path.write_text("not a checkpoint at all")
    else:
        where = {"first": 0, "middle": len(content) // 2, "last": len(content) - 1}[how]
        content[where] ^= 0x10
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut off", "empty", "something else", "first", "middle", "last"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(torn, undisturbed, how):
    damage(torn / "runs/job/checkpoints/000300.h5", how)
    done = train(2, "job.toml", cwd=torn)
    assert done.returncode == 0, done.stderr
    assert "000300.h5: expected a checkpoint, found" in done.stdout
    assert "goes on from 000200.h5, after 200 iterations" in done.stdout
    assert (torn / "runs/job/checkpoints/000300.h5.unusable").exists()
    same(torn, undisturbed)


def test_a_checkpoint_of_another_job_is_passed_over(torn, undisturbed):
    other = ("--set", "model.causes=9", "--output", "runs/other")
    assert train(None, "job.toml", *other, cwd=torn).returncode == 0
    shutil.copy(torn / "runs/other/checkpoints/000300.h5", torn / "runs/job/checkpoints/000300.h5")
    done = train(3, "job.toml", cwd=torn)
    assert done.returncode == 0, done.stderr
    assert "expected a checkpoint of this job, found one of another (model.causes: 9 there, 8 here)" in done.stdout
    same(torn, undisturbed)


def test_without_a_sound_checkpoint_nothing_is_started_over(torn):
    for name in checkpoints(torn):
        damage(torn / "runs/job/checkpoints" / name, "middle")
    for _ in range(2):
        done = train(2, "job.toml", cwd=torn)
        assert done.returncode == 2
        assert done.stderr == (
            "runs/job/checkpoints: expected a checkpoint to go on from, found none that is sound; --fresh starts over\n"
        )
    assert len(list((torn / "runs/job/checkpoints").glob("*.unusable"))) == 3
    assert not (torn / "runs/job/lock").exists()


def test_a_run_without_its_result_writes_it_from_the_last_checkpoint(torn, undisturbed):
    done = train(2, "job.toml", cwd=torn)
    assert done.returncode == 0
    assert "goes on from 000300.h5, after 300 iterations" in done.stdout
    same(torn, undisturbed)


def test_changed_data_are_refused(torn, undisturbed):
    Y = np.load(torn / "data.npy")
    Y[77, 3] += 1e-9
    np.save(torn / "data.npy", Y)
    shutil.copytree(undisturbed / "runs/job", torn / "runs/finished")
    for output in ("runs/job", "runs/finished"):
        done = train(2, "job.toml", "--output", output, cwd=torn)
        assert done.returncode == 2
        assert done.stderr.startswith(f"{output}: expected the data of the run that is there (fingerprint ")
        assert done.stderr.count("\n") == 1
    assert checkpoints(torn) == ["000100.h5", "000200.h5", "000300.h5"]


def test_a_run_goes_on_with_more_iterations_if_allowed(torn, undisturbed):
    shutil.copy(undisturbed / "runs/job/result.h5", torn / "runs/job/result.h5")
    more = ("--set", "anneal.iterations=320", "--set", "run.checkpoint.every=50")
    refused = train(None, "job.toml", *more, cwd=torn)
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        "runs/job: holds a run of another job; use another --output, or --fresh to start over, or go on all the same "
        "with --allow anneal.iterations --allow run.checkpoint",
        "  anneal.iterations: 300 there, 320 here",
        "  run.checkpoint.every: 100 there, 50 here",
    ]
    allowed = ("--allow", "anneal.iterations", "--allow", "run.checkpoint")
    done = train(2, "job.toml", *more, *allowed, cwd=torn)
    assert done.returncode == 0, done.stderr
    with h5py.File(torn / "runs/job/result.h5") as file:
        assert len(file["history/free_energy"]) == 320
        assert file.attrs["restarts"] == 1
    assert learned(torn / "runs/job/result-000300.h5") == learned(undisturbed / "runs/job/result.h5")
    wrong = train(None, "job.toml", "--allow", "model.causes", cwd=torn)
    assert wrong.returncode == 2
    assert "--allow: expected anneal.iterations or " in wrong.stderr


@pytest.mark.parametrize("way", ["SIGTERM", "SIGUSR1", "SIGUSR2", "file", "time", "all ranks"])
def test_it_stops_well_and_goes_on_to_the_same_bits(place, undisturbed, way):
    often = ("--set", "run.checkpoint.every=7", "--allow", "run.checkpoint")
    options = ("--max-time", "0:00:01") if way == "time" else ()
    process = start(3, "job.toml", *often, *options, cwd=place)
    if way != "time":
        wait_for(lambda: number(place) >= 7, process)
    if way == "file":
        (place / "runs/job/stop").touch()
    elif way == "all ranks":
        process.send_signal(signal.SIGTERM)  # mpirun passes it on
    elif way != "time":
        os.kill(ranks_of(place)[2], signal.Signals[way])
    _, code, said = ended(process, place)
    if "result: " not in said:  # else it came to its end before it could stop
        assert code == 75, said
        reason = {"file": "the file stop", "time": "the time limit"}.get(way, "a signal")
        assert f"stopped by {reason} after {number(place)} iterations; the same command goes on" in said
        assert not (place / "runs/job/result.h5").exists()
        assert not (place / "runs/job/lock").exists()
    assert way == "file" or number(place) < 300
    done = train(2, "job.toml", *often, cwd=place)
    assert done.returncode == 0, done.stderr
    same(place, undisturbed)


def test_the_log_goes_on_without_gaps_or_repeats(place):
    options = (*ENDLESS, "--set", "run.checkpoint.every=50")
    process = start(2, "job.toml", *options, cwd=place)
    wait_for(lambda: number(place) >= 500, process)
    os.kill(ranks_of(place)[1], signal.SIGKILL)
    ended(process, place)
    log = place / "runs/job/log.txt"
    with log.open("a") as file:
        file.write("2026-01-01 00:00:00  iteration 999999/1000000  T 2  a line of an iteration that was lost\n")
    process = start(2, "job.toml", *options, cwd=place)
    wait_for(
        lambda: "goes on from" in log.read_text() and "iteration" in log.read_text().rpartition("goes on")[2], process
    )
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    _, code, _ = ended(process, place)
    assert code == 75
    told = [
        int(line.split("iteration ")[1].split("/")[0])
        for line in log.read_text().splitlines()
        if "  iteration " in line
    ]
    assert told == sorted(set(told))
    assert 999999 not in told
    with h5py.File(sorted((place / "runs/job/checkpoints").glob("*.h5"))[-1]) as file:
        assert len(file["history/free_energy"]) == file.attrs["iteration"] == number(place)


def test_a_second_signal_ends_it_at_once(place):
    big = np.random.default_rng(1).normal(size=(200_000, 20))
    np.save(place / "data.npy", big)
    slow = ("--set", "inference.candidates=8", "--set", "inference.gamma=8", "--set", "model.causes=9")
    process = start(2, "job.toml", *ENDLESS, *slow, cwd=place)
    log = place / "runs/job/log.txt"
    wait_for(lambda: log.exists() and "iteration 1/" in log.read_text(), process)
    pids = ranks_of(place)
    os.kill(pids[0], signal.SIGSTOP)  # no iteration can end now
    os.kill(pids[1], signal.SIGUSR1)
    time.sleep(1.5)
    assert process.poll() is None
    os.kill(pids[1], signal.SIGUSR1)
    seconds, code, said = ended(process, place)
    assert seconds < 5
    assert code not in (0, 75)
    assert "a second signal, SIGUSR1: ended at once" in said


def test_two_jobs_do_not_work_on_one_directory(place):
    process = start(2, "job.toml", *ENDLESS, cwd=place)
    wait_for(lambda: number(place), process)
    before = (place / "runs/job/lock").read_text()
    for more in ((), ("--fresh",)):
        second = train(2, "job.toml", *ENDLESS, *more, cwd=place)
        assert second.returncode == 2
        assert second.stderr.startswith("runs/job: expected that no other job works on it, found process ")
        assert second.stderr.count("\n") == 1
    assert json.loads((place / "runs/job/lock").read_text())["token"] == json.loads(before)["token"]
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, code, _ = ended(process, place)
    assert code == 75


def lock_of(place, **changes):
    """The lock of a job as it would be on another node, or dead."""
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


def test_a_lock_of_a_killed_job_is_taken_over(torn, undisturbed):
    process = start(2, "job.toml", *ENDLESS, "--output", "runs/killed", cwd=torn)
    wait_for(lambda: (torn / "runs/killed/checkpoints").exists(), process)
    os.kill(ranks_of(torn)[0], signal.SIGKILL)
    ended(process, torn)
    shutil.copy(torn / "runs/killed/lock", torn / "runs/job/lock")
    done = train(2, "job.toml", cwd=torn)
    assert done.returncode == 0, done.stderr
    assert "the lock of a job that died (" in done.stdout
    same(torn, undisturbed)


def test_a_lock_of_another_node_without_signs_of_life_is_taken_over(torn, undisturbed):
    lock_of(torn)
    done = train(2, "job.toml", cwd=torn)
    assert done.returncode == 0, done.stderr
    assert "held by a job on elsewhere; waiting up to 10 s for a sign of life" in done.stdout
    same(torn, undisturbed)


def test_a_lock_of_another_node_with_signs_of_life_is_respected(torn):
    ended = threading.Event()

    def live():
        beat = 0
        while not ended.wait(0.5):
            beat += 1
            lock_of(torn, beat=beat)

    lock_of(torn)
    alive = threading.Thread(target=live)
    alive.start()
    try:
        done = train(2, "job.toml", cwd=torn)
    finally:
        ended.set()
        alive.join()
    assert done.returncode == 2
    assert done.stderr == ("runs/job: expected that no other job works on it, found process 1 on elsewhere at work\n")


def test_a_requeued_job_takes_its_own_lock_at_once(torn, undisturbed):
    lock_of(torn, job="17")
    begun = time.monotonic()
    done = train(None, "job.toml", cwd=torn, SLURM_JOB_ID="17", SLURM_RESTART_COUNT="1")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun < 10
    same(torn, undisturbed)


def test_a_full_disk_costs_checkpoints_but_not_the_run(place, disk, undisturbed):
    often = ("--set", "run.checkpoint.every=20", "--allow", "run.checkpoint")
    process = start(2, "job.toml", *ENDLESS, *often, cwd=place)
    wait_for(lambda: number(place), process)
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"0" * 4096)
    full = checkpoints(place)
    lines = wait_for(lambda: next((line for line in process.stdout if "No space left" in line), None), process)
    assert "warning: no checkpoint of iteration" in lines
    time.sleep(0.5)
    assert process.poll() is None
    assert set(full) & set(checkpoints(place))  # those that were there stand
    filler.unlink()
    wait_for(lambda: number(place) > int(full[-1][:6]), process)
    process.send_signal(signal.SIGTERM)
    _, code, said = ended(process, place)
    assert code == 75, said
    assert not list((disk / "job/checkpoints").glob("*.part"))


def test_a_disk_that_turns_read_only_costs_no_work_that_was_saved(place, disk):
    short = ("--set", "run.checkpoint.every=40", "--set", "anneal.iterations=800")
    process = start(2, "job.toml", *short, cwd=place)
    wait_for(lambda: number(place), process)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", disk / "job"], check=True)
    _, code, said = ended(process, place)
    again = train(2, "job.toml", *short, cwd=place)
    subprocess.run(["umount", "-l", disk / "job"], check=True)
    assert code == 2, said
    assert "warning: no checkpoint of iteration" in said
    assert "runs/job/result.h5: expected room to write the result, found Read-only file system" in said
    assert again.returncode == 2
    assert again.stderr.startswith("runs/job: expected a directory to write to, found")
    done = train(2, "job.toml", *short, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "goes on from 0" in done.stdout


def test_a_run_killed_before_its_first_checkpoint_says_that_it_starts_over(place):
    options = (*ENDLESS, "--set", "run.checkpoint.every='1 h'")
    process = start(2, "job.toml", *options, cwd=place)
    log = place / "runs/job/log.txt"
    wait_for(lambda: log.exists() and "iteration 1/" in log.read_text(), process)
    os.kill(ranks_of(place)[0], signal.SIGKILL)
    ended(process, place)
    done = train(2, "job.toml", *options, "--max-time", "0:00:01", cwd=place)
    assert done.returncode == 75
    assert "runs/job: holds this run, but not yet a checkpoint; it starts from the beginning" in done.stdout


SLOW_SYNC = """
import os
fsync = os.fsync
def slowly(file):
    fsync(file)
    if os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}").endswith("NAME"):
        open("here", "w").close()
        import time
        time.sleep(60)
os.fsync = slowly
"""


@pytest.mark.parametrize("name", ["job.toml.part", "000100.h5.part", "000300.h5.part", "result.h5.part"])
def test_a_kill_while_a_file_is_written_for_the_first_time_costs_nothing(place, undisturbed, name):
    (place / "sitecustomize.py").write_text(SLOW_SYNC.replace("NAME", name))
    process = start(2, "job.toml", cwd=place, PYTHONPATH=str(place))
    wait_for(lambda: (place / "here").exists(), process)
    os.kill(ranks_of(place)[0], signal.SIGKILL)
    ended(process, place)
    done = train(3, "job.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert not list(place.glob("runs/job/**/*.part"))
    same(place, undisturbed)


def test_a_stop_on_a_full_disk_tells_what_will_be_done_again(place, disk):
    filler = disk / "filler"
    filler.write_bytes(bytes((8 << 20) - (24 << 10)))  # room for the job and the log, not for a checkpoint
    options = (*ENDLESS, "--max-time", "0:00:02")
    done = train(2, "job.toml", *options, cwd=place)
    assert done.returncode == 1
    assert re.search(r"warning: no checkpoint of iteration \d+ \(No space left on device\)", done.stdout)
    assert "the same command goes on from iteration 0: there is no checkpoint of those after it" in done.stdout
    filler.unlink()
    assert train(2, "job.toml", *options, cwd=place).returncode == 75


def test_a_damaged_result_is_written_again_from_the_checkpoint(torn, undisturbed):
    (torn / "runs/job/result.h5").write_bytes((undisturbed / "runs/job/result.h5").read_bytes()[:3000])
    done = train(2, "job.toml", cwd=torn)
    assert done.returncode == 0, done.stderr
    assert "it is passed over and kept as result.h5.unusable" in done.stdout
    same(torn, undisturbed)


def test_a_finished_run_whose_checkpoints_were_removed_is_still_finished_and_can_go_on(torn, undisturbed):
    shutil.copy(undisturbed / "runs/job/result.h5", torn / "runs/job/result.h5")
    shutil.rmtree(torn / "runs/job/checkpoints")
    done = train(2, "job.toml", cwd=torn)
    assert done.stdout.startswith("runs/job: this run is finished")
    more = ("--set", "anneal.iterations=310", "--allow", "anneal.iterations")
    (torn / "sitecustomize.py").write_text(SLOW_SYNC.replace("NAME", "000310.h5.part"))
    process = start(2, "job.toml", *more, cwd=torn, PYTHONPATH=str(torn))
    wait_for(lambda: (torn / "here").exists(), process)
    os.kill(ranks_of(torn)[0], signal.SIGKILL)
    ended(process, torn)
    done = train(2, "job.toml", *more, cwd=torn)
    assert done.returncode == 0, done.stderr
    assert "goes on from 000300.h5, after 300 iterations" in done.stdout


def test_a_log_that_was_torn_is_mended(torn, undisturbed):
    with (torn / "runs/job/log.txt").open("ab") as file:
        file.write(b"half a line\xc3")
    done = train(2, "job.toml", cwd=torn)
    assert done.returncode == 0, done.stderr
    assert b"half a line\xc3\n" in (torn / "runs/job/log.txt").read_bytes()
    same(torn, undisturbed)


def test_fresh_follows_a_link_to_where_the_run_is(place):
    (place / "scratch").mkdir()
    (place / "runs").mkdir()
    (place / "runs/job").symlink_to(place / "scratch/job")
    short = ("--set", "anneal.iterations=3")
    for _ in range(3):
        done = train(None, "job.toml", *short, "--fresh", cwd=place)
        assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (place / "scratch").iterdir()) == ["job", "job.old-1", "job.old-2"]


def test_a_wish_to_stop_while_it_starts_is_heard_and_an_old_one_is_not(place):
    (place / "runs/job").mkdir(parents=True)
    (place / "runs/job/stop").touch()
    os.utime(place / "runs/job/stop", (1, 1))
    short = ("--set", "anneal.iterations=3")
    assert train(None, "job.toml", *short, cwd=place).returncode == 0
    assert not (place / "runs/job/stop").exists()
    process = start(2, "job.toml", *ENDLESS, "--output", "runs/other", cwd=place)
    time.sleep(0.2)
    (place / "runs/other").mkdir(exist_ok=True)
    (place / "runs/other/stop").touch()
    _, code, said = ended(process, place)
    assert code == 75, said


def test_a_lock_that_was_removed_is_taken_again(place):
    process = start(2, "job.toml", *ENDLESS, cwd=place)
    wait_for(lambda: number(place), process)
    (place / "runs/job/lock").unlink()
    wait_for((place / "runs/job/lock").exists, process)
    process.send_signal(signal.SIGTERM)
    _, code, said = ended(process, place)
    assert code == 75, said


def test_checkpoints_by_the_clock_take_a_hundredth_of_the_time_at_most(place):
    job = read_job(str(place / "job.toml"), ["run.checkpoint.every='1 min'", f"data.source='{place / 'data.npy'}'"])
    keeper = Keeper(RunDirectory(str(place / "run")), job, Ranks(MPI.COMM_SELF))
    now = keeper.written = time.monotonic()
    assert not keeper._due(now + 59)
    assert keeper._due(now + 61)
    keeper.cost = 2.0  # what the last one took
    assert not keeper._due(now + 199)
    assert keeper._due(now + 201)
