"""The beginning of MPI in a command, watched: a rank that does not come is no reason to wait for ever."""

import os
from threading import Timer

LIMIT = "PARALLEL_ET_START_LIMIT"
"""Environment variable: seconds that ranks wait for each other while they start; compiling kernels does not count."""
USUAL = 600.0
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
PLACES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Where launchers tell a process how many ranks there are and which it is, the innermost launcher first."""


def told(names: tuple[str, ...], otherwise: int) -> int:
    """What the launcher says."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), otherwise)


def start_limit() -> float:
    """Seconds that ranks wait for each other while they start."""
    text = os.environ.get(LIMIT, "")
    return float(text) if text.replace(".", "", 1).isdigit() else USUAL


def begin() -> None:
    """Begin MPI, which waits for all ranks; if they do not come in time, end this rank, and thereby all."""
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # begun below, where other threads can run meanwhile
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return  # said where it is needed
    if MPI.Is_initialized():
        return
    size, rank = told(SIZES, 1), told(PLACES, 0)
    watch = Timer(start_limit() * (1 + 0.1 * rank / size), give_up, (size,))  # the first to speak ends the others
    watch.daemon = True
    watch.start()
    MPI.Init_thread()
    watch.cancel()


def give_up(size: int) -> None:
    """End this process, though its main thread waits for others."""
    os.write(
        2, f"start: expected {size} ranks within {start_limit():g} s ({LIMIT}), found that some began no MPI\n".encode()
    )
    os._exit(1)
