"""The schedules of a run: temperature, cut, noise and step of each iteration, and the end of training."""

from typing import Any

import numpy as np

from parallel_et.core.model import Model
from parallel_et.core.types import Params, Settings
from parallel_et.em.minibatches import Batches
from parallel_et.em.state import EMState, Progress
from parallel_et.errors import UserError

RESTARTS = (0.5, 0.8)
"""First and last iteration with restarts of fields, as fractions of all iterations."""


def value_at(schedule: Any, iteration: int, iterations: int) -> float:
    """Return the value of a schedule. Positions within [0, 1] are fractions of the run, larger ones are iterations."""
    if not isinstance(schedule, list):
        return float(schedule)
    positions, values = zip(*schedule, strict=True)
    position = iteration / iterations if positions[-1] <= 1 else iteration
    return float(np.interp(position, positions, values))


class Schedule:
    """The schedules of a run.

    Parameters
    ----------
    anneal : section [anneal] of the job
    model : model, which may declare further schedules
    max_active : largest number of active causes in a considered state
    batches : minibatches of the points on all ranks
    """

    def __init__(self, anneal: Any, model: Model, max_active: int, batches: Batches) -> None:
        self.anneal, self.model, self.max_active, self.batches = anneal, model, max_active, batches
        self.iterations: int = anneal.iterations
        self.noise = dict(anneal.noise)
        self.own = {name: getattr(anneal, name) for name in model.schedules if getattr(anneal, name) is not None}
        given = anneal.temperature
        self.adaptive = given if hasattr(given, "steps") else None  # steps down whenever the fields change little
        self.by_variance = hasattr(given, "variance")
        self.temperature = given.variance if self.by_variance else given
        if self.by_variance and "sigma" not in model.params:
            raise UserError("anneal.temperature.variance: expected a model with sigma, found one without")

    def with_batches(self, batches: Batches) -> "Schedule":
        """Return the same schedules for other minibatches."""
        return Schedule(self.anneal, self.model, self.max_active, batches)

    def settings(self, state: EMState) -> Settings:
        """Return the values of the schedules for the next iteration."""
        iteration = state.iteration

        def value(schedule: Any) -> float:
            return value_at(schedule, iteration, self.iterations)

        temperature = self._temperature(state)
        points, cut = self.batches.size(iteration), value(self.anneal.cut.schedule)
        if cut > 0:
            expected = self.anneal.cut.share * points * self.model.prior.fraction_up_to(state.params, self.max_active)
            points = round(points - cut * (points - expected))
        own = {
            name: value(self.own[name]) if name in self.own else schedule.rule(temperature)
            for name, schedule in self.model.schedules.items()
        }
        noise = {name: value(schedule) for name, schedule in self.noise.items()}
        step = self.step(iteration)
        return Settings(
            iteration, temperature, cut, points, noise, own, self.max_active, step, iteration < self.anneal.hold
        )

    def step(self, iteration: int) -> float:
        """Return rho, the weight of the statistics of a minibatch in the running average."""
        return float((1 + iteration / self.anneal.step.delay) ** -self.anneal.step.power)

    def _temperature(self, state: EMState) -> float:
        if (adaptive := self.adaptive) is not None:
            return float(np.interp(state.progress.cooled, (0, adaptive.steps), (adaptive.start, adaptive.end)))
        temperature = value_at(self.temperature, state.iteration, self.iterations)
        if self.by_variance:  # the thesis's beta = sigma^2 / T, TH eq. 2.9
            return max(1.0, temperature / float(np.mean(state.params["sigma"] ** 2)))
        return temperature

    def restart(self, iteration: int) -> int | None:
        """Return the index of the restart of fields before an iteration, from 0 on; None if there is no restart."""
        count, (first, last) = self.anneal.renew, RESTARTS
        iterations = [round(self.iterations * (first + (last - first) * i / count)) for i in range(count)]
        return iterations.index(iteration) if iteration in iterations else None

    def finished(self, state: EMState) -> bool:
        """Return whether all iterations are finished, or training has converged."""
        stop = self.anneal.stop
        return state.iteration >= self.iterations or (stop is not None and state.progress.quiet >= stop.iterations)

    def progress(self, old: EMState, params: Params, evidence: float | None = None) -> Progress:
        """Return the progress after an iteration from the state ``old`` to ``params``.

        ``evidence`` is the held-out evidence, or None if it was not computed.
        """
        adaptive, stop = self.adaptive, self.anneal.stop
        quiet, cooled, best = old.progress
        settled = stop is not None and self.settled(old.iteration, cooled)
        if stop is None or not stop.holdout:
            quiet = quiet + 1 if settled and self._changed_little(old.params, params) else 0
        elif evidence is not None:
            risen = not settled or evidence > best + stop.change
            quiet, best = (0, evidence) if risen else (quiet + 1, best)
        if adaptive is not None and old.iteration + 1 >= adaptive.hold:
            changed_little = self._change(old.params, params) < adaptive.change
            cooled = min(cooled + changed_little, adaptive.steps)
        return Progress(quiet, cooled, best)

    def settled(self, iteration: int, cooled: int = 0) -> bool:
        """Return whether all schedules have reached their last values."""
        schedules = [self.temperature, self.anneal.cut.schedule, *self.noise.values(), *self.own.values()]
        last = [s[-1][0] * (self.iterations if s[-1][0] <= 1 else 1) for s in schedules if isinstance(s, list)]
        cold = self.adaptive is None or cooled == self.adaptive.steps
        last += [RESTARTS[1] * self.iterations] * (self.anneal.renew > 0) + [self.anneal.hold]
        return cold and all(iteration >= position for position in last)

    def _changed_little(self, old: Params, new: Params) -> bool:
        """Return whether the change of the fields is below the threshold of the convergence stop."""
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
