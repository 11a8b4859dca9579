"""The beginning of MPI in a command, watched: a rank that does not come is no reason to wait for ever."""

import faulthandler
import os
import resource

from parallel_et.errors import UserError

LIMIT = "PARALLEL_ET_START_LIMIT"
"""Environment variable: seconds that ranks wait for each other while they start; compiling kernels does not count."""
USUAL = 600.0
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
PLACES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Where launchers tell a process how many ranks there are and which it is, the innermost launcher first."""

LEAST = (
    # limit, bytes without which MPI does not begin, bytes without which the packages are not loaded, name
    (resource.RLIMIT_AS, 300_000_000, 800_000_000, "address space (ulimit -v)"),
    (resource.RLIMIT_DATA, 60_000_000, 260_000_000, "data (ulimit -d)"),
)
"""Limits of a process, below which libraries fail in ways of their own, hang or end the process."""


def told(names: tuple[str, ...], otherwise: int) -> int:
    """What the launcher says."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), otherwise)


def seconds_from(variable: str, usual: float) -> float:
    """The seconds that an environment variable sets, or the usual ones."""
    text = os.environ.get(variable, "")
    return float(text) if text.replace(".", "", 1).isdigit() else usual


def start_limit() -> float:
    """Seconds that ranks wait for each other while they start."""
    return seconds_from(LIMIT, USUAL)


def missing_memory(packages: bool) -> str:
    """Return the limit of this process that is too small to begin MPI, or to load the packages, or ""."""
    for limit, begin, load, name in LEAST:
        least, found = load if packages else begin, resource.getrlimit(limit)[0]
        if found != resource.RLIM_INFINITY and found < least:
            return f"expected at least {least / 1e6:.0f} MB of {name}, found a limit of {found / 1e6:.0f} MB"
    return ""


def begin_with_all_ranks() -> None:
    """Begin MPI, which waits for all ranks; if they do not come in time, end this rank with a traceback, and so all.

    The watch has to be one that runs while this thread has the interpreter to itself. All ranks raise UserError if one
    has too little memory to go on.
    """
    if line := missing_memory(packages=False):
        raise UserError(f"memory: {line}; raise the limit")
    patience = start_limit() + 2 * min(told(PLACES, 0), 100)  # the first to speak ends the others
    faulthandler.dump_traceback_later(max(patience, 1e-3), exit=True, file=2)
    try:
        from mpi4py import MPI

        lines = MPI.COMM_WORLD.allgather(missing_memory(packages=True))
    except (ImportError, RuntimeError):
        lines = []  # said where it is needed
    finally:
        faulthandler.cancel_dump_traceback_later()
    for rank, line in enumerate(lines):
        if line:
            raise UserError(f"memory: {line} on rank {rank} of {len(lines)}; raise the limit")
