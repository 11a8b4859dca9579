"""The same problem by several schemes: how often each finds all causes, and the likelihood on its way (TH fig. 2.2)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parallel_et.control.signals import STOPPED
from parallel_et.inference.posterior import Inference, exact_for
from parallel_et.papers.variants import run_each, without_picture
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import png
from parallel_et.reports.plots import compared
from parallel_et.reports.quality import at
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.setup import open_together
from parallel_et.runs.stored_run import read_together
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.storage.atomic import write_whole
from parallel_et.trials.runner import TrialsOptions
from parallel_et.trials.table import Trial


class Trials(NamedTuple):
    """Of one scheme: its trials, and the exact log likelihood a point of the first of them after each iteration."""

    trials: list[Trial]
    curve: np.ndarray

    @property
    def complete(self) -> list[Trial]:
        """Those that have found all causes."""
        return [trial for trial in self.trials if trial.found == trial.causes]

    def words(self, truth: Mapping[str, float]) -> str:
        """How often all causes were found, and how far off what else was learned then is, at most."""
        words = [f"all causes in {len(self.complete)} of {len(self.trials)}"]
        for name, value in truth.items() if self.complete else ():
            off = max(abs(float(trial.params[name]) / value - 1) for trial in self.complete)
            words.append(f"{name} within {off:.1%}")
        return ", ".join(words)


def run_schemes(
    ranks: Ranks, options: TrialsOptions, variants: Mapping[str, Sequence[str]], place: Path, seeds: range
) -> dict[str, Trials] | None:
    """Run the trials of every variant of a job, settings by name, and draw their likelihoods; None if stopped."""

    def look(path: Path, told: list[str], trials: list[Trial]) -> Trials | None:
        run = TrainOptions(options.job, [*told, "run.snapshots=1"], str(path), max_time=options.max_time, quiet=True)
        if train_job(ranks, run, without_picture) == STOPPED:
            return None
        return Trials(trials, likelihoods(ranks, path))

    if (found := run_each(ranks, options, variants, place, seeds, look)) is None:
        return None
    curves = {name: one.curve for name, one in found.items()}
    ranks.from_root(lambda: write_whole(place.with_suffix(".png"), png(compared(curves, "log likelihood"))))
    return found


def likelihoods(ranks: Ranks, place: Path) -> np.ndarray:
    """The log likelihood a point, over all states, of a run after each of its iterations."""
    run = read_together(ranks, RunDirectory(str(place)), {})
    source = run.seen(open_together(run.job, ranks))

    def exactly(root: Ranks) -> np.ndarray:
        Y, every = source.read(0, source.points)[:, : source.dims], exact_for(run.model.latents)
        snapshots = range(len(run.result.snapshots["iteration"]))
        params = [at(run.result, int(run.result.snapshots["iteration"][i]), i) for i in snapshots]
        blocks = (Inference(run.model, every, one, ["evidence"]).block(Y) for one in params)
        return np.array([block["evidence"].mean() for block in blocks])

    return ranks.on_root_alone(exactly)
