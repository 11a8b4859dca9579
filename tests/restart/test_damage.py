"""Damaged and foreign files are detected, and the run resumes from the newest valid file."""

import os
import shutil
import signal

import h5py
import numpy as np
import pytest
from damaged_results import change, put
from launch import call, ended, learned, ranks_of, start, train, wait_for, with_startup_code
from restarts import checkpoints

from parallel_et import load
from parallel_et.errors import UserError
from parallel_et.runs.checkpoints import read
from parallel_et.runs.directory import RunDirectory
from parallel_et.storage.checksum import TRAILER_BYTES


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
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(torn, ends_the_same, how):
    damage(torn / "runs/job/checkpoints/000300.h5", how)
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    assert "000300.h5: expected a checkpoint, found" in done.stdout
    assert "resumes from 000200.h5, after 200 iterations" in done.stdout
    assert (torn / "runs/job/checkpoints/000300.h5.unusable").exists()


def test_a_checkpoint_of_another_job_is_passed_over(torn, ends_the_same):
    other = ("--set", "model.causes=9", "--output", "runs/other")
    assert call("train", "job.toml", *other, cwd=torn).returncode == 0
    shutil.copy(torn / "runs/other/checkpoints/000300.h5", torn / "runs/job/checkpoints/000300.h5")
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    assert "expected a run of this job, found a run of another job (model.causes: 9 there, 8 here)" in done.stdout


def test_without_a_sound_checkpoint_nothing_is_started_over(torn):
    for name in checkpoints(torn):
        damage(torn / "runs/job/checkpoints" / name, "middle")
    for done in (train(2, "job.toml", cwd=torn), call("train", "job.toml", cwd=torn)):
        assert done.returncode == 2
        assert done.stderr == (
            "runs/job/checkpoints: expected a checkpoint to resume from, found no valid one; --fresh starts over\n"
        )
    assert len(list((torn / "runs/job/checkpoints").glob("*.unusable"))) == 3
    assert not (torn / "runs/job/lock").exists()


def test_a_run_without_its_result_writes_it_from_the_last_checkpoint(torn, ends_the_same):
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    assert "resumes from 000300.h5, after 300 iterations" in done.stdout


def test_checkpoints_that_make_place_for_others_while_they_are_looked_for_are_no_loss(torn, monkeypatch):
    begun = []

    def late(path):
        if not begun:
            begun.append(path.name)
            for there in path.parent.glob("*.h5"):  # like a running job
                there.rename(there.with_name(f"{int(there.stem) + 1000:06d}.h5"))
        return read(path)

    monkeypatch.setattr("parallel_et.runs.directory.read", late)
    _, name = RunDirectory(str(torn / "runs/job")).latest()
    assert (begun, name) == (["000300.h5"], "001300.h5")


@pytest.mark.parametrize("how", ["cut off", "inside"])
def test_a_damaged_result_is_written_again_from_the_checkpoint(torn, undisturbed, ends_the_same, how):
    result = torn / "runs/job/result.h5"
    shutil.copy(undisturbed / "runs/job/result.h5", result)
    if how == "inside":  # so that HDF5 opens it
        result.write_bytes(result.read_bytes().replace(b"HEAP", b"HOLE"))
    else:
        damage(result, how)
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    assert "it is ignored and renamed to result.h5.unusable" in done.stdout


CANNOT_BE = {
    "W not a number": put("params/W", np.full((20, 8), np.nan)),
    "sigma below 0": put("params/sigma", -1.0),
    "pi 2": put("params/pi", 2.0),
    "W gone": put("params/W", None),
    "W of another shape": put("params/W", np.ones((20, 7))),
    "N gone": put("N", None),
    "job no TOML": put("job", "[model"),
    "history short": put("history/free_energy", np.zeros(299)),
}


@pytest.mark.parametrize("fault", [*CANNOT_BE, "a wrong bit", "an older version"])
def test_no_command_goes_on_with_a_result_that_cannot_be(torn, undisturbed, ends_the_same, fault):
    result = torn / "runs/job/result.h5"
    shutil.copy(undisturbed / "runs/job/result.h5", result)
    if fault == "a wrong bit":
        damage(result, "middle")
    elif fault == "an older version":  # without a checksum
        result.write_bytes(result.read_bytes()[:-TRAILER_BYTES])
    else:
        change(result, CANNOT_BE[fault])
    for name, *args in (("infer", "data.npy"), ("generate", "--points", 9), ("report",), ("compare",)):
        done = call(name, "runs/job", *args, cwd=torn)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("runs/job/result.h5: ")
        assert done.stderr.endswith("; the command that started this run writes it again\n")
        assert done.stderr.count("\n") == 1
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    assert "finished" not in done.stdout
    assert "it is ignored and renamed to result.h5.unusable" in done.stdout
    assert "resumes from 000300.h5" in done.stdout


def test_a_checkpoint_that_cannot_be_is_passed_over(torn, ends_the_same):
    change(torn / "runs/job/checkpoints/000300.h5", CANNOT_BE["W not a number"])
    change(torn / "runs/job/checkpoints/000200.h5", CANNOT_BE["job no TOML"])
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    assert "warning: runs/job/checkpoints/000300.h5: /params/W: expected finite numbers" in done.stdout
    assert "warning: runs/job/checkpoints/000200.h5: attribute job: expected TOML" in done.stdout
    assert "resumes from 000100.h5" in done.stdout


def test_a_result_of_another_job_is_passed_over(torn, ends_the_same):
    other = ("--set", "anneal.noise.W=0.1", "--output", "runs/other")
    assert call("train", "job.toml", *other, cwd=torn).returncode == 0
    shutil.copy(torn / "runs/other/result.h5", torn / "runs/job/result.h5")
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    reason = "expected a run of this job, found a run of another job (anneal.noise.W: 0.1 there, 0.05"
    assert f"result.h5: {reason}" in done.stdout


def older_kind(path):
    """Change the file to that of an older version, without the attribute ``kind``."""
    change(path, put("kind", None))


@pytest.mark.parametrize("how", ["an earlier checkpoint", "the last checkpoint", "an earlier one of an older version"])
def test_a_checkpoint_in_the_place_of_the_result_is_no_result(torn, ends_the_same, how):
    result = torn / "runs/job/result.h5"
    done = 300 if how == "the last checkpoint" else 200
    shutil.copy(torn / f"runs/job/checkpoints/{done:06d}.h5", result)
    if "older version" in how:
        older_kind(result)
    line = f"runs/job/result.h5: expected the result of a finished run, found a checkpoint after {done} iterations"
    seen = call("infer", "runs/job", "data.npy", cwd=torn)
    assert (seen.returncode, seen.stderr) == (2, f"{line}; the command that started this run writes it again\n")
    for place in (result, result.parent):
        with pytest.raises(UserError, match="expected the result of a finished run, found a checkpoint"):
            load(place)
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    assert f"warning: {line}; it is ignored and renamed to result.h5.unusable" in done.stdout
    assert load(result).metadata["iteration"] == 300


def test_a_result_of_an_older_version_is_used_if_its_iterations_are_those_of_its_job(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "runs/job", tmp_path / "job")
    older_kind(tmp_path / "job/result.h5")
    assert load(tmp_path / "job").metadata["iteration"] == 300


@pytest.mark.parametrize("other", ["fewer iterations", "other data"])
def test_the_result_of_a_similar_run_in_the_place_of_the_result_is_written_again(torn, ends_the_same, other):
    if other == "other data":
        shutil.copy(torn / "data.npy", torn / "own.npy")
        np.save(torn / "data.npy", np.load(torn / "data.npy") + 1e-3)
    fewer = ("--set", "anneal.iterations=200") if other == "fewer iterations" else ()
    assert call("train", "job.toml", *fewer, "--output", "runs/other", cwd=torn).returncode == 0
    if other == "other data":
        shutil.move(torn / "own.npy", torn / "data.npy")
    shutil.copy(torn / "runs/other/result.h5", torn / "runs/job/result.h5")
    if fewer:
        line = (
            "expected the result of the job in job.toml, found the result of another job "
            "(anneal.iterations: 300 there, 200 here)"
        )
        assert line in call("infer", "runs/job", "data.npy", cwd=torn).stderr
    done = call("train", "job.toml", cwd=torn)
    ends_the_same(torn, done)
    found = "200 iterations" if fewer else "other parameters"
    assert f"expected the result of the 300 iterations of 000300.h5, found one of {found}; it is ignored" in done.stdout


def test_a_checkpoint_that_cannot_be_put_aside_is_told_in_one_line(torn):
    damage(torn / "runs/job/checkpoints/000300.h5", "middle")
    (torn / "runs/job/checkpoints/000300.h5.unusable/inside").mkdir(parents=True)
    done = call("train", "job.toml", cwd=torn)
    assert done.returncode == 2
    assert done.stderr.startswith("runs/job/checkpoints/000300.h5.unusable: expected to rename 000300.h5 to it, ")
    assert done.stderr.count("\n") == 1


def test_a_log_that_was_torn_is_mended(torn, ends_the_same):
    with (torn / "runs/job/log.txt").open("ab") as file:
        file.write(b"half a line\xc3")
    ends_the_same(torn, call("train", "job.toml", cwd=torn))
    assert b"half a line\xc3\n" in (torn / "runs/job/log.txt").read_bytes()


def test_changed_data_are_refused(torn, undisturbed):
    Y = np.load(torn / "data.npy")
    Y[77, 3] += 1e-9
    np.save(torn / "data.npy", Y)
    shutil.copytree(undisturbed / "runs/job", torn / "runs/finished")
    for output in ("runs/job", "runs/finished"):
        done = call("train", "job.toml", "--output", output, cwd=torn)
        assert done.returncode == 2
        assert done.stderr.startswith(f"{output}: expected the data of the existing run (fingerprint ")
        assert done.stderr.count("\n") == 1
    assert checkpoints(torn) == ["000100.h5", "000200.h5", "000300.h5"]


def test_a_run_goes_on_with_more_iterations_if_allowed(torn, undisturbed):
    shutil.copy(undisturbed / "runs/job/result.h5", torn / "runs/job/result.h5")
    more = ("--set", "anneal.iterations=320", "--set", "run.checkpoint.every=50")
    refused = call("train", "job.toml", *more, cwd=torn)
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        "runs/job: holds a run of another job; use another --output, or --fresh to start over, or resume it "
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
    wrong = call("train", "job.toml", "--allow", "model.causes", cwd=torn)
    assert wrong.returncode == 2
    assert "--allow: expected anneal.iterations or " in wrong.stderr


HALT = """
import os, time
fsync = os.fsync
def halting(file):
    fsync(file)
    if os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}").endswith("NAME"):
        open("here", "w").close()
        while True:
            time.sleep(1)
os.fsync = halting
"""


def kill_while_writing(place, name, *args):
    """Kill a run after it has written a file, and before it renames the file."""
    process = start(1, "job.toml", *args, cwd=place, **with_startup_code(place, HALT.replace("NAME", name)))
    wait_for((place / "here").exists, process)
    os.kill(ranks_of(place)[0], signal.SIGKILL)
    ended(process, place)


@pytest.mark.parametrize("name", ["job.toml.part", "000100.h5.part", "000300.h5.part", "result.h5.part"])
def test_a_kill_while_a_file_is_written_for_the_first_time_costs_nothing(place, ends_the_same, name):
    kill_while_writing(place, name)
    ends_the_same(place, call("train", "job.toml", cwd=place))
    assert not list(place.glob("runs/job/**/*.part"))


def test_a_finished_run_whose_checkpoints_were_removed_is_still_finished_and_can_go_on(torn, undisturbed):
    shutil.copy(undisturbed / "runs/job/result.h5", torn / "runs/job/result.h5")
    shutil.rmtree(torn / "runs/job/checkpoints")
    done = call("train", "job.toml", cwd=torn)
    assert done.stdout.startswith("runs/job: this run is finished")
    more = ("--set", "anneal.iterations=310", "--allow", "anneal.iterations")
    kill_while_writing(torn, "000310.h5.part", *more)
    done = call("train", "job.toml", *more, cwd=torn)
    assert done.returncode == 0, done.stderr
    assert "resumes from 000300.h5, after 300 iterations" in done.stdout


def test_fresh_follows_a_link_to_where_the_run_is(place):
    (place / "scratch").mkdir()
    (place / "runs").mkdir()
    (place / "runs/job").symlink_to(place / "scratch/job")
    short = ("--set", "anneal.iterations=3")
    for _ in range(3):
        done = call("train", "job.toml", *short, "--fresh", cwd=place)
        assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (place / "scratch").iterdir()) == ["job", "job.old-1", "job.old-2"]
