"""Experiments of the OCA paper: the best of several trials on the same data, and scenes with more than gamma causes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parallel_et.control.signals import EXIT_STOPPED
from parallel_et.core.latent_states import states_of_places
from parallel_et.data.model import DrawnFromModel
from parallel_et.inference.posterior import Inference
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.stored_run import StoredRun, read_on_all_ranks
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.trials.runner import TrialsOptions, best_of, run_trials
from parallel_et.trials.table import Trial, read_trials

SCENE_COUNT = 1000
"""Number of scenes that a trained model infers."""
SAME_SCENE_DIFFERENCE = 0.1
"""Largest difference of the pixels of equal scenes, with colours up to 1."""


class SetsOutcome(NamedTuple):
    """All trials, and the trial with the smallest sigma in each set on the same data."""

    trials: list[Trial]
    best: list[Trial]


def run_sets(ranks: Ranks, options: TrialsOptions, size: int, place: Path, seeds: range) -> SetsOutcome | None:
    """Run trials in sets of ``size``, each set on data drawn with its own seed. Return None if stopped."""
    trials: list[Trial] = []
    for first in range(seeds.start, seeds.stop, size):
        path = place / f"{first}.h5"
        settings = [*options.set, f"run.seed={first}", f"data.seed={first}"]
        count = min(size, seeds.stop - first)
        if run_trials(ranks, replace(options, set=settings, count=count, output=str(path))) == EXIT_STOPPED:
            return None
        trials += ranks.from_root(partial(read_trials, path))[1]
    return SetsOutcome(trials, best_of(trials, "sigma", min(size, len(trials))))


class ScenesOutcome(NamedTuple):
    """Inference of scenes that are drawn from a trained model.

    Attributes
    ----------
    causes : (n,) number of causes in each scene
    recognised : (n,) bool, True if the inferred scene has the same pixels: the right causes in the right visible order
    seconds : duration of the training
    """

    causes: np.ndarray
    recognised: np.ndarray
    seconds: float


def explain_scenes(
    ranks: Ranks, job: str, settings: Sequence[str], place: Path, max_time: float | None
) -> ScenesOutcome | None:
    """Train a job, and infer scenes that are drawn from the trained model; None if stopped."""
    options = TrainOptions(job, settings, str(place), max_time=max_time, quiet=True)
    if train_job(ranks, options, lambda *_: None) == EXIT_STOPPED:
        return None
    run = read_on_all_ranks(ranks, RunDirectory(str(place)), {})
    return ranks.run_on_root(lambda _: infer_scenes(run))


def infer_scenes(run: StoredRun) -> ScenesOutcome:
    """Infer scenes that are drawn from the trained model (OCA sec. 4.5)."""
    source = DrawnFromModel(run.model, run.params, SCENE_COUNT, run.job.run.seed, "scenes")
    Y, truth = (
        source.read(0, SCENE_COUNT),
        np.concatenate([states for _, _, states in source.draw_groups(0, SCENE_COUNT)]),
    )
    found = Inference(run.model, run.scheme, run.params, ("map",)).block(Y)["map_order"]
    clean, guess = (run.model.mean(run.params, states_of_places(table)) for table in (truth, found))
    recognised = np.abs(clean - guess).max(1) < SAME_SCENE_DIFFERENCE
    seconds = sum(float(values.sum()) for name, values in run.result.history.items() if name.startswith("seconds_"))
    return ScenesOutcome((truth > 0).sum(1), recognised, seconds)
