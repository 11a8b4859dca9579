"""Comparison of variants of one job, on the same data with the same initial values: final free energy and speed."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from parallel_et.control.signals import EXIT_STOPPED
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import encode_png
from parallel_et.reports.plots import plot_energies
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.stored_run import read_on_all_ranks
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.storage.atomic import write_atomically
from parallel_et.trials.runner import TrialsOptions, run_trials
from parallel_et.trials.table import Trial, read_trials

T = TypeVar("T")
RELATIVE_FALL = 1e-9
"""Largest relative decrease of the free energy in an iteration that is rounding."""


class Outcome(NamedTuple):
    """Trials of a variant, and the free energy of the first trial over the iterations."""

    trials: list[Trial]
    curve: np.ndarray

    @property
    def energies(self) -> np.ndarray:
        """Final free energy of each trial."""
        return np.array([trial.free_energy for trial in self.trials])


def run_variants(
    ranks: Ranks, options: TrialsOptions, variants: Mapping[str, Sequence[str]], place: Path, seeds: range
) -> dict[str, Outcome] | None:
    """Run every variant of a job for every seed, and draw the curves; collective.

    Parameters
    ----------
    options : options of the trials of all variants
    variants : settings by name
    place : beginning of the names of all written files

    Returns
    -------
    dict : outcomes by name; None if stopped
    """

    def evaluate(path: Path, all_settings: list[str], trials: list[Trial]) -> Outcome | None:
        run = TrainOptions(options.job, all_settings, str(path), max_time=options.max_time, quiet=True)
        if train_job(ranks, run, draw_nothing) == EXIT_STOPPED:
            return None
        learned = read_on_all_ranks(ranks, RunDirectory(str(path)), {})
        return Outcome(trials, ranks.from_root(lambda: learned.result.history["free_energy"]))

    if (found := run_each(ranks, options, variants, place, seeds, evaluate)) is None:
        return None
    curves = {name: outcome.curve for name, outcome in found.items()}
    ranks.from_root(lambda: write_atomically(place.with_suffix(".png"), encode_png(plot_energies(curves))))
    return found


def run_each(
    ranks: Ranks,
    options: TrialsOptions,
    variants: Mapping[str, Sequence[str]],
    place: Path,
    seeds: range,
    evaluate: Callable[[Path, list[str], list[Trial]], T | None],
) -> dict[str, T] | None:
    """Run trials of every variant of a job, and evaluate the trials of these seeds; collective.

    Parameters
    ----------
    variants : settings by name
    evaluate : called with the beginning of the file names of a variant, its settings and its trials; collective.
        It returns None if stopped.

    Returns
    -------
    dict : results of ``evaluate`` by name; None if stopped
    """
    found: dict[str, T] = {}
    for name, settings in variants.items():
        path, all_settings = place.with_name(f"{place.name}-{slug(name)}"), [*options.set, *settings]
        if run_trials(ranks, replace(options, set=all_settings, output=f"{path}.h5")) == EXIT_STOPPED:
            return None
        everything = ranks.from_root(partial(read_trials, Path(f"{path}.h5")))[1]
        if (one := evaluate(path, all_settings, [trial for trial in everything if trial.seed in seeds])) is None:
            return None
        found[name] = one
    return found


def draw_nothing(*_: Any) -> None:
    """Skip the picture of the fields."""


def slug(name: str) -> str:
    """Convert a title to a file name of letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def format_outcome(outcome: Outcome, first: Outcome) -> str:
    """Format the final free energy, its difference to the first variant, and how often all causes were found."""
    gain = outcome.energies - first.energies
    words = [f"F {outcome.energies.mean():.2f}"]
    if outcome is not first:
        words.append(f"{gain.mean():+.2f} ± {standard_error(gain):.2f} compared with the first")
    if outcome.trials[0].causes:
        complete = sum(trial.found == trial.causes for trial in outcome.trials)
        words.append(f"all causes in {complete} of {len(outcome.trials)}")
    return ", ".join(words)


def verdict_on_free_energy(outcome: Outcome) -> str:
    """Return "never fell", or the largest relative decrease of the free energy."""
    steps = np.diff(outcome.curve) / np.abs(outcome.curve[:-1])
    return "never fell" if (steps >= -RELATIVE_FALL).all() else f"fell by {-steps.min():.1g}"


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of a mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
