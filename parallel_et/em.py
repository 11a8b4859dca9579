"""The EM loop: expectation truncation (ET Alg. 1 and 2) on all ranks at once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from parallel_et.clock import Clock
from parallel_et.errors import UserError
from parallel_et.models.base import UNUSED, Knobs, Model, Params, Summary
from parallel_et.parallel.cut import largest
from parallel_et.parallel.ranks import Ranks
from parallel_et.parallel.shard import Shard
from parallel_et.parallel.sums import ExactSum, exact_sum
from parallel_et.parallel.team import Team
from parallel_et.posterior.memory import Posteriors
from parallel_et.posterior.states import Posterior
from parallel_et.random import stream
from parallel_et.rows import Rows, pad_rows
from parallel_et.schedule import Plan

FAR = "sigma, the fields and the data may be of too different magnitude"
PHASES = ("prepare", "select", "states", "statistics", "cut", "communication", "mstep")
"""What an iteration is made of, for those who want to know where its time goes."""


@dataclass(frozen=True)
class Problem:
    """What is to be learned: a model, by a scheme and a plan, from this rank's rows (n, D or wider).

    ``kept`` is what the scheme keeps of each of them between iterations, arrays (n, ...).
    """

    model: Model
    scheme: Any
    plan: Plan
    shard: Shard
    rows: Rows
    summary: Summary
    seed: int
    team: Team
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    _sums: dict[str, list[ExactSum]] = field(default_factory=dict)

    def sums(self, stage: str) -> list[ExactSum]:
        """Where each thread of the team adds up the statistics of a stage; the same memory in every iteration."""
        if stage not in self._sums:
            self._sums[stage] = [ExactSum(self.model.statistics_like(stage)) for _ in range(self.team.size)]
        return self._sums[stage]


@dataclass(frozen=True)
class Position:
    """Where a run stands between two iterations: with the problem, all that the next one needs.

    Attributes
    ----------
    iteration : number of iterations done
    params : what they have learned
    calm : how many of the last ones in a row have changed W but little
    """

    iteration: int
    params: Params
    calm: int = 0


@dataclass(frozen=True)
class Info:
    """What the root knows of an iteration besides the parameters."""

    free_energy: float
    points_used: int
    unused: np.ndarray
    seconds: dict[str, float]


def train(problem: Problem, ranks: Ranks, at: Position, watch: Callable[[Position, Knobs, Info], bool]) -> Position:
    """Run EM to the end of the plan or until W has settled; ``watch``, called after every iteration, may end it too."""
    plan = problem.plan
    while not plan.ended(at.iteration, at.calm):
        knobs = ranks.from_root(partial(plan.at, at.iteration, at.params))
        params, info = iterate(problem, ranks, at.params, knobs)
        calm = ranks.of_root(at.calm + 1 if plan.little(at.iteration, at.params.W, params.W) else 0)
        at = Position(at.iteration + 1, params, calm)
        if watch(at, knobs, info):
            break
    return at


def iterate(problem: Problem, ranks: Ranks, params: Params, knobs: Knobs) -> tuple[Params, Info]:
    """One EM iteration: preselection and E-step, data classification, M-step, parameter noise."""
    model, scheme, team, N = problem.model, problem.scheme, problem.team, problem.shard.points
    blocks, cutting = list(problem.shard.blocks()), knobs.points < problem.shard.points
    clock, clocks = Clock("prepare"), [Clock("waiting") for _ in range(team.size)]

    ready = now = model.prepare(params, knobs)
    posteriors = Posteriors(len(problem.rows), problem.rows.nbytes, again=cutting or len(model.stages) > 1)

    def expect(block: slice, thread: int) -> tuple[np.ndarray, Posterior]:
        Y = pad_rows(problem.rows[block])
        kept = {name: values[block] for name, values in problem.kept.items()}
        posterior = posteriors.of(block, lambda: scheme.infer(model, ready, Y, knobs.temperature, clocks[thread], kept))
        clocks[thread]("waiting")
        return Y, posterior

    def collect(stage: str, now: Any, totals: list[ExactSum], block: slice, thread: int) -> None:
        Y, posterior = expect(block, thread)
        clocks[thread]("statistics")
        model.statistics(stage, now, Y, posterior, used[block], scheme.states, totals[thread])
        clocks[thread]("waiting")

    used = np.ones(len(problem.rows), bool)
    if cutting:
        clock("blocks")
        with ranks.together():
            team.share(blocks, expect)
            check_finite(posteriors.evidence, problem.shard, knobs)
        clock("cut")
        used = largest(ranks, posteriors.evidence, knobs.points)

    new, unused = params, np.zeros(model.H, bool)
    for stage in model.stages:
        totals = problem.sums(stage)
        for total in totals:
            total.reset(model.bounds(stage, new, problem.summary), N, problem.shard.block)
        clock("blocks")
        with ranks.together():
            team.share(blocks, partial(collect, stage, now, totals))
            check_finite(posteriors.evidence, problem.shard, knobs)
            for total in totals:
                total.check()
        clock("statistics")
        for total in totals[1:]:
            totals[0].merge(total)
        clock("communication")
        sums = totals[0].on_root(ranks)
        clock("mstep")
        with ranks.together():
            if ranks.is_root:
                new = model.maximise(stage, new, sums, knobs, scheme.gamma, problem.summary)
                if stage == model.stages[0]:
                    unused = model.usage(sums) <= UNUSED * N
                if stage == model.stages[-1]:
                    new = add_noise(model, new, knobs, problem.seed)
                if not all(np.isfinite(value).all() for value in vars(new).values()):
                    raise UserError(f"iteration {knobs.iteration}: expected finite parameters, found others; {FAR}")
        clock("communication")
        new = ranks.share(new)
        clock("prepare")
        if stage != model.stages[-1]:
            now = model.prepare(new, knobs)

    clock("communication")
    free_energy = exact_sum(ranks, posteriors.evidence, N) / N
    return new, Info(free_energy, min(N, max(0, knobs.points)), unused, phases(clock, clocks))


def phases(clock: Clock, clocks: list[Clock]) -> dict[str, float]:
    """Seconds of each phase: what the threads did with the blocks, as shares of the time that it took."""
    seconds, inside = dict.fromkeys(PHASES, 0.0), [c.stop() for c in clocks]
    seconds |= clock.stop()
    blocks = seconds.pop("blocks", 0.0)
    busy = {phase: sum(s.get(phase, 0.0) for s in inside) for phase in PHASES}
    for phase, spent in busy.items():
        seconds[phase] += blocks * spent / (sum(busy.values()) or 1.0)
    return seconds


def add_noise(model: Model, params: Params, knobs: Knobs, seed: int) -> Params:
    """Gaussian noise on the learned parameters that the schedules name, then back into what the model allows."""
    for name, std in knobs.noise.items():
        if std > 0 and name in model.options.learn:
            value = getattr(params, name)
            draw = stream(seed, f"noise.{name}", knobs.iteration).standard_normal(value.shape)
            params = model.constrain(replace(params, **{name: value + std * draw}))
    return params


def check_finite(evidence: np.ndarray, shard: Shard, knobs: Knobs) -> None:
    """An error that names the first point without evidence."""
    bad = np.flatnonzero(~np.isfinite(evidence))
    if len(bad):
        where = f"iteration {knobs.iteration}: point {shard.first + bad[0]}"
        raise UserError(f"{where}: expected finite evidence, found {evidence[bad[0]]}; {FAR}")
