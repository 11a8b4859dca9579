"""Learning from batches of points that a script has one after the other: an M-step each, of averaged statistics."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parallel_et.core.scheme import vacant_point_states
from parallel_et.data.base import ArrayRows, Centred, Source
from parallel_et.em.loop import em_step
from parallel_et.em.minibatches import Arriving
from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.parallel.blas import one_blas_thread
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import fingerprint, initial, problem_of
from parallel_et.runs.trained_model import Trained, trained
from parallel_et.runs.trainer import Training

FIRST, STANDS_FOR = "first batch", "points of averages"
"""Attributes of what was learned from batches: the iteration of the first, and for how many points the sums stand."""


def learn_batch(job: Mapping[str, Any], Y: Any, comm: Any = None, before: Trained | None = None) -> Trained:
    """One iteration of a job in batches, with the points Y (n, D) as the next of these; all ranks call it together.

    Statistics are averaged over batches as ``anneal.step`` says, of which the first counts in full. Where points are
    centred, the mean is that of the first batch.

    Parameters
    ----------
    job : its sections, of [data] only ``centre``
    before : what was learned so far, if anything
    """
    batch = {"anneal": {**job["anneal"], "batch": None}}
    with one_blas_thread(), Ranks.of_call(comm) as ranks:
        whole = {**job, **batch, "data": {**job["data"], "source": "array:data"}}
        checked = ranks.from_root(lambda: check_job(whole))
        with ranks.together():
            source: Source = ArrayRows(Y)
            here, mean = source, None if before is None else before.data.get("mean")
        learned = checked
        if mean is not None:
            here = Centred(source, mean)
            learned = replace(checked, data=checked.data.model_copy(update={"centre": False}))
        problem, digest = problem_of(learned, here, ranks)
        if vacant_point_states(problem.scheme, 1) or checked.anneal.renew:
            what = "anneal.renew" if checked.anneal.renew else f"inference.scheme = {checked.inference.scheme}"
            raise UserError(f"batches: expected nothing that needs to see points again, found {what}")
        problem = problem if mean is None else replace(problem, mean=mean)
        begin = initial(checked, problem, ranks) if before is None else before.params
        training = Training(checked, source, ranks, problem, dict(begin), fingerprint(digest, ranks))
        first, stands_for = 0, source.points
        if before is not None:
            about = before.about
            training.resume(before if ranks.is_root else None)
            first = about.get(FIRST, 0 if before.averages else training.state.iteration)
            stands_for = about.get(STANDS_FOR, about["N"] if before.averages else source.points)
            training.about |= {"N": about["N"] + source.points, "restarts": about["restarts"]}
        first, stands_for = ranks.of_root((first, stands_for))
        training.about |= {FIRST: first, STANDS_FOR: stands_for}
        batches = Arriving(source.points, problem.shard.block, stands_for)
        problem = replace(problem, schedule=problem.schedule.with_batches(batches))
        state, schedule = training.state, problem.schedule
        settings = ranks.from_root(lambda: schedule.settings(state))
        settings = settings._replace(step=schedule.step(state.iteration - first))
        new, info = em_step(problem, ranks, state, settings)
        training.state = new._replace(progress=ranks.of_root(schedule.progress(state, new.params)))
        if ranks.is_root:
            training.history.add(training.state, info)
        return trained(training.result(), checked.files)
