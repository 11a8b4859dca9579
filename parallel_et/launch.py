"""The start of every command: signals and MPI come before the packages that are slow to load."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import NoReturn

from parallel_et.control.signals import ignore_at_exit, listen_for_signals
from parallel_et.errors import UserError
from parallel_et.parallel.watched_start import RANK_VARIABLES, launcher_value, start_mpi

STOPPABLE_COMMANDS = ("train", "infer", "trials", "generate", "patches", "sounds", "reproduce")
"""Commands that a signal stops at a point from which they can be resumed. A signal kills other commands."""


def start(name: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command on all ranks and exit, or print an error if no MPI library is found."""
    if name in STOPPABLE_COMMANDS:
        ignore_at_exit()  # functions registered first run last
        listen_for_signals(answers=launcher_value(RANK_VARIABLES, 0) == 0)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # unused threads cost memory, and may hang if memory is small
    try:
        start_mpi()
        if name in STOPPABLE_COMMANDS:
            listen_for_signals()  # again: MPI may have replaced the handlers
        from parallel_et.parallel.communicator import run_command
    except UserError as error:
        if launcher_value(RANK_VARIABLES, 0) == 0:
            print(error, file=sys.stderr, flush=True)
        sys.exit(2)
    except ImportError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)  # skip MPI_Finalize, which would wait for the other ranks
    run_command(partial(load_command, name), argv)


def load_command(name: str) -> Callable[..., int]:
    """Import a command and return its main function."""
    return import_module(f"parallel_et.cli.{name}").main
