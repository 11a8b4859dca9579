"""The start of every command: what must come before the packages that take their time to load."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import NoReturn

from parallel_et.control.signals import ignore_at_exit, listen
from parallel_et.errors import UserError
from parallel_et.parallel.watched_start import PLACES, begin_with_all_ranks, told

STOPPING = ("train", "infer", "trials", "generate", "patches", "sounds", "reproduce")
"""Commands that stop well; a signal ends the others."""


def start(name: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command on all ranks, or say that there is no MPI to do so."""
    if name in STOPPING:
        ignore_at_exit()  # first, and so the last thing that is done
        listen(answers=told(PLACES, 0) == 0)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # more would be begun, and not used; where memory is short they may hang
    try:
        begin_with_all_ranks()
        if name in STOPPING:
            listen()  # again: MPI may have put handlers of its own in place
        from parallel_et.parallel.communicator import run_command
    except UserError as error:
        if told(PLACES, 0) == 0:
            print(error, file=sys.stderr, flush=True)
        sys.exit(2)
    except ImportError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)  # at once: MPI would wait for the other ranks
    run_command(partial(command, name), argv)


def command(name: str) -> Callable[..., int]:
    """What a command does."""
    return import_module(f"parallel_et.cli.{name}").main
