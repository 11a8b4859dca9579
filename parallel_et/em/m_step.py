"""The M-step of one iteration: new parameters from the statistics, on the root or on all ranks, and their noise."""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from parallel_et.core.capabilities import RelativeStatistics, usage_of
from parallel_et.core.model import UNUSED, Trainable
from parallel_et.core.random import stream
from parallel_et.core.types import Totals
from parallel_et.em.e_step import NOT_FINITE, EStep, Stage
from parallel_et.em.state import Averages
from parallel_et.errors import UserError
from parallel_et.parallel.exact_sum import ExactSum
from parallel_et.parallel.work_sharing import serial


class MStep:
    """The parameters while the stages of an M-step change them. All methods are collective.

    Attributes
    ----------
    params : parameters so far, the same on every rank
    unused : (H,) bool, causes without weight in the statistics; only on the root
    """

    def __init__(self, e_step: EStep) -> None:
        self.problem, self.ranks = e_step.problem, e_step.ranks
        self.timer, self.work_sharing = e_step.timer, e_step.work_sharing
        self.params, self.unused = e_step.state.params, np.zeros(0, bool)
        self._e_step, self._old = e_step, e_step.state
        self._averages: dict[str, Totals] = dict(self._old.averages)
        self._first_sums: dict[Trainable, Totals] = {}

    def maximise(self, stages: Sequence[Stage], sums: Sequence[ExactSum]) -> None:
        """Update the parameters with the sums of this rank, stage by stage."""
        for (trainable, stage), total in zip(stages, sums, strict=True):
            everywhere = self.problem.is_distributed(trainable)
            self.timer("communication")
            found = total.in_shared_memory(self.work_sharing) if everywhere else total.on_root(self.ranks)
            self.timer("mstep")
            with self.ranks.synchronise_errors():
                if everywhere or self.ranks.is_root:
                    points = np.array(float(self._e_step.points))
                    self._update(trainable, stage, self._averaged(trainable, stage, {**found, "points": points}))
            self.timer("communication")
            self.params = self.ranks.broadcast_small(self.params) if everywhere else self.ranks.broadcast(self.params)

    def add_noise(self) -> None:
        """Add the Gaussian noise of the schedules to learned parameters, and clip all parameters to their limits."""
        self.timer("mstep")
        model, settings = self.problem.model, self._e_step.settings
        noisy = dict(self.params)
        for name, std in settings.noise.items():
            if std > 0 and name in model.options.learn:
                rng = stream(self.problem.seed, f"noise.{name}", settings.iteration)
                noisy[name] = self.params[name] + std * rng.standard_normal(self.params[name].shape)
        inside = model.constrain(noisy)
        with self.ranks.synchronise_errors():
            if not all(np.isfinite(value).all() for value in inside.values()):
                where = f"iteration {settings.iteration}"
                raise UserError(f"{where}: expected finite parameters, found others; {NOT_FINITE}")
        self.params = {name: np.asarray(value, order="F") for name, value in inside.items()}

    def new_averages(self) -> Averages:
        """Return the running averages of the statistics, relative to the new parameters."""
        averages = dict(self._averages)
        for trainable, stage in chain.from_iterable(self.problem.passes()):
            name = self.problem.name_of(trainable, stage)
            if name in averages and isinstance(trainable, RelativeStatistics):
                sums = averages[name]
                averages[name] = {**sums, **trainable.adjust_sums(stage, sums, self._old.params, self.params)}
        return averages

    def _update(self, trainable: Trainable, stage: str, sums: Totals) -> None:
        """Update the parameters with the sums of a stage."""
        problem, settings = self.problem, self._e_step.settings
        if not problem.is_distributed(trainable):
            settings = settings._replace(algebra=problem.algebra(serial))
        if trainable is problem.model and stage == trainable.stages[0]:
            self.unused = usage_of(problem.model, sums) <= UNUSED * problem.shard.points
        if sums["points"]:
            before, earlier = self._old.params, self._first_sums.get(trainable)
            self.params = problem.maximise(trainable, stage, self.params, sums, settings, before, earlier)
        self._first_sums[trainable] = sums

    def _averaged(self, trainable: Trainable, stage: str, sums: Totals) -> Totals:
        """Return the running average of the sums, scaled to all points (Cappé and Moulines 2009)."""
        problem, settings = self.problem, self._e_step.settings
        if problem.schedule.batches.count == 1 or trainable.online:
            return sums
        fraction = problem.schedule.batches.points / self._e_step.batch_points
        name = problem.name_of(trainable, stage)
        new: Mapping[str, np.ndarray] = {key: fraction * values for key, values in sums.items()}
        if old := self._averages.get(name):
            new = {key: old[key] + settings.step * (values - old[key]) for key, values in new.items()}
        self._averages[name] = new
        return new
