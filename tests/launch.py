"""Runs the package as its users do: as a command, on a number of ranks."""

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
from parallel_et.launch import command as command_of
from parallel_et.parallel.communicator import run_command

MPIRUN = str(Path(sys.executable).with_name("mpirun"))
CLEAN = {
    key: value for key, value in os.environ.items() if not key.startswith(("PMI", "MPI", "HYD", "SLURM", "OMPI_COMM"))
}
PATIENCE = 500.0
"""Seconds to wait for what must happen: long, as the machine may be busy with other things."""


def here(ranks: int) -> list[str]:
    """Return what starts a command on some ranks of this machine."""
    return [MPIRUN, "-n", str(ranks)]


def command(ranks: int | None, *args: object, on: Callable[[int], list[str]] = here) -> list[str]:
    """The command line; ``None`` ranks means without mpirun."""
    start = [] if ranks is None else on(ranks)
    return [*start, sys.executable, *map(str, args)]


def launch(ranks: int | None, *args: object, cwd: Path | str = ".", **env: str):
    """Run ``python args`` on ``ranks`` ranks; returns the finished process with its output."""
    return subprocess.run(
        command(ranks, *args), cwd=cwd, env={**CLEAN, **env}, timeout=PATIENCE, capture_output=True, text=True
    )


def train(ranks: int | None, *args: object, cwd: Path | str = ".", **env: str):
    """``python -m parallel_et.train args``."""
    return launch(ranks, "-m", "parallel_et.train", *args, cwd=cwd, **env)


def call(name: str, *args: object, cwd: Path | str = "."):
    """The same as ``python -m parallel_et name args`` gives, in this process: where its start is not what is tested."""
    out, err, words = StringIO(), StringIO(), [*map(str, args)]
    try:
        with chdir(cwd), redirect_stdout(out), redirect_stderr(err), signals_restored():
            run_command(partial(command_of, name), words)
    except SystemExit as end:
        return subprocess.CompletedProcess([name, *words], end.code or 0, out.getvalue(), err.getvalue())


def start(ranks: int | None, *args: object, cwd: Path | str = ".", name: str = "train", **env: str):
    """``python -m parallel_et.train args``, or another command, not waited for."""
    return subprocess.Popen(
        command(ranks, "-m", "parallel_et", name, *args),
        cwd=cwd,
        env={**CLEAN, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def hooked(place: Path, code: str) -> dict[str, str]:
    """Environment in which every process runs ``code`` before all else: faults and pauses where they are wanted."""
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
    time.sleep(0.1)  # what came meanwhile is heard
    return result
module.{method} = pausing
"""


def paused(place: Path, module: str, method: str, more: str = "") -> dict[str, str]:
    """Environment in which a process makes the file ``here`` after each call of a method and waits for ``go``."""
    return hooked(place, PAUSE.format(module=module, method=method) + more)


def wait_for(condition, process, seconds: float = PATIENCE, pause: float = 0.02):
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
            rank = environment.get(b"PMI_RANK") or environment.get(b"OMPI_COMM_WORLD_RANK")
            if Path(os.readlink(entry / "cwd")) == place and rank:
                found.append((int(rank), int(entry.name)))
        except OSError:
            continue
    return [pid for _, pid in sorted(found)]


def ended(process, place: Path):
    """Seconds until a job and all its ranks had ended, its exit code and what it said."""
    begun = time.monotonic()
    out, err = process.communicate(timeout=PATIENCE)
    while ranks_of(place) and time.monotonic() < begun + PATIENCE:
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
