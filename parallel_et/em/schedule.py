"""The schedules of a run: temperature, cut, noise and steps of each iteration, and when training ends."""

from typing import Any

import numpy as np

from parallel_et.core.model import Model
from parallel_et.core.types import Params, Settings
from parallel_et.em.minibatches import Batches
from parallel_et.em.state import EMState, Progress
from parallel_et.errors import UserError

RESTARTS = (0.5, 0.8)
"""Part of a run in which fields are restarted, as fractions of its iterations."""


def value_at(schedule: Any, iteration: int, iterations: int) -> float:
    """Return a schedule's value; positions all within [0, 1] are fractions of the run, else iteration numbers."""
    if not isinstance(schedule, list):
        return float(schedule)
    positions, values = zip(*schedule, strict=True)
    position = iteration / iterations if positions[-1] <= 1 else iteration
    return float(np.interp(position, positions, values))


class Schedule:
    """The schedules of a run.

    Parameters
    ----------
    anneal : the [anneal] of its job
    most : largest number of active causes of a considered state
    batches : minibatches of the points of all ranks
    """

    def __init__(self, anneal: Any, model: Model, most: int, batches: Batches) -> None:
        self.anneal, self.model, self.most, self.batches = anneal, model, most, batches
        self.iterations: int = anneal.iterations
        self.noise = dict(anneal.noise)
        self.own = {name: getattr(anneal, name) for name in model.schedules if getattr(anneal, name) is not None}
        given = anneal.temperature
        self.waiting = given if hasattr(given, "steps") else None
        self.by_variance = hasattr(given, "variance")
        self.temperature = given.variance if self.by_variance else given
        if self.by_variance and "sigma" not in model.params:
            raise UserError("anneal.temperature.variance: expected a model with sigma, found one without")

    def with_batches(self, batches: Batches) -> "Schedule":
        """Return the same schedules for other minibatches."""
        return Schedule(self.anneal, self.model, self.most, batches)

    def settings(self, state: EMState) -> Settings:
        """Return the values of the schedules for the next iteration."""
        iteration = state.iteration

        def value(schedule: Any) -> float:
            return value_at(schedule, iteration, self.iterations)

        temperature = self._temperature(state)
        points, cut = self.batches.size(iteration), value(self.anneal.cut.schedule)
        if cut > 0:
            expected = self.anneal.cut.share * points * self.model.prior.share(state.params, self.most)
            points = round(points - cut * (points - expected))
        own = {
            name: value(self.own[name]) if name in self.own else schedule.rule(temperature)
            for name, schedule in self.model.schedules.items()
        }
        noise = {name: value(schedule) for name, schedule in self.noise.items()}
        step = self.step(iteration)
        return Settings(iteration, temperature, cut, points, noise, own, self.most, step, iteration < self.anneal.hold)

    def step(self, iteration: int) -> float:
        """Return the weight of the statistics of a minibatch beside the average of earlier ones."""
        return float((1 + iteration / self.anneal.step.delay) ** -self.anneal.step.power)

    def _temperature(self, state: EMState) -> float:
        if (wait := self.waiting) is not None:
            return float(np.interp(state.progress.cooled, (0, wait.steps), (wait.start, wait.end)))
        temperature = value_at(self.temperature, state.iteration, self.iterations)
        if self.by_variance:  # the thesis's beta = sigma^2 / T, TH eq. 2.9
            return max(1.0, temperature / float(np.mean(state.params["sigma"] ** 2)))
        return temperature

    def restart(self, iteration: int) -> int | None:
        """Return the number of the restart of fields before an iteration, from 0 on; None if there is none."""
        count, (first, last) = self.anneal.renew, RESTARTS
        iterations = [round(self.iterations * (first + (last - first) * i / count)) for i in range(count)]
        return iterations.index(iteration) if iteration in iterations else None

    def finished(self, state: EMState) -> bool:
        """Return whether all iterations are done, or training has converged."""
        stop = self.anneal.stop
        return state.iteration >= self.iterations or (stop is not None and state.progress.quiet >= stop.iterations)

    def progress(self, old: EMState, params: Params, evidence: float | None = None) -> Progress:
        """Return the progress after an iteration that began with ``old`` and ended with ``params``.

        ``evidence`` is that of the held-out points, if it was computed.
        """
        wait, stop = self.waiting, self.anneal.stop
        quiet, cooled, best = old.progress
        settled = stop is not None and self.settled(old.iteration, cooled)
        if stop is None or not stop.holdout:
            quiet = quiet + 1 if settled and self._changed_little(old.params, params) else 0
        elif evidence is not None:
            risen = not settled or evidence > best + stop.change
            quiet, best = (0, evidence) if risen else (quiet + 1, best)
        if wait is not None and old.iteration + 1 >= wait.hold and self._change(old.params, params) < wait.change:
            cooled = min(cooled + 1, wait.steps)
        return Progress(quiet, cooled, best)

    def settled(self, iteration: int, cooled: int = 0) -> bool:
        """Return whether all schedules have reached their last values."""
        schedules = [self.temperature, self.anneal.cut.schedule, *self.noise.values(), *self.own.values()]
        last = [s[-1][0] * (self.iterations if s[-1][0] <= 1 else 1) for s in schedules if isinstance(s, list)]
        cold = self.waiting is None or cooled == self.waiting.steps
        last += [RESTARTS[1] * self.iterations] * (self.anneal.renew > 0) + [self.anneal.hold]
        return cold and all(iteration >= position for position in last)

    def _changed_little(self, old: Params, new: Params) -> bool:
        """Return whether the change of the fields is below that of the convergence stop."""
        stop = self.anneal.stop
        if stop.fields:
            return self._change(old, new) < stop.change
        return all(
            np.linalg.norm(new[name] - old[name]) < stop.change * (np.linalg.norm(old[name]) or 1.0)
            for name in self._fields()
        )

    def _change(self, old: Params, new: Params) -> float:
        """Return the largest change of the fields of a cause, |W_h - W_h,old| / sum_d |W_dh,old| (MCA eq. 38)."""
        largest = 0.0
        for name in self._fields():
            others = tuple(k for k, axis in enumerate(self.model.params[name].axes) if axis != "H")
            size = np.abs(old[name]).sum(others)
            length = np.sqrt(((new[name] - old[name]) ** 2).sum(others))
            largest = max(largest, float(np.max(length / np.where(size > 0, size, 1.0))))
        return largest

    def _fields(self) -> list[str]:
        return [name for name, param in self.model.params.items() if len(param.axes) > 1]
