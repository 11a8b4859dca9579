"""Whether every cause is represented by a unit of its own, and how well its probability is known (MCA sec. 6.5)."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from parallel_et.data.base import Generated
from parallel_et.inference.recovery import recovery
from parallel_et.job.job import read_job
from parallel_et.runs.setup import model_of, open_source
from parallel_et.trials.runner import TrialsOptions
from parallel_et.trials.table import Trial, read_trials


class Represented(NamedTuple):
    """What trials have come to.

    Attributes
    ----------
    trials : the trials
    units : (trials,) causes that are represented by a unit of their own
    errors : (complete trials,) mean difference of a learned probability to the frequency of its cause in the data; NaN
        where none is learned
    """

    trials: list[Trial]
    units: np.ndarray
    errors: np.ndarray

    @property
    def complete(self) -> int:
        """Trials in which every cause has a unit of its own."""
        return int((self.units == [trial.causes for trial in self.trials]).sum())


def look_at_trials(options: TrialsOptions, path: Path, seeds: range) -> Represented:
    """The trials of these seeds in a file.

    Each cause is shown alone: the unit that most probably is active alone represents it, whatever its field is like.
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
            seen = np.concatenate([states for _, _, states in source.drawn(0, source.points)]).mean(0)
            errors.append(np.abs(learned - seen).mean())
    return Represented(trials, np.array(units), np.array(errors))
