"""The interface for scripts: ``fit`` trains a model as the command ``train`` does, and ``load`` reads a result."""

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.core.types import Params
from parallel_et.data.base import ArrayRows
from parallel_et.em.state import Info
from parallel_et.errors import UserError
from parallel_et.job.job import read_job
from parallel_et.parallel.blas import one_blas_thread
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.checkpointer import Checkpointer, Claim
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.trained_model import Trained, load, trained
from parallel_et.runs.trainer import IterationLog, new_training

__all__ = ["Trained", "fit", "load"]


def fit(
    job: str | Mapping[str, Any],
    data: Any = None,
    *,
    comm: Any = None,
    output: str | None = None,
    watch: Any = None,
    progress: bool = False,
) -> Trained:
    """Train a model. Collective: all ranks of the communicator call ``fit`` together.

    Start a script on several ranks with ``mpirun -n 4 python -m mpi4py script.py``: an exception on one rank then
    ends all ranks.

    Parameters
    ----------
    job : path of a job file, or its sections as nested dicts
    data : (N, D) array, memory map or HDF5 dataset, the same on every rank. Each rank reads only its own rows.
        ``data`` replaces the section [data] of the job, which may then be missing. Only its keys ``centre`` and
        ``holdout`` are used.
    comm : mpi4py communicator; default: all ranks
    output : run directory. An unfinished run of the same job and data is resumed, a finished run is returned.
        Default: no files are written.
    watch : callback ``watch(params, settings, info)``, called on the root after every iteration, with read-only arrays
    progress : print the progress, as ``train`` does

    Returns
    -------
    Trained : the parameters (on every rank) and the history (on the root)
    """
    check_arguments(job, output, watch)
    instead = None if data is None else {"source": "array:data"}
    with one_blas_thread(), Ranks.of_call(comm) as ranks:
        checked = ranks.from_root(lambda: read_job(job, instead=instead))
        claim = None if output is None else Claim(RunDirectory(output), checked, warn)
        if claim is not None:
            ranks.from_root(claim.check)
        with ranks.synchronise_errors():
            array = None if data is None else ArrayRows(data)
        training = new_training(checked, ranks, array)
        report = Reporter(ranks.is_root, not progress)
        log = IterationLog(report) if progress else None

        def watch_all(iterations: Iterable[Info]) -> None:
            report.start(checked.anneal.iterations, training.state.iteration, training.source.points)
            for info in iterations:
                if ranks.is_root:
                    show(training.state.params, info, log, watch)

        if claim is None:
            watch_all(training.iterations())
            training.diagnose()
        else:
            checkpointer = Checkpointer(claim, ranks)
            with checkpointer.resume_run(training):
                if not checkpointer.finished:
                    checkpointer.prepare_files()
                    watch_all(checkpointer.iterations())
        if ranks.is_root and training.metadata.get("limits"):
            warn(f"warning: {training.metadata['limits']}")
        return trained(training.result(), checked.files)


def check_arguments(job: Any, output: Any, watch: Any) -> None:
    """Raise UserError for arguments of a wrong type, before any work is done."""
    path = isinstance(output, str | os.PathLike) and "\0" not in os.fspath(output)
    for name, good, expected, found in (
        ("job", isinstance(job, str | os.PathLike | Mapping), "the path of a job file or its sections", job),
        ("output", output is None or path, "the path of a directory", output),
        ("watch", watch is None or callable(watch), "a function", watch),
    ):
        if not good:
            raise UserError(f"{name}: expected {expected}, found {found!r:.60}")


def show(params: Params, info: Info, log: IterationLog | None, watch: Any) -> None:
    """Report an iteration to the log and to ``watch``, with read-only arrays."""
    if log is not None:
        log.add(params, info)
    if watch is not None:
        shown = {name: read_only(value) for name, value in params.items()}
        watch(shown, info.settings, info._replace(unused=read_only(info.unused)))


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view of an array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def warn(line: str) -> None:
    """Raise a Python warning for a line that begins with ``warning:``; ignore other lines."""
    if line.startswith("warning: "):
        warnings.warn(line.removeprefix("warning: "), stacklevel=2)
