"""Runs the package as its users do: as a command, on a number of ranks."""

import os
import subprocess
import sys
import time
from pathlib import Path

import h5py

MPIRUN = str(Path(sys.executable).with_name("mpirun"))
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "MPI", "HYD", "SLURM"))}


def command(ranks: int | None, *args: object) -> list[str]:
    """The command line; ``None`` ranks means without mpirun."""
    start = [] if ranks is None else [MPIRUN, "-n", str(ranks)]
    return [*start, sys.executable, *map(str, args)]


def launch(ranks: int | None, *args: object, cwd: Path | str = ".", timeout: float = 120, **env: str):
    """Run ``python args`` on ``ranks`` ranks; returns the finished process with its output."""
    return subprocess.run(
        command(ranks, *args), cwd=cwd, env={**CLEAN, **env}, timeout=timeout, capture_output=True, text=True
    )


def train(ranks: int | None, *args: object, cwd: Path | str = ".", **env: str):
    """``python -m parallel_et.train args``."""
    return launch(ranks, "-m", "parallel_et.train", *args, cwd=cwd, **env)


def start(ranks: int | None, *args: object, cwd: Path | str = ".", **env: str):
    """``python -m parallel_et.train args``, not waited for."""
    return subprocess.Popen(
        command(ranks, "-m", "parallel_et.train", *args),
        cwd=cwd,
        env={**CLEAN, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, process, seconds: float = 60, pause: float = 0.02):
    """Wait until ``condition`` gives something true while the process runs; returns that."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        assert process.poll() is None, process.communicate()
        time.sleep(pause)
    return found


def ranks_of(place: Path) -> list[int]:
    """Process ids of the ranks that run in a place, in their order."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = dict(e.split(b"=", 1) for e in (entry / "environ").read_bytes().split(b"\0") if b"=" in e)
            if Path(os.readlink(entry / "cwd")) == place and b"PMI_RANK" in environment:
                found.append((int(environment[b"PMI_RANK"]), int(entry.name)))
        except OSError:
            continue
    return [pid for _, pid in sorted(found)]


def ended(process, place: Path):
    """Seconds until a job and all its ranks had ended, its exit code and what it said."""
    begun = time.monotonic()
    out, err = process.communicate(timeout=60)
    while ranks_of(place) and time.monotonic() < begun + 60:
        time.sleep(0.05)
    return time.monotonic() - begun, process.returncode, out + err


def learned(path: Path) -> dict[str, bytes]:
    """All that a result holds but for times: parameters, history and snapshots."""
    found: dict[str, bytes] = {}
    with h5py.File(path) as file:
        for group in ("params", "history", "snapshots"):
            for name, item in file.get(group, {}).items():
                if not name.startswith("seconds"):
                    found[f"{group}/{name}"] = item[()].tobytes()
    return found
