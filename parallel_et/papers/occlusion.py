"""What the OCA paper does besides trials: the best of several on the same data, scenes of more than gamma causes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parallel_et.control.signals import STOPPED
from parallel_et.core.latent_states import in_order
from parallel_et.data.model import Drawn
from parallel_et.inference.posterior import Inference
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.stored_run import StoredRun, read_together
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.trials.runner import TrialsOptions, best_of, run_trials
from parallel_et.trials.table import Trial, read_trials

SCENES = 1000
"""Points that a trained model explains."""
ALIKE = 0.1
"""Largest difference of two scenes' pixels that look alike, for colours up to 1."""


class Sets(NamedTuple):
    """All trials, and of each set of them on the same data the one of smallest sigma."""

    trials: list[Trial]
    best: list[Trial]


def run_sets(ranks: Ranks, options: TrialsOptions, size: int, place: Path, seeds: range) -> Sets | None:
    """Run trials in sets of ``size``, each set on data of its own seed, into files in ``place``; None if stopped."""
    trials: list[Trial] = []
    for first in range(seeds.start, seeds.stop, size):
        path = place / f"{first}.h5"
        told = [*options.set, f"run.seed={first}", f"data.seed={first}"]
        count = min(size, seeds.stop - first)
        if run_trials(ranks, replace(options, set=told, count=count, output=str(path))) == STOPPED:
            return None
        trials += ranks.from_root(partial(read_trials, path))[1]
    return Sets(trials, best_of(trials, "sigma", min(size, len(trials))))


class Scenes(NamedTuple):
    """Of points drawn from a trained model: how many causes each has, (n,), and whether they were found, (n,) bool.

    ``alike`` says whether what was found looks as the scene does: the right causes, in the right order as far as that
    can be seen; ``seconds`` of the training.
    """

    causes: np.ndarray
    alike: np.ndarray
    seconds: float


def explain_scenes(
    ranks: Ranks, job: str, settings: Sequence[str], place: Path, max_time: float | None
) -> Scenes | None:
    """Train a job, and find the causes of scenes that are drawn from what it has learned; None if stopped."""
    options = TrainOptions(job, settings, str(place), max_time=max_time, quiet=True)
    if train_job(ranks, options, lambda *_: None) == STOPPED:
        return None
    run = read_together(ranks, RunDirectory(str(place)), {})
    return ranks.on_root_alone(lambda _: scenes_of(run))


def scenes_of(run: StoredRun) -> Scenes:
    """What a trained model makes of scenes of its own (OCA sec. 4.5)."""
    source = Drawn(run.model, run.params, SCENES, run.job.run.seed, "scenes")
    Y, truth = source.read(0, SCENES), np.concatenate([states for _, _, states in source.drawn(0, SCENES)])
    found = Inference(run.model, run.scheme, run.params, ("map",)).block(Y)["map_order"]
    clean, guess = (run.model.mean(run.params, in_order(table)) for table in (truth, found))
    alike = np.abs(clean - guess).max(1) < ALIKE
    seconds = sum(float(values.sum()) for name, values in run.result.history.items() if name.startswith("seconds_"))
    return Scenes((truth > 0).sum(1), alike, seconds)
