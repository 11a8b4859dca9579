"""The EM loop: expectation truncation (ET Alg. 1 and 2) on all ranks at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from parallel_et.models.base import UNUSED, Knobs, Model, Params, Summary
from parallel_et.parallel.cut import largest
from parallel_et.parallel.ranks import Ranks
from parallel_et.parallel.shard import Shard
from parallel_et.parallel.sums import ExactSum, exact_sum
from parallel_et.posterior.memory import Posteriors
from parallel_et.random import stream
from parallel_et.schedule import Plan


@dataclass(frozen=True)
class Problem:
    """What is to be learned: a model, by a scheme and a plan, from the rows (n, D) of this rank's shard."""

    model: Model
    scheme: Any
    plan: Plan
    shard: Shard
    rows: np.ndarray
    summary: Summary
    seed: int


@dataclass(frozen=True)
class Info:
    """What the root knows of an iteration besides the parameters."""

    free_energy: float
    points_used: int
    unused: np.ndarray
    change: float
    seconds: dict[str, float]


def train(problem: Problem, ranks: Ranks, params: Params, watch: Callable[[Params, Knobs, Info], Any]) -> Params:
    """Run EM to the end of the plan, or until W has settled; ``watch`` is called after every iteration."""
    plan, calm = problem.plan, 0
    for iteration in range(plan.iterations):
        knobs = ranks.from_root(partial(plan.at, iteration, params))
        params, info = iterate(problem, ranks, params, knobs)
        watch(params, knobs, info)
        if stop := plan.anneal.stop:
            calm = calm + 1 if plan.settled(iteration) and info.change < stop.change else 0
            if ranks.of_root(calm >= stop.iterations):
                break
    return params


def iterate(problem: Problem, ranks: Ranks, params: Params, knobs: Knobs) -> tuple[Params, Info]:
    """One EM iteration: preselection and E-step, data classification, M-step, parameter noise."""
    model, scheme, N = problem.model, problem.scheme, problem.shard.points
    blocks, begun = list(problem.shard.blocks()), perf_counter()

    ready = model.prepare(params, knobs)
    posteriors = Posteriors(
        lambda Y: scheme.infer(model, ready, Y, knobs.temperature),
        problem.rows,
        blocks,
        again=knobs.points < N or len(model.stages) > 1,
    )

    used = np.ones(len(problem.rows), bool)
    if knobs.points < N:
        used = largest(ranks, finite(posteriors.evidence(), problem.shard, knobs), knobs.points)
    cutting = perf_counter() - begun - posteriors.seconds

    new, maximising, unused = params, 0.0, np.zeros(model.H, bool)
    for stage in model.stages:
        now = ready if stage == model.stages[0] else model.prepare(new, knobs)
        total = ExactSum(model.statistics_like(stage), model.bounds(stage, new, problem.summary), N)
        for block in blocks:
            Y, posterior = posteriors.points(block), posteriors[block]
            total.add(model.statistics(stage, now, Y, posterior, used[block], scheme.states))
        sums, reduced = total.on_root(ranks), perf_counter()
        if ranks.is_root:
            new = model.maximise(stage, new, sums, knobs, scheme.gamma, problem.summary)
            if stage == model.stages[0]:
                unused = model.usage(sums) <= UNUSED * N
            if stage == model.stages[-1]:
                new = add_noise(model, new, knobs, problem.seed)
            if not all(np.isfinite(value).all() for value in vars(new).values()):
                raise ArithmeticError(f"iteration {knobs.iteration}: the M-step gave parameters that are not finite")
        new = ranks.share(new)
        maximising += perf_counter() - reduced

    free_energy = exact_sum(ranks, finite(posteriors.evidence(), problem.shard, knobs), N) / N
    change = float(np.linalg.norm(new.W - params.W) / (np.linalg.norm(params.W) or 1.0))
    spent = {"expectation": posteriors.seconds, "cut": cutting, "maximisation": maximising}
    spent["statistics"] = perf_counter() - begun - sum(spent.values())
    return new, Info(free_energy, min(N, max(0, knobs.points)), unused, change, spent)


def add_noise(model: Model, params: Params, knobs: Knobs, seed: int) -> Params:
    """Gaussian noise on the learned parameters that the schedules name, then back into what the model allows."""
    for name, std in knobs.noise.items():
        if std > 0 and name in model.options.learn:
            value = getattr(params, name)
            draw = stream(seed, f"noise.{name}", knobs.iteration).standard_normal(value.shape)
            params = model.constrain(replace(params, **{name: value + std * draw}))
    return params


def finite(evidence: np.ndarray, shard: Shard, knobs: Knobs) -> np.ndarray:
    """The evidence itself, or an error that names the first point without one."""
    bad = np.flatnonzero(~np.isfinite(evidence))
    if len(bad):
        row = shard.first + bad[0]
        raise ArithmeticError(f"iteration {knobs.iteration}: the evidence of point {row} is {evidence[bad[0]]}")
    return evidence
