"""The evidence of points that are not learned from, while a run goes on."""

import numpy as np

from parallel_et.core.contract import Block, EStep, Params, Scheme
from parallel_et.core.expectation import FAR, at_rest
from parallel_et.core.plan import Position
from parallel_et.core.posterior import Posterior
from parallel_et.core.problem import Problem
from parallel_et.errors import UserError
from parallel_et.kernels.rows import pad_rows
from parallel_et.parallel.ranks import Ranks
from parallel_et.parallel.sums import exact_sum


def look(problem: Problem, ranks: Ranks, params: Params, iteration: int) -> float | None:
    """The held-out evidence a point with the parameters after an iteration, if it is time to look; collective."""
    if problem.held is None or (iteration + 1) % problem.held.every:
        return None
    return evidence(problem, ranks, params)


def last_look(problem: Problem, ranks: Ranks, at: Position, held: float | None) -> float | None:
    """What is known of held-out points after an iteration: what was seen, NaN, or None if there are none; collective.

    After the last one it is always known.
    """
    if problem.held is None or held is not None:
        return held
    return evidence(problem, ranks, at.params) if problem.plan.ended(at.iteration, at.calm) else np.nan


def evidence(problem: Problem, ranks: Ranks, params: Params) -> float:
    """Mean evidence of the points that are held out, at temperature 1, on every rank; all ranks call this together."""
    assert problem.held is not None
    shard, rows, _ = problem.held
    step, found = at_rest(problem.model, problem.scheme, params), np.zeros(len(shard))

    def work(part: slice, thread: int) -> None:
        block = Block(pad_rows(rows[part]), problem.model.D, shard.first + part.start)
        found[part] = posterior_of(step, problem.scheme, block).evidence

    with ranks.together():
        problem.team.share(shard.blocks(), work)
        if len(bad := np.flatnonzero(~np.isfinite(found))):
            place = f"held-out point {shard.first + bad[0]}"
            raise UserError(f"{place}: expected finite evidence, found {found[bad[0]]}; {FAR}")
    return exact_sum(ranks, found, shard.points) / shard.points


def in_round(step: EStep, number: int) -> EStep:
    """The E-step with the random numbers of one of the rounds in which new points are looked at."""
    return step._replace(random=step.random._replace(iteration=number))


def posterior_of(step: EStep, scheme: Scheme, block: Block) -> Posterior:
    """The posterior of points that a trained model is shown for the first time."""
    kept = scheme.vacant(len(block))
    for number in range(scheme.rounds):
        step = in_round(step, number)
        posterior, new = scheme.infer(step, block, kept)
        kept |= new
    return posterior
