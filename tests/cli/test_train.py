"""The command train."""

import os
import pty
import re
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import CLEAN, call, command, launch, train

from parallel_et.__main__ import COMMANDS

DEMO = Path(__file__).parent.parent.parent / "jobs" / "demo.toml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("train")
    done = train(2, DEMO, "--set", "run.snapshots=25", cwd=place)
    assert done.returncode == 0, done.stderr
    return place, done


def test_it_tells_what_it_does_and_what_was_learned(finished):
    _, done = finished
    lines = done.stdout.splitlines()
    assert lines[0] == "500 points of 25 dimensions, 10 causes, 26 states per point, on 2 ranks"
    form = (
        r"iteration \d+/100  T [\d.]+  free energy -[\d.]+  used \d+  sigma 2  pi 0.2  \S+ points/s  left \d:\d\d:\d\d"
    )
    assert re.fullmatch(form, lines[1])
    assert re.fullmatch(form, lines[-4])
    assert lines[-3].startswith("all 10 causes found")
    assert lines[-2:] == ["picture of the fields: runs/demo/fields.png", "result: runs/demo/result.h5"]
    assert done.stderr == ""


def test_the_run_directory_holds_everything(finished):
    place, done = finished
    run = place / "runs/demo"
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints",
        "fields.png",
        "job.toml",
        "log.txt",
        "result.h5",
    ]
    assert (run / "fields.png").read_bytes()[:4] == b"\x89PNG"
    logged = [line.split("  ", 1)[1] for line in (run / "log.txt").read_text().splitlines()]
    assert logged == done.stdout.splitlines()
    with h5py.File(run / "result.h5") as file:
        assert file["params/W"].shape == (25, 10)
        assert file["params/W"].dtype == np.float64
        assert file["truth/W"].shape == (25, 10)
        assert file["history/free_energy"].shape == (100,)
        for name in ("temperature", "points_used", "sigma", "pi", "seconds_select", "seconds_mstep"):
            assert file[f"history/{name}"].shape == (100,)
        assert file["snapshots/W"].shape == (4, 25, 10)
        assert file["snapshots/iteration"][()].tolist() == [25, 50, 75, 100]
        np.testing.assert_array_equal(file["snapshots/W"][-1], file["params/W"][()])
        assert file.attrs["job"] == (run / "job.toml").read_text()
        for name in (
            "seed",
            "data fingerprint",
            "N",
            "D",
            "ranks",
            "version numpy",
            "mpi",
            "host",
            "commit",
            "start",
            "end",
        ):
            assert name in file.attrs


def test_a_finished_run_is_left_alone(finished):
    place, _ = finished
    before = (place / "runs/demo/result.h5").read_bytes()
    done = call("train", DEMO, "--set", "run.snapshots=25", cwd=place)
    assert done.returncode == 0
    assert done.stdout.startswith("runs/demo: this run is finished")
    assert (place / "runs/demo/result.h5").read_bytes() == before


def test_another_job_is_refused_with_the_keys_that_differ(finished):
    place, _ = finished
    done = call("train", DEMO, cwd=place)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "runs/demo: holds a run of another job; use another --output, or --fresh to start over, "
        "or resume it with --allow run.snapshots",
        "  run.snapshots: 25 there, 10 here",
    ]


def test_fresh_starts_over_and_keeps_the_old_run(finished):
    place, _ = finished
    short = ("--fresh", "--output", "again", "--set", "anneal.iterations=3", "--quiet")
    for _ in range(3):
        done = call("train", DEMO, *short, cwd=place)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in place.glob("again*")) == ["again", "again.old-1", "again.old-2"]
    assert (place / "again.old-1/result.h5").exists()


def test_a_dry_run_checks_and_tells_and_writes_nothing(tmp_path):
    done = train(3, DEMO, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    assert 'name = "linca"' in done.stdout
    assert "a rank has at most 256 points in blocks of 128" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_more_ranks_than_blocks_is_said(tmp_path):
    done = train(3, DEMO, "--set", "data.points=20", "--set", "anneal.iterations=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "on 3 ranks, 1 of them without points" in done.stdout


def test_mostly_negative_data_are_warned_of_where_fields_cannot_be(tmp_path):
    np.save(tmp_path / "d.npy", np.random.default_rng(1).normal(-5, 1, (50, 4)))
    (tmp_path / "job.toml").write_text(
        '[model]\nname = "nmf"\ncauses = 4\n[data]\nsource = "d.npy"\n[inference]\ncandidates = 3\ngamma = 2\n'
        "[anneal]\niterations = 2\n"
    )
    done = call("train", "job.toml", cwd=tmp_path)
    assert "warning: 100% of the data are negative, but the fields of nmf are not" in done.stdout
    done = call("train", "job.toml", "--set", "model.name=linca", "--fresh", cwd=tmp_path)
    assert "warning" not in done.stdout


def test_the_commands_are_listed_and_help_shows_an_example():
    listed = launch(None, "-m", "parallel_et")
    assert listed.returncode == 0
    for name in COMMANDS:
        assert name in listed.stdout
        helped = call(name, "--help") if name != "train" else launch(2, "-m", "parallel_et.train", "--help")
        assert helped.returncode == 0
        assert helped.stdout.count("example:\n  ") == 1
    wrong = launch(None, "-m", "parallel_et", "trian")
    assert wrong.returncode == 2
    assert wrong.stderr == f"parallel-et: expected {' or '.join(COMMANDS)}, found trian, did you mean train?\n"


def test_a_terminal_gets_a_bar_and_the_log_its_lines(tmp_path):
    shown, terminal = pty.openpty()
    args = command(None, "-m", "parallel_et.train", DEMO, "--set", "anneal.iterations=12", "--set", "run.picture=false")
    process = subprocess.Popen(args, cwd=tmp_path, env=CLEAN, stdout=terminal, stderr=terminal)
    os.close(terminal)
    text = b""
    while True:
        try:
            part = os.read(shown, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    assert process.wait() == 0
    screen = text.decode()
    assert "████████████ left 0:00:00  iteration 12/12" in screen
    assert screen.count("\r\033[K") == 12
    log = (tmp_path / "runs/demo/log.txt").read_text()
    assert "iteration 12/12  T 1 " in log
    assert "█" not in log


def test_without_an_mpi_library_one_line_says_so():
    done = launch(None, "-m", "parallel_et.train", DEMO, MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert done.returncode == 1
    assert done.stderr.startswith("parallel_et: expected an MPI library, found none; load the MPI module of your site")
    assert done.stderr.count("\n") == 1
