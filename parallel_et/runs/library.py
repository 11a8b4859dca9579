"""parallel_et from a script: ``fit`` does what the train command does, ``load`` reads what it wrote."""

from collections.abc import Mapping
from typing import Any

from parallel_et.parallel.ranks import Ranks
from parallel_et.runs import training
from parallel_et.runs.result import Result, load

__all__ = ["Result", "fit", "load"]


def fit(
    job: str | Mapping[str, Any], data: Any = None, *, comm: Any = None, output: str | None = None, watch: Any = None
) -> Result:
    """Train a model; called by all ranks of the communicator together.

    Start a script on several ranks as ``mpirun -n 4 python -m mpi4py script.py``, so that an exception of
    one rank ends them all.

    Parameters
    ----------
    job : path of a job file, or its sections as nested dicts
    data : (N, D) array, memory map or HDF5 dataset, the same on every rank, of which each rank takes its own rows;
        it stands for the job's [data], which may then be missing, or have ``centre`` alone
    comm : mpi4py communicator, by default all ranks
    output : run directory to write; a run of this job and these data that is there goes on, a finished one is returned
    watch : called on the root after every iteration, with the parameters, the schedule values and what is known

    Returns
    -------
    Result : the parameters on every rank, the history on the root
    """
    return training.fit(Ranks(comm), job, data, output, watch)
