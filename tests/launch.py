"""Runs the package as its users do: as a command, on a number of ranks."""

import os
import subprocess
import sys
from pathlib import Path

MPIRUN = str(Path(sys.executable).with_name("mpirun"))
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "MPI", "HYD"))}


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
