"""Representation of each cause by its own unit, and errors of the learned probabilities (MCA sec. 6.5)."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from parallel_et.data.base import Generated
from parallel_et.inference.recovery import recovery
from parallel_et.job.job import read_job
from parallel_et.runs.setup import model_of, open_source
from parallel_et.trials.runner import TrialsOptions
from parallel_et.trials.table import Trial, read_trials


class RepresentationOutcome(NamedTuple):
    """Outcome of trials.

    Attributes
    ----------
    trials : the trials
    units : (trials,) number of causes that are represented by their own unit
    errors : (complete trials,) mean absolute error of the learned probabilities, compared with the frequencies of the
        causes in the data; NaN if no probabilities are learned
    """

    trials: list[Trial]
    units: np.ndarray
    errors: np.ndarray

    @property
    def complete(self) -> int:
        """Number of trials in which each cause has its own unit."""
        return int((self.units == [trial.causes for trial in self.trials]).sum())


def evaluate_trials(options: TrialsOptions, path: Path, seeds: range) -> RepresentationOutcome:
    """Evaluate the trials of these seeds in a file.

    Each cause is presented alone. The unit that is most probably the only active unit represents this cause.
    """
    trials = [trial for trial in read_trials(path)[1] if trial.seed in seeds]
    job = read_job(options.job, options.set)
    units, errors = [], []
    model, scheme = model_of(job, open_source(job).dims)
    for trial in trials:
        source = open_source(read_job(options.job, [*options.set, f"run.seed={trial.seed}"]))
        assert isinstance(source, Generated)
        unit = recovery(model, scheme, trial.params, source.truth()["W"]).unit
        units.append(len(np.unique(unit)))
        if units[-1] == len(unit):
            learned = np.broadcast_to(trial.params["pi"], model.H)[unit] if "pi" in job.model.learn else np.nan
            seen = np.concatenate([states for _, _, states in source.draw_groups(0, source.points)]).mean(0)
            errors.append(np.abs(learned - seen).mean())
    return RepresentationOutcome(trials, np.array(units), np.array(errors))
