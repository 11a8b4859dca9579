"""Online training: one M-step for each batch of points that a script passes, with averaged statistics."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parallel_et.core.scheme import initial_point_states_of
from parallel_et.data.base import ArrayRows, Centred, Source
from parallel_et.em.loop import em_step
from parallel_et.em.minibatches import StreamedBatch
from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.parallel.blas import one_blas_thread
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import fingerprint, initial_params, problem_of
from parallel_et.runs.trained_model import Trained, trained
from parallel_et.runs.trainer import Training

FIRST_BATCH = "first batch"
"""Metadata: number of finished iterations before the first batch."""
REPRESENTED_POINTS = "points of averages"
"""Metadata: number of points that the averaged statistics represent."""


def train_on_batch(job: Mapping[str, Any], Y: Any, comm: Any = None, before: Trained | None = None) -> Trained:
    """Train one iteration on the next batch of points. Collective.

    Statistics are averaged over batches with ``anneal.step``; the first batch has the weight 1.
    With ``data.centre``, the mean of the first batch is subtracted from all points.

    Parameters
    ----------
    job : sections of the job; of [data], only ``centre`` is used
    Y : (n, D) points
    comm : mpi4py communicator
    before : result of the earlier batches; None for the first batch

    Returns
    -------
    Trained : parameters, averaged statistics and history after this batch
    """
    batch = {"anneal": {**job["anneal"], "batch": None}}
    with one_blas_thread(), Ranks.of_call(comm) as ranks:
        whole = {**job, **batch, "data": {**job["data"], "source": "array:data"}}
        checked = ranks.from_root(lambda: check_job(whole))
        with ranks.synchronise_errors():
            source: Source = ArrayRows(Y)
            rows = source
            mean = None if before is None else before.data.get("mean")
        learned = checked
        if mean is not None:
            rows = Centred(source, mean)
            learned = replace(checked, data=checked.data.model_copy(update={"centre": False}))
        problem, digest = problem_of(learned, rows, ranks)
        if initial_point_states_of(problem.scheme, 1) or checked.anneal.renew:
            what = "anneal.renew" if checked.anneal.renew else f"inference.scheme = {checked.inference.scheme}"
            raise UserError(f"batches: expected settings that visit each point only once, found {what}")
        problem = problem if mean is None else replace(problem, mean=mean)
        start = initial_params(checked, problem, ranks) if before is None else before.params
        training = Training(checked, source, ranks, problem, dict(start), fingerprint(digest, ranks))
        first = 0
        represented = source.points
        if before is not None:
            metadata = before.metadata
            training.resume(before if ranks.is_root else None)
            first = metadata.get(FIRST_BATCH, 0 if before.averages else training.state.iteration)
            represented = metadata.get(REPRESENTED_POINTS, metadata["N"] if before.averages else source.points)
            training.metadata |= {"N": metadata["N"] + source.points, "restarts": metadata["restarts"]}
        first, represented = ranks.broadcast_object((first, represented))
        training.metadata |= {FIRST_BATCH: first, REPRESENTED_POINTS: represented}
        batches = StreamedBatch(source.points, problem.shard.block, represented)
        problem = replace(problem, schedule=problem.schedule.with_batches(batches))
        state, schedule = training.state, problem.schedule
        settings = ranks.from_root(lambda: schedule.settings(state))
        settings = settings._replace(step=schedule.step(state.iteration - first))
        new, info = em_step(problem, ranks, state, settings)
        training.state = new._replace(progress=ranks.broadcast_object(schedule.progress(state, new.params)))
        if ranks.is_root:
            training.history.add(training.state, info)
        return trained(training.result(), checked.files)
