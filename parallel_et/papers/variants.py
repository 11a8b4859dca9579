"""One job in several variants, on the same data and from the same starts: what each reaches, and how fast."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from parallel_et.control.signals import STOPPED
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import png
from parallel_et.reports.plots import compared
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.stored_run import read_together
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.storage.atomic import write_whole
from parallel_et.trials.runner import TrialsOptions, run_trials
from parallel_et.trials.table import Trial, read_trials

T = TypeVar("T")
FALL = 1e-9
"""Relative loss of free energy within an iteration that rounding may explain."""


class Outcome(NamedTuple):
    """What a variant has come to: its trials, and the free energy of the first of them over the iterations."""

    trials: list[Trial]
    curve: np.ndarray

    @property
    def energies(self) -> np.ndarray:
        """Free energy of each trial at its end."""
        return np.array([trial.free_energy for trial in self.trials])


def run_variants(
    ranks: Ranks, options: TrialsOptions, variants: Mapping[str, Sequence[str]], place: Path, seeds: range
) -> dict[str, Outcome] | None:
    """Run every variant of a job, settings by name, for every seed, and draw their curves; None if stopped.

    ``options`` are those of the trials of all; the names of all that is written begin with ``place``.
    """

    def look(path: Path, told: list[str], trials: list[Trial]) -> Outcome | None:
        run = TrainOptions(options.job, told, str(path), max_time=options.max_time, quiet=True)
        if train_job(ranks, run, without_picture) == STOPPED:
            return None
        learned = read_together(ranks, RunDirectory(str(path)), {})
        return Outcome(trials, ranks.from_root(lambda: learned.result.history["free_energy"]))

    if (found := run_each(ranks, options, variants, place, seeds, look)) is None:
        return None
    curves = {name: outcome.curve for name, outcome in found.items()}
    ranks.from_root(lambda: write_whole(place.with_suffix(".png"), png(compared(curves))))
    return found


def run_each(
    ranks: Ranks,
    options: TrialsOptions,
    variants: Mapping[str, Sequence[str]],
    place: Path,
    seeds: range,
    look: Callable[[Path, list[str], list[Trial]], T | None],
) -> dict[str, T] | None:
    """Run trials of every variant of a job, settings by name, and look at those of these seeds; None if stopped.

    ``look`` is called on all ranks with the name that all files of a variant begin with, its settings and its trials;
    it may be stopped as well.
    """
    found: dict[str, T] = {}
    for name, settings in variants.items():
        path, told = place.with_name(f"{place.name}-{slug(name)}"), [*options.set, *settings]
        if run_trials(ranks, replace(options, set=told, output=f"{path}.h5")) == STOPPED:
            return None
        everything = ranks.from_root(partial(read_trials, Path(f"{path}.h5")))[1]
        if (one := look(path, told, [trial for trial in everything if trial.seed in seeds])) is None:
            return None
        found[name] = one
    return found


def without_picture(*_: Any) -> None:
    """The curves are drawn, the fields are not."""


def slug(name: str) -> str:
    """A name that may be that of a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def in_words(outcome: Outcome, first: Outcome) -> str:
    """Free energy at the end, also beside that of the first variant, and how often all causes were found."""
    gain = outcome.energies - first.energies
    words = [f"F {outcome.energies.mean():.2f}"]
    if outcome is not first:
        words.append(f"{gain.mean():+.2f} ± {error_of(gain):.2f} beside the first")
    if outcome.trials[0].causes:
        complete = sum(trial.found == trial.causes for trial in outcome.trials)
        words.append(f"all causes in {complete} of {len(outcome.trials)}")
    return ", ".join(words)


def verdict(outcome: Outcome) -> str:
    """Whether the free energy has fallen."""
    steps = np.diff(outcome.curve) / np.abs(outcome.curve[:-1])
    return "never fell" if (steps >= -FALL).all() else f"fell by {-steps.min():.1g}"


def error_of(values: np.ndarray) -> float:
    """Standard error of a mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
