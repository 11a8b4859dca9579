"""Running of commands of the package on a number of ranks, as users do."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import h5py

from parallel_et.control.signals import signals_restored
from parallel_et.launch import load_command
from parallel_et.parallel.communicator import run_command

MPIRUN = str(Path(sys.executable).with_name("mpirun"))
CLEAN = {
    key: value for key, value in os.environ.items() if not key.startswith(("PMI", "MPI", "HYD", "SLURM", "OMPI_COMM"))
}
TIMEOUT_SECONDS = 500.0
"""Seconds after which a test fails; long enough for a busy machine."""


def here(ranks: int) -> list[str]:
    """Return the beginning of a command line for some ranks of this machine."""
    return [MPIRUN, "-n", str(ranks)]


def command(ranks: int | None, *args: object, on: Callable[[int], list[str]] = here) -> list[str]:
    """Return the command line. ``None`` ranks: without mpirun."""
    start = [] if ranks is None else on(ranks)
    return [*start, sys.executable, *map(str, args)]


def launch(ranks: int | None, *args: object, cwd: Path | str = ".", **env: str):
    """Run ``python args`` on some ranks, and return the finished process with its output."""
    return subprocess.run(
        command(ranks, *args), cwd=cwd, env={**CLEAN, **env}, timeout=TIMEOUT_SECONDS, capture_output=True, text=True
    )


def train(ranks: int | None, *args: object, cwd: Path | str = ".", **env: str):
    """Run ``python -m parallel_et.train args``."""
    return launch(ranks, "-m", "parallel_et.train", *args, cwd=cwd, **env)


def call(name: str, *args: object, cwd: Path | str = "."):
    """Run ``python -m parallel_et name args`` in this process, which is faster, and return its exit code and output."""
    out, err, words = StringIO(), StringIO(), [*map(str, args)]
    try:
        with chdir(cwd), redirect_stdout(out), redirect_stderr(err), signals_restored():
            run_command(partial(load_command, name), words)
    except SystemExit as end:
        return subprocess.CompletedProcess([name, *words], end.code or 0, out.getvalue(), err.getvalue())


def start(ranks: int | None, *args: object, cwd: Path | str = ".", name: str = "train", **env: str):
    """Start ``python -m parallel_et.train args``, or another command, without waiting for its end."""
    return subprocess.Popen(
        command(ranks, "-m", "parallel_et", name, *args),
        cwd=cwd,
        env={**CLEAN, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def with_startup_code(place: Path, code: str) -> dict[str, str]:
    """Return an environment in which each Python process first runs ``code``, e.g. to cause faults or pauses."""
    (place / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(place), *filter(None, [CLEAN.get("PYTHONPATH")])])}


PAUSE = """
import os, time
import parallel_et.{module} as module
method = module.{method}
def pausing(*args, **options):
    result = method(*args, **options)
    open("here", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
    time.sleep(0.1)  # pending signals are handled
    return result
module.{method} = pausing
"""


def paused(place: Path, module: str, method: str, more: str = "") -> dict[str, str]:
    """Return an environment in which a process creates the file ``here`` after each call of a method and awaits ``go``.

    Parameters
    ----------
    module, method : name below ``parallel_et``, and the method in this module
    more : further code that each process runs
    """
    return with_startup_code(place, PAUSE.format(module=module, method=method) + more)


def wait_for(condition, process, seconds: float = TIMEOUT_SECONDS, pause: float = 0.02):
    """Wait until ``condition`` returns a true value while the process runs, and return the value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"expected the condition within {seconds} s"
        assert process.poll() is None, process.communicate()
        time.sleep(pause)
    return found


def ranks_of(place: Path) -> list[int]:
    """Return the process ids of the ranks with this working directory, in order of the ranks."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = dict(e.split(b"=", 1) for e in (entry / "environ").read_bytes().split(b"\0") if b"=" in e)
            rank = environment.get(b"PMI_RANK") or environment.get(b"OMPI_COMM_WORLD_RANK")
            if Path(os.readlink(entry / "cwd")) == place and rank:
                found.append((int(rank), int(entry.name)))
        except OSError:
            continue
    return [pid for _, pid in sorted(found)]


def ended(process, place: Path):
    """Wait for the end of a job and all its ranks. Return the seconds, the exit code and the output."""
    begun = time.monotonic()
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    while ranks_of(place) and time.monotonic() < begun + TIMEOUT_SECONDS:
        time.sleep(0.05)
    return time.monotonic() - begun, process.returncode, out + err


def learned(path: Path) -> dict[str, bytes]:
    """Read parameters, history and snapshots of a result, without times."""
    found: dict[str, bytes] = {}
    with h5py.File(path) as file:
        for group in ("params", "history", "snapshots"):
            for name, item in file.get(group, {}).items():
                if not name.startswith("seconds"):
                    found[f"{group}/{name}"] = item[()].tobytes()
    return found
