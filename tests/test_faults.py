"""A fault of one rank ends the whole job within seconds, with one message and the right exit code."""

import os
import re
import signal

import h5py
import numpy as np
import pytest
from launch import call, ended, ranks_of, start, train, wait_for, with_startup_code

JOB = """
[model]
name = "linca"
causes = 8
[data]
source = "data.h5:/rows"
[inference]
candidates = 5
gamma = 3
[anneal]
iterations = 100000
"""
FAULT = """
import signal
from parallel_et.runs.checkpointer import Checkpointer
after, signals = Checkpointer._after, []
signal.signal(signal.SIGALRM, lambda *_: signals.append(True))
def failing(checkpointer):
    if signals:  # not in the handler, which may run within a kernel
        raise RuntimeError("a fault of this rank")
    return after(checkpointer)
Checkpointer._after = failing
"""
SECONDS = 30.0
"""Longest time to the end of a job. About 2 s are usual, and without the tested code a job never ends."""


@pytest.fixture
def place(tmp_path):
    rows = np.random.default_rng(1).normal(size=(2000, 30))
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["rows"] = rows
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def start_training(place, **env):
    log = place / "runs/job/log.txt"
    process = start(3, "job.toml", cwd=place, **env)
    wait_for(lambda: log.exists() and "iteration" in log.read_text(), process)
    return process


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_ends_all(place, rank):
    process = start_training(place)
    pids = ranks_of(place)
    assert len(pids) == 3
    os.kill(pids[rank], signal.SIGKILL)
    seconds, code, _ = ended(process, place)
    assert seconds < SECONDS
    assert code != 0
    assert not (place / "runs/job/result.h5").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_on_one_rank_ends_all_with_one_message(place, rank):
    process = start_training(place, **with_startup_code(place, FAULT))
    os.kill(ranks_of(place)[rank], signal.SIGALRM)
    seconds, code, said = ended(process, place)
    assert seconds < SECONDS
    assert code == 1
    assert said.count("failed: RuntimeError('a fault of this rank')") == 1
    assert f"rank {rank} of 3 failed" in said


@pytest.mark.parametrize("row, value", [(3, np.nan), (1999, np.inf)])
def test_bad_data_on_one_rank_is_reported_once_with_its_row(place, row, value):
    with h5py.File(place / "data.h5", "a") as file:
        file["rows"][row, 4] = value
    done = train(3, "job.toml", cwd=place)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr == f"data.h5:/rows: row {row}: expected numbers below 1e+100, found {value} in column 4\n"
    assert not (place / "runs").exists()


@pytest.mark.parametrize("signature", [b"HEAP", b"TREE"])
def test_a_data_file_that_is_damaged_inside_ends_all_with_one_line(place, signature):
    (place / "data.h5").write_bytes((place / "data.h5").read_bytes().replace(signature, b"HOLE"))
    for done in (train(2, "job.toml", cwd=place), call("train", "job.toml", cwd=place)):
        assert done.returncode == 2
        assert done.stderr.startswith("data.h5: expected a sound HDF5 file, found damage (")
        assert done.stderr.count("\n") == 1


def test_names_that_no_file_can_have_end_all_with_one_line(place):
    long = "a" * 300
    options = ("job.toml", "--output", long)
    tries = [train(2, *options, cwd=place), call("train", *options, cwd=place), call("trials", *options, cwd=place)]
    tries += [call("report", long, cwd=place), call("patches", long, "--all", cwd=place)]
    for done in tries:
        assert done.returncode == 2, done.stderr
        assert re.fullmatch(rf".*{long}.*: expected .*, found .*\n", done.stderr)


def test_a_name_that_cannot_be_stored_is_refused_before_any_work(place):
    name = os.fsdecode(b"b\xff.toml")
    (place / "job.toml").rename(place / name)
    done = train(2, name, cwd=place)
    assert done.returncode == 2
    assert done.stderr == "'b\\udcff.toml': expected a name in UTF-8, which can be stored, found other bytes\n"
    assert not (place / "runs").exists()


def test_rows_that_one_rank_cannot_read_end_all_with_one_line(place):
    with h5py.File(place / "data.h5", "w") as file:
        data = file.create_dataset("rows", data=np.ones((2000, 30)), chunks=(100, 30), compression="gzip")
        damaged = data.id.get_chunk_info(19)
    with open(place / "data.h5", "rb+") as raw:
        raw.seek(damaged.byte_offset)
        raw.write(b"\xff" * damaged.size)
    done = train(3, "job.toml", cwd=place)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "expected numbers, found damage" in done.stderr


@pytest.mark.parametrize("ranks", [1, 3])
def test_values_of_very_different_magnitude_are_reported_in_one_line(ranks, tmp_path):
    settings = ("data.noise.sigma=1e20", "model.init.W={ mean = 0.0, std = 2.0 }", "inference.singletons=true")
    (tmp_path / "job.toml").write_text(
        'model = { name = "linca", causes = 10, sigma = 2.0, pi = 0.2 }\ndata = { source = "bars", points = 500 }\n'
        "inference = { candidates = 5, gamma = 3 }\n"
    )
    done = train(ranks, "job.toml", *(word for s in settings for word in ("--set", s)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "rounding" in line]
    expected = (
        r"warning: sigma = 2 is below the rounding errors of the data, .*: the evidence of points is rounding noise; "
        r"the mean log evidence is .*: the model is far from the data, and log joints have rounding errors of .* nats.*"
    )
    assert re.fullmatch(expected, line)
