"""The EM loop: expectation truncation (ET Alg. 1 and 2) on all ranks at once."""

from collections.abc import Callable
from functools import partial

import numpy as np

from parallel_et.core.clock import Clock, Dealing, phases
from parallel_et.core.contract import UNUSED, Knobs, Learner, Params, Totals
from parallel_et.core.expectation import FAR, Expectation
from parallel_et.core.holdout import last_look, look
from parallel_et.core.plan import Info, Position
from parallel_et.core.problem import Problem
from parallel_et.core.random import stream
from parallel_et.core.renewal import renew
from parallel_et.errors import UserError
from parallel_et.parallel.cut import largest
from parallel_et.parallel.deal import alone
from parallel_et.parallel.ranks import Ranks
from parallel_et.parallel.sums import exact_sum


def train(problem: Problem, ranks: Ranks, at: Position, watch: Callable[[Position, Knobs, Info], bool]) -> Position:
    """Run EM to the end of the plan, or until it has settled; ``watch``, called after every iteration, may end it."""
    plan = problem.plan
    while not plan.ended(at.iteration, at.calm):
        begin, fields = renew(problem, ranks, at, iterate)
        knobs = ranks.from_root(partial(plan.at, at.iteration, begin, at.cooled))
        params, info = iterate(problem, ranks, begin, knobs)
        held = look(problem, ranks, params, at.iteration)
        at = Position(at.iteration + 1, params, *ranks.of_root(plan.after(at, params, held)))
        known = last_look(problem, ranks, at, held)
        if watch(at, knobs, info._replace(renewed=fields, holdout=known)):
            break
    return at


def iterate(problem: Problem, ranks: Ranks, params: Params, knobs: Knobs) -> tuple[Params, Info]:
    """One EM iteration, of the next batch: preselection and E-step, data classification, M-step, parameter noise."""
    N, passes, clock = problem.plan.batches.size(knobs.iteration), list(problem.passes(knobs)), Clock("prepare")
    count, cutting = min(N, max(0, knobs.points)), knobs.points < N
    together = ranks.size > 1 and any(learner.dealt for learner in problem.learners.values())
    dealing = Dealing(ranks.node if together else alone, clock)
    shared = knobs._replace(deal=dealing, pairs=N * problem.scheme.pairs)
    again, alike = cutting or len(passes) > 1, problem.scheme.alike(problem.model)
    expectation = Expectation(problem, params, shared, again, alike)

    used = np.ones(len(expectation.evidence), bool)
    if cutting:
        clock("blocks")
        with ranks.together():
            expectation.visit()
        clock("cut")
        used = largest(ranks, expectation.evidence, knobs.points)

    new, ready, unused = params, expectation.prepared, np.zeros(0, bool)
    earlier: dict[Learner, Totals] = {}
    for number, stages in enumerate(passes):
        clock("prepare")
        if number > 0:
            ready = {learner: learner.prepare(new, shared) for learner, _ in stages}
        empty = [problem.sums(learner, stage, new, dealing) for learner, stage in stages]
        clock("blocks")
        with ranks.together():
            totals = expectation.collect(stages, empty, ready, used)
        for (learner, stage), total in zip(stages, totals, strict=True):
            clock("communication")
            everywhere = problem.dealt(learner)
            sums_of_all = total.in_room(dealing) if everywhere else total.on_root(ranks)
            found = {**sums_of_all, "points": np.array(float(count))}
            clock("mstep")
            with ranks.together():
                if ranks.is_root or everywhere:
                    sums = problem.average(learner, stage, found, knobs)
                    if number == 0 and learner is problem.model:
                        unused = problem.model.usage(sums) <= UNUSED * problem.shard.points
                    if sums["points"]:
                        by = shared if everywhere else knobs
                        new = problem.maximise(learner, stage, new, sums, by, params, earlier.get(learner))
                    new = add_noise(problem, new, knobs) if (learner, stage) == passes[-1][-1] else new
                    earlier[learner] = sums
            clock("communication")
            new = ranks.agree(new) if everywhere else ranks.share(new)

    problem.carry(params, new)
    expectation.keep()
    free_energy = exact_sum(ranks, expectation.evidence, N) / N
    return new, Info(free_energy, count, unused, phases(clock, expectation.clocks), dealing.done)


def add_noise(problem: Problem, params: Params, knobs: Knobs) -> Params:
    """Gaussian noise on the learned parameters that the schedules name, then back into what the model allows."""
    noisy = dict(params)
    for name, std in knobs.noise.items():
        if std > 0 and name in problem.model.options.learn:
            draw = stream(problem.seed, f"noise.{name}", knobs.iteration).standard_normal(params[name].shape)
            noisy[name] = params[name] + std * draw
    inside = problem.model.constrain(noisy)
    if not all(np.isfinite(value).all() for value in inside.values()):
        raise UserError(f"iteration {knobs.iteration}: expected finite parameters, found others; {FAR}")
    return inside
