"""Annealing: what the schedules of a run say for each iteration, and when it ends."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parallel_et.core.batches import Batches
from parallel_et.core.clock import Dealt
from parallel_et.core.contract import Knobs, Model, Params
from parallel_et.errors import UserError

RENEWAL = (0.5, 0.8)
"""Between which parts of a run fields begin anew, where the job has it so."""


class Info(NamedTuple):
    """What the root knows of an iteration besides the parameters; ``renewed``: fields that began anew before it.

    ``holdout`` is the evidence a point, after it, of those that are held out; NaN where it was not looked at.
    """

    free_energy: float
    points_used: int
    unused: np.ndarray
    seconds: dict[str, float]
    dealt: list[Dealt]
    renewed: int | None = None
    holdout: float | None = None


@dataclass(frozen=True)
class Position:
    """Where a run stands between two iterations: with the problem, all that the next one needs.

    Attributes
    ----------
    iteration : number of iterations done
    params : what they have learned
    calm : how many of the last ones in a row have changed the parameters but little
    cooled : steps that a temperature which waits has fallen
    best : held-out evidence a point when it last rose by enough
    """

    iteration: int
    params: Params
    calm: int = 0
    cooled: int = 0
    best: float = -np.inf


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
    batches : of the points of all ranks
    """

    def __init__(self, anneal: Any, model: Model, most: int, batches: Batches) -> None:
        self.anneal, self.model, self.most, self.batches = anneal, model, most, batches
        self.iterations: int = anneal.iterations
        self.noise = dict(anneal.noise)
        self.own = {name: getattr(anneal, name) for name in model.knobs if getattr(anneal, name) is not None}
        given = anneal.temperature
        self.waiting = given if hasattr(given, "steps") else None
        self.by_variance = hasattr(given, "variance")
        self.temperature = given.variance if self.by_variance else given
        if self.by_variance and "sigma" not in model.params:
            raise UserError("anneal.temperature.variance: expected a model with sigma, found one without")

    def at(self, iteration: int, params: Params, cooled: int = 0) -> Knobs:
        """What iteration ``iteration`` uses, which begins with ``params`` after so many steps of cooling."""

        def value(schedule: Any) -> float:
            return value_at(schedule, iteration, self.iterations)

        if (wait := self.waiting) is None:
            temperature = value(self.temperature)
            if self.by_variance:  # the thesis's beta = sigma^2 / T, TH eq. 2.9
                temperature = max(1.0, temperature / float(np.mean(params["sigma"] ** 2)))
        else:
            temperature = float(np.interp(cooled, (0, wait.steps), (wait.start, wait.end)))
        points, cut = self.batches.size(iteration), value(self.anneal.cut.schedule)
        if cut > 0:
            kept = self.anneal.cut.share * points * self.model.prior.share(params, self.most)
            points = round(points - cut * (points - kept))
        own = {
            name: value(self.own[name]) if name in self.own else knob.rule(temperature)
            for name, knob in self.model.knobs.items()
        }
        noise = {name: value(schedule) for name, schedule in self.noise.items()}
        step = (1 + iteration / self.anneal.step.delay) ** -self.anneal.step.power
        return Knobs(iteration, temperature, cut, points, noise, own, self.most, step, iteration < self.anneal.hold)

    def attempt(self, iteration: int) -> int | None:
        """Which of the attempts to begin fields anew comes before an iteration, from 0 on; None if none does."""
        count, (first, last) = self.anneal.renew, RENEWAL
        places = [round(self.iterations * (first + (last - first) * i / count)) for i in range(count)]
        return places.index(iteration) if iteration in places else None

    def ended(self, iterations: int, calm: int) -> bool:
        """Whether a run is at its end after so many iterations, of which the last ``calm`` have changed little."""
        stop = self.anneal.stop
        return iterations >= self.iterations or (stop is not None and calm >= stop.iterations)

    def after(self, at: Position, new: Params, held: float | None = None) -> tuple[int, int, float]:
        """Of the position after an iteration from ``at`` to ``new``: how long it is calm, how far cooled, and its best.

        ``held`` is the evidence of held-out points, if it was looked at.
        """
        wait, stop, cooled, best = self.waiting, self.anneal.stop, at.cooled, at.best
        settled = stop is not None and self.settled(at.iteration, cooled)
        if stop is not None and stop.holdout:
            calm = at.calm
            if held is not None:
                risen = not settled or held > best + stop.change
                calm, best = (0, held) if risen else (calm + 1, best)
        else:
            calm = at.calm + 1 if settled and self.little(at.params, new) else 0
        if wait is not None and at.iteration + 1 >= wait.hold and self.change(at.params, new) < wait.change:
            cooled = min(cooled + 1, wait.steps)
        return calm, cooled, best

    def little(self, old: Params, new: Params) -> bool:
        """Whether the fields have changed so little that it counts for the convergence stop."""
        stop = self.anneal.stop
        if stop.fields:
            return self.change(old, new) < stop.change
        return all(
            np.linalg.norm(new[name] - old[name]) < stop.change * (np.linalg.norm(old[name]) or 1.0)
            for name in self._fields()
        )

    def change(self, old: Params, new: Params) -> float:
        """The largest change of the fields of any cause, |W_h - W_h,old| / sum_d |W_dh,old| (MCA eq. 38)."""
        largest = 0.0
        for name in self._fields():
            others = tuple(k for k, axis in enumerate(self.model.params[name].axes) if axis != "H")
            size = np.abs(old[name]).sum(others)
            length = np.sqrt(((new[name] - old[name]) ** 2).sum(others))
            largest = max(largest, float(np.max(length / np.where(size > 0, size, 1.0))))
        return largest

    def _fields(self) -> list[str]:
        return [name for name, param in self.model.params.items() if len(param.axes) > 1]

    def settled(self, iteration: int, cooled: int = 0) -> bool:
        """Whether all schedules have reached their last values."""
        schedules = [self.temperature, self.anneal.cut.schedule, *self.noise.values(), *self.own.values()]
        last = [s[-1][0] * (self.iterations if s[-1][0] <= 1 else 1) for s in schedules if isinstance(s, list)]
        cold = self.waiting is None or cooled == self.waiting.steps
        last += [RENEWAL[1] * self.iterations] * (self.anneal.renew > 0) + [self.anneal.hold]
        return cold and all(iteration >= position for position in last)
