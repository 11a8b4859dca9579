"""The evidence of points that are not learned from, while a run goes on."""

import numpy as np

from parallel_et.core.posterior import Posterior
from parallel_et.core.scheme import Context, Scheme, vacant_point_states
from parallel_et.core.types import Block
from parallel_et.em.e_step import NOT_FINITE, context_at_rest
from parallel_et.em.problem import Problem
from parallel_et.em.state import EMState
from parallel_et.errors import UserError
from parallel_et.kernels.rows import pad_rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import exact_sum


def held_out_evidence(problem: Problem, ranks: Ranks, state: EMState, last: bool = False) -> float | None:
    """Return the held-out evidence per point, at temperature 1; None if there is none to compute now. Collective.

    It is due after every ``problem.held.every`` iterations, and after the ``last`` one.
    """
    if problem.held is None or (state.iteration % problem.held.every and not last):
        return None
    shard, rows, _ = problem.held
    context, found = context_at_rest(problem.model, problem.scheme, state.params), np.zeros(len(shard))

    def work(part: slice, thread: int) -> None:
        block = Block(pad_rows(rows[part]), problem.model.D, shard.first + part.start)
        found[part] = posterior_of(context, problem.scheme, block).evidence

    with ranks.together():
        problem.team.share(shard.blocks(), work)
        if len(bad := np.flatnonzero(~np.isfinite(found))):
            place = f"held-out point {shard.first + bad[0]}"
            raise UserError(f"{place}: expected finite evidence, found {found[bad[0]]}; {NOT_FINITE}")
    return exact_sum(ranks, found, shard.points) / shard.points


def in_round(step: Context, number: int) -> Context:
    """The E-step with the random numbers of one of the rounds in which new points are looked at."""
    return step._replace(random=step.random._replace(iteration=number))


def posterior_of(step: Context, scheme: Scheme, block: Block) -> Posterior:
    """The posterior of points that a trained model is shown for the first time."""
    kept = vacant_point_states(scheme, len(block))
    for number in range(scheme.rounds):
        step = in_round(step, number)
        posterior, new = scheme.infer(step, block, kept)
        kept |= new
    return posterior
