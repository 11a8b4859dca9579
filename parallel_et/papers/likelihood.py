"""The exact likelihood of what several learners have after each iteration, on the same points (MCA fig. 6)."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parallel_et.core.model import Model
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Params
from parallel_et.inference.posterior import Inference
from parallel_et.job.job import Job, read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import png
from parallel_et.reports.plots import likelihoods
from parallel_et.runs.setup import model_of
from parallel_et.runs.trainer import History, begin
from parallel_et.storage.atomic import write_whole

CURVE = 500
"""Values of a curve at least, if there are so many iterations."""


class Course(NamedTuple):
    """Iterations (k,) and the mean log likelihood of a point after each of them, (k,)."""

    iteration: np.ndarray
    likelihood: np.ndarray


def run_learners(
    ranks: Ranks, jobs: Mapping[str, str], exact: str, seeds: range, place: Path
) -> tuple[dict[str, list[Course]], float]:
    """Run each job for each seed on the points of the first, and draw the curves; all ranks call this together.

    Parameters
    ----------
    jobs : files by name
    exact : the file of a job by whose model and scheme the likelihood is told
    place : the name of the picture, without its ending

    Returns
    -------
    tuple : the curves by name, and the likelihood of the parameters behind the points
    """
    judge = ranks.from_root(lambda: read_job(exact))
    curves: dict[str, list[Course]] = {}
    generating = 0.0
    for name, path in jobs.items():
        curves[name] = []
        for seed in seeds:
            job = ranks.from_root(partial(job_for, path, seed, seeds[0]))
            training = begin(job, ranks)
            training.run()
            source, held = training.source, training.state.params["pi"]
            Y = source.read(0, source.points)
            evidence = partial(likelihood, *model_of(judge, source.dims), Y)
            generating = evidence(training.truth)
            curves[name].append(ranks.from_root(partial(course, training.history, held, evidence)))
    ranks.from_root(lambda: write_whole(place.with_suffix(".png"), png(likelihoods(curves, generating))))
    return curves, generating


def job_for(path: str, seed: int, data: int) -> Job:
    """A job with the points of one seed and the start of another, which keeps enough of its iterations."""
    every = max(1, read_job(path).anneal.iterations // CURVE)
    told = [f"run.seed={seed}", f"data.seed={data}", f"run.snapshots={every}"]
    return read_job(path, told)


def course(history: History, pi: np.ndarray, evidence: Callable[[Params], float]) -> Course:
    """The likelihood at each snapshot; pi is that of the end, unless there is one for each cause."""
    snapshots = history.snapshots
    probabilities = snapshots.get("pi") or [pi] * len(snapshots["W"])
    pairs = zip(snapshots["W"], probabilities, strict=True)
    found = [evidence({"W": W, "pi": np.broadcast_to(own, W.shape[1])}) for W, own in pairs]
    return Course(np.array(snapshots["iteration"]), np.array(found))


def likelihood(model: Model, scheme: Scheme, Y: np.ndarray, params: Params) -> float:
    """Mean of log p(y) over points (n, D or wider)."""
    return float(Inference(model, scheme, params, ("evidence",)).block(Y, 0)["evidence"].mean())
