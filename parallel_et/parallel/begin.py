"""The beginning of MPI in a command, watched: a rank that does not come is no reason to wait for ever."""

import faulthandler
import os

LIMIT = "PARALLEL_ET_START_LIMIT"
"""Environment variable: seconds that ranks wait for each other while they start; compiling kernels does not count."""
USUAL = 600.0
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
PLACES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Where launchers tell a process how many ranks there are and which it is, the innermost launcher first."""


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


def begin_with_all_ranks() -> None:
    """Begin MPI, which waits for all ranks; if they do not come in time, end this rank with a traceback, and so all.

    The watch has to be one that runs while this thread has the interpreter to itself.
    """
    patience = start_limit() + 2 * min(told(PLACES, 0), 100)  # the first to speak ends the others
    faulthandler.dump_traceback_later(max(patience, 1e-3), exit=True, file=2)
    try:
        import mpi4py.MPI  # noqa: F401
    except (ImportError, RuntimeError):
        pass  # said where it is needed
    finally:
        faulthandler.cancel_dump_traceback_later()
