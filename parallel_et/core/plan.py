"""Annealing: what the schedules of a run say for each iteration, and when it ends."""

from typing import Any

import numpy as np

from parallel_et.core.contract import Knobs, Model, Params


def value_at(schedule: Any, iteration: int, iterations: int) -> float:
    """A schedule's value; positions all within [0, 1] are fractions of the run, else iteration numbers."""
    if not isinstance(schedule, list):
        return float(schedule)
    positions, values = zip(*schedule, strict=True)
    at = iteration / iterations if positions[-1] <= 1 else iteration
    return float(np.interp(at, positions, values))


class Plan:
    """The schedules of a run.

    Parameters
    ----------
    anneal : the [anneal] of its job
    most : active causes that a considered state has at most
    points : of all ranks
    """

    def __init__(self, anneal: Any, model: Model, most: int, points: int) -> None:
        self.anneal, self.model, self.most, self.points = anneal, model, most, points
        self.iterations: int = anneal.iterations
        self.noise = dict(anneal.noise)
        self.own = {name: getattr(anneal, name) for name in model.knobs if getattr(anneal, name) is not None}

    def at(self, iteration: int, params: Params) -> Knobs:
        """What iteration ``iteration``, which begins with ``params``, uses."""

        def value(schedule: Any) -> float:
            return value_at(schedule, iteration, self.iterations)

        temperature, cut = value(self.anneal.temperature), value(self.anneal.cut.schedule)
        points = self.points
        if cut > 0:
            kept = self.anneal.cut.share * points * self.model.prior.share(params, self.most)
            points = round(points - cut * (points - kept))
        own = {
            name: value(self.own[name]) if name in self.own else knob.rule(temperature)
            for name, knob in self.model.knobs.items()
        }
        noise = {name: value(schedule) for name, schedule in self.noise.items()}
        return Knobs(iteration, temperature, cut, points, noise, own, self.most)

    def ended(self, iterations: int, calm: int) -> bool:
        """Whether a run is at its end after so many iterations, of which the last ``calm`` have changed little."""
        stop = self.anneal.stop
        return iterations >= self.iterations or (stop is not None and calm >= stop.iterations)

    def little(self, iteration: int, old: Params, new: Params) -> bool:
        """Whether an iteration has changed the fields so little that it counts for the convergence stop."""
        stop = self.anneal.stop
        if stop is None or not self.settled(iteration):
            return False
        names = [name for name, param in self.model.params.items() if len(param.axes) > 1]
        return all(
            np.linalg.norm(new[name] - old[name]) < stop.change * (np.linalg.norm(old[name]) or 1.0) for name in names
        )

    def settled(self, iteration: int) -> bool:
        """Whether all schedules have reached their last values."""
        schedules = [self.anneal.temperature, self.anneal.cut.schedule, *self.noise.values(), *self.own.values()]
        last = [s[-1][0] * (self.iterations if s[-1][0] <= 1 else 1) for s in schedules if isinstance(s, list)]
        return all(iteration >= position for position in last)
