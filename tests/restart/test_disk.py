"""No saved work is lost on a full or read-only disk."""

import re
import signal
import subprocess
from contextlib import suppress

from launch import call, ended, paused, start, wait_for
from restarts import ENDLESS, checkpoints, number


def test_a_full_disk_costs_checkpoints_but_not_the_run(place, disk):
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
    assert set(full) & set(checkpoints(place))  # earlier checkpoints remain
    filler.unlink()
    wait_for(lambda: number(place) > int(full[-1][:6]), process)
    process.send_signal(signal.SIGTERM)
    _, code, said = ended(process, place)
    assert code == 75, said
    assert not list((disk / "job/checkpoints").glob("*.part"))


def test_a_disk_that_turns_read_only_costs_no_work_that_was_saved(place, disk):
    short = ("--set", "run.checkpoint.every=40", "--set", "anneal.iterations=120")
    process = start(2, "job.toml", *short, cwd=place, **paused(place, "runs.checkpoints", "Checkpoints.save"))
    wait_for((place / "here").exists, process)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", disk / "job"], check=True)
    (place / "go").touch()
    _, code, said = ended(process, place)
    again = call("train", "job.toml", *short, cwd=place)
    subprocess.run(["umount", "-l", disk / "job"], check=True)
    assert code == 2, said
    assert "warning: no checkpoint of iteration" in said
    assert "runs/job/result.h5: expected space to write the result, found Read-only file system" in said
    assert again.returncode == 2
    assert again.stderr.startswith("runs/job: expected a directory to write to, found")
    done = call("train", "job.toml", *short, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "resumes from 000040.h5" in done.stdout


def test_points_for_which_there_is_no_room_are_refused_with_one_line(undisturbed, disk):
    filler = disk / "filler"
    for pages in range(4):
        filler.write_bytes(bytes((8 << 20) - 4096 * pages))
        done = call("generate", undisturbed / "runs/job", "--points", 300, "--output", disk / "drawn.h5")
        filler.unlink()
        assert done.returncode == 2
        assert done.stderr.endswith(": expected a place to write to, found No space left on device\n")
        assert done.stderr.count("\n") == 1
        assert list(disk.iterdir()) == []


def test_a_stop_on_a_full_disk_tells_what_will_be_done_again(place, disk):
    filler = disk / "filler"
    filler.write_bytes(bytes((8 << 20) - (24 << 10)))  # space for the job and the log, not for a checkpoint
    options = (*ENDLESS, "--max-time", "0:00:00")
    done = call("train", "job.toml", *options, cwd=place)
    assert done.returncode == 1
    assert re.search(r"warning: no checkpoint of iteration \d+ \(No space left on device\)", done.stdout)
    assert "the same command resumes from iteration 0, the newest checkpoint" in done.stdout
    filler.unlink()
    assert call("train", "job.toml", *options, cwd=place).returncode == 75
