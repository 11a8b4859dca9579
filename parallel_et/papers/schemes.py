"""Comparison of schemes on one problem: how often all causes are found, and the log likelihood (TH fig. 2.2)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parallel_et.control.signals import EXIT_STOPPED
from parallel_et.inference.posterior import Inference, exact_scheme_for
from parallel_et.papers.variants import draw_nothing, run_each
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import encode_png
from parallel_et.reports.plots import plot_energies
from parallel_et.reports.quality import params_at_snapshot
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.setup import open_on_all_ranks
from parallel_et.runs.stored_run import read_on_all_ranks
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.storage.atomic import write_atomically
from parallel_et.trials.runner import TrialsOptions
from parallel_et.trials.table import Trial


class SchemeOutcome(NamedTuple):
    """Trials of one scheme, and the exact log likelihood per point of the first trial after each iteration."""

    trials: list[Trial]
    curve: np.ndarray

    @property
    def complete(self) -> list[Trial]:
        """Trials that have found all causes."""
        return [trial for trial in self.trials if trial.found == trial.causes]

    def summarise(self, truth: Mapping[str, float]) -> str:
        """Summarise how often all causes were found, and the largest relative error of parameters in these trials."""
        words = [f"all causes in {len(self.complete)} of {len(self.trials)}"]
        for name, value in truth.items() if self.complete else ():
            off = max(abs(float(trial.params[name]) / value - 1) for trial in self.complete)
            words.append(f"{name} within {off:.1%}")
        return ", ".join(words)


def run_schemes(
    ranks: Ranks, options: TrialsOptions, variants: Mapping[str, Sequence[str]], place: Path, seeds: range
) -> dict[str, SchemeOutcome] | None:
    """Run the trials of every variant of a job, and draw their log likelihoods; None if stopped."""

    def evaluate(path: Path, settings: list[str], trials: list[Trial]) -> SchemeOutcome | None:
        run = TrainOptions(
            options.job, [*settings, "run.snapshots=1"], str(path), max_time=options.max_time, quiet=True
        )
        if train_job(ranks, run, draw_nothing) == EXIT_STOPPED:
            return None
        return SchemeOutcome(trials, exact_likelihoods(ranks, path))

    if (found := run_each(ranks, options, variants, place, seeds, evaluate)) is None:
        return None
    curves = {name: one.curve for name, one in found.items()}
    ranks.from_root(
        lambda: write_atomically(place.with_suffix(".png"), encode_png(plot_energies(curves, "log likelihood")))
    )
    return found


def exact_likelihoods(ranks: Ranks, place: Path) -> np.ndarray:
    """Compute the log likelihood per point of a run after each iteration, over all states."""
    run = read_on_all_ranks(ranks, RunDirectory(str(place)), {})
    source = run.centred(open_on_all_ranks(run.job, ranks))

    def exactly(root: Ranks) -> np.ndarray:
        Y, every = source.read(0, source.points)[:, : source.dims], exact_scheme_for(run.model.latents)
        snapshots = range(len(run.result.snapshots["iteration"]))
        params = [params_at_snapshot(run.result, int(run.result.snapshots["iteration"][i]), i) for i in snapshots]
        blocks = (Inference(run.model, every, one, ["evidence"]).block(Y) for one in params)
        return np.array([block["evidence"].mean() for block in blocks])

    return ranks.run_on_root(exactly)
