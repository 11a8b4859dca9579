"""parallel_et from a script: ``fit`` does what the train command does, ``load`` reads what it wrote."""

from collections.abc import Callable, Mapping
from typing import Any

from parallel_et.em import Info
from parallel_et.io.directory import RunDirectory
from parallel_et.io.result import Result, load
from parallel_et.job import check_job, read_job
from parallel_et.models.base import Knobs, Params
from parallel_et.parallel.ranks import Ranks
from parallel_et.run import run
from parallel_et.setup import ArrayRows, open_source, set_up

__all__ = ["Result", "fit", "load"]


def fit(
    job: str | Mapping[str, Any],
    data: Any = None,
    *,
    comm: Any = None,
    output: str | None = None,
    watch: Callable[[Params, Knobs, Info], None] | None = None,
) -> Result:
    """Train a model; called by all ranks of the communicator together.

    Parameters
    ----------
    job : path of a job file, or its sections as nested dicts
    data : (N, D) array, memory map or HDF5 dataset, the same on every rank, of which each rank takes its own rows;
        then the job needs no [data]
    comm : mpi4py communicator, by default all ranks
    output : run directory to write, as the command does
    watch : called on the root after every iteration, with the parameters, the schedule values and what is known

    Returns
    -------
    Result : the parameters on every rank, the history on the root
    """
    ranks = Ranks(comm)
    if isinstance(job, Mapping):
        checked = check_job({**job, "data": {"source": "array:data"}} if data is not None else job)
    else:
        checked = ranks.from_root(lambda: read_job(job))
    ranks.limit_threads()
    with ranks.together():
        source = open_source(checked) if data is None else ArrayRows(data)
    problem, params, fingerprint = set_up(checked, source, ranks)
    result = run(checked, problem, params, ranks, source.truth(), {"data fingerprint": fingerprint}, watch)
    if output is not None and ranks.is_root:
        directory = RunDirectory(output)
        directory.check_place()
        directory.begin(checked.toml())
        directory.finish(result)
    return result
