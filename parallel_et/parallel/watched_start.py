"""The start of MPI in a command, with a time limit for missing ranks."""

import faulthandler
import os
import resource

from parallel_et.errors import UserError

START_LIMIT_VARIABLE = "PARALLEL_ET_START_LIMIT"
"""Environment variable: seconds that ranks wait for each other at the start, not counting compilation."""
DEFAULT_START_SECONDS = 600.0
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Environment variables of launchers with the number of ranks and the index of this rank, innermost launcher first."""

MIN_LIMITS_BYTES = (
    # limit, bytes that MPI needs to start, bytes that the packages need to load, name
    (resource.RLIMIT_AS, 300_000_000, 800_000_000, "address space (ulimit -v)"),
    (resource.RLIMIT_DATA, 60_000_000, 260_000_000, "data (ulimit -d)"),
)
"""Smallest limits of a process. Below them, libraries hang, kill the process or fail without a clear message."""


def launcher_value(variables: tuple[str, ...], default: int) -> int:
    """Return the integer in the first of several environment variables that is set, or the default."""
    return next((int(os.environ[name]) for name in variables if os.environ.get(name, "").isdigit()), default)


def seconds_from(variable: str, default: float) -> float:
    """Return the seconds that an environment variable sets, or the default."""
    text = os.environ.get(variable, "")
    return float(text) if text.replace(".", "", 1).isdigit() else default


def start_limit() -> float:
    """Return the seconds that ranks wait for each other at the start."""
    return seconds_from(START_LIMIT_VARIABLE, DEFAULT_START_SECONDS)


def missing_memory(packages: bool) -> str:
    """Return a message about a limit of this process that is too small to start MPI or load the packages, or ""."""
    for limit, mpi_bytes, package_bytes, name in MIN_LIMITS_BYTES:
        needed, found = package_bytes if packages else mpi_bytes, resource.getrlimit(limit)[0]
        if found != resource.RLIM_INFINITY and found < needed:
            return f"expected at least {needed / 1e6:.0f} MB of {name}, found a limit of {found / 1e6:.0f} MB"
    return ""


def start_mpi() -> None:
    """Start MPI, which waits for all ranks. After the time limit, exit with a traceback, which ends all ranks.

    faulthandler watches the time, as it needs no GIL. All ranks raise UserError if one has too little memory.
    """
    if line := missing_memory(packages=False):
        raise UserError(f"memory: {line}; raise the limit")
    timeout = start_limit() + 2 * min(launcher_value(RANK_VARIABLES, 0), 100)  # the first rank to exit ends the others
    faulthandler.dump_traceback_later(max(timeout, 1e-3), exit=True, file=2)
    try:
        from mpi4py import MPI

        lines = MPI.COMM_WORLD.allgather(missing_memory(packages=True))
    except (ImportError, RuntimeError):
        lines = []  # parallel_et.parallel.mpi reports it
    finally:
        faulthandler.cancel_dump_traceback_later()
    for rank, line in enumerate(lines):
        if line:
            raise UserError(f"memory: {line} on rank {rank} of {len(lines)}; raise the limit")
