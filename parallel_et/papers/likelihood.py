"""Exact log likelihoods of several jobs over their iterations, on the same points (MCA fig. 6)."""

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
from parallel_et.reports.pictures import encode_png
from parallel_et.reports.plots import plot_likelihoods
from parallel_et.runs.setup import model_of
from parallel_et.runs.trainer import History, new_training
from parallel_et.storage.atomic import write_atomically

LEAST_CURVE_POINTS = 500
"""Smallest number of values in a curve, unless the job has fewer iterations."""


class LikelihoodCurve(NamedTuple):
    """Iterations (k,), and the mean log likelihood of a point after each of these iterations, (k,)."""

    iteration: np.ndarray
    likelihood: np.ndarray


def compare_likelihoods(
    ranks: Ranks, jobs: Mapping[str, str], exact: str, seeds: range, place: Path
) -> tuple[dict[str, list[LikelihoodCurve]], float]:
    """Run each job for each seed on the points of the first seed, and draw the curves; collective.

    Parameters
    ----------
    jobs : job files by name
    exact : job file whose model and scheme compute the likelihood
    place : path of the picture, without its ending

    Returns
    -------
    tuple : curves by name, and the mean log likelihood of the generating parameters
    """
    judge = ranks.from_root(lambda: read_job(exact))
    curves: dict[str, list[LikelihoodCurve]] = {}
    generating = 0.0
    for name, path in jobs.items():
        curves[name] = []
        for seed in seeds:
            job = ranks.from_root(partial(read_job_with_seeds, path, seed, seeds[0]))
            training = new_training(job, ranks)
            training.run()
            source, pi = training.source, training.state.params["pi"]
            Y = source.read(0, source.points)
            evidence = partial(likelihood, *model_of(judge, source.dims), Y)
            generating = evidence(training.truth)
            curves[name].append(ranks.from_root(partial(likelihood_curve, training.history, pi, evidence)))
    ranks.from_root(
        lambda: write_atomically(place.with_suffix(".png"), encode_png(plot_likelihoods(curves, generating)))
    )
    return curves, generating


def read_job_with_seeds(path: str, seed: int, data: int) -> Job:
    """Read a job with the points of seed ``data`` and the initial values of seed ``seed``, and with snapshots."""
    every = max(1, read_job(path).anneal.iterations // LEAST_CURVE_POINTS)
    settings = [f"run.seed={seed}", f"data.seed={data}", f"run.snapshots={every}"]
    return read_job(path, settings)


def likelihood_curve(history: History, pi: np.ndarray, evidence: Callable[[Params], float]) -> LikelihoodCurve:
    """Compute the likelihood at each snapshot. A scalar pi, which has no snapshots, is the final pi."""
    snapshots = history.snapshots
    probabilities = snapshots.get("pi") or [pi] * len(snapshots["W"])
    pairs = zip(snapshots["W"], probabilities, strict=True)
    found = [evidence({"W": W, "pi": np.broadcast_to(own, W.shape[1])}) for W, own in pairs]
    return LikelihoodCurve(np.array(snapshots["iteration"]), np.array(found))


def likelihood(model: Model, scheme: Scheme, Y: np.ndarray, params: Params) -> float:
    """Return the mean of log p(y) over points (n, D or wider)."""
    return float(Inference(model, scheme, params, ("evidence",)).block(Y, 0)["evidence"].mean())
