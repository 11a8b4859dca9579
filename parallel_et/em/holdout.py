"""The evidence of held-out points during training, and posteriors of new points."""

import numpy as np

from parallel_et.core.posterior import Posterior
from parallel_et.core.scheme import Context, Scheme, initial_point_states_of
from parallel_et.core.types import Block
from parallel_et.em.e_step import NOT_FINITE, inference_context
from parallel_et.em.problem import Problem
from parallel_et.em.state import EMState
from parallel_et.errors import UserError
from parallel_et.kernels.rows import pad_rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import exact_sum


def held_out_evidence(problem: Problem, ranks: Ranks, state: EMState, last: bool = False) -> float | None:
    """Return the held-out evidence per point, at temperature 1; None if it is not due. Collective.

    The evidence is due after every ``problem.holdout.every`` iterations, and after the ``last`` iteration.
    """
    if problem.holdout is None or (state.iteration % problem.holdout.every and not last):
        return None
    shard, rows, _ = problem.holdout
    context = inference_context(problem.model, problem.scheme, state.params)
    evidence = np.zeros(len(shard))

    def work(part: slice, thread: int) -> None:
        block = Block(pad_rows(rows[part]), problem.model.D, shard.first + part.start)
        evidence[part] = posterior_of(context, problem.scheme, block).evidence

    with ranks.synchronise_errors():
        problem.team.map_blocks(shard.blocks(), work)
        if len(bad := np.flatnonzero(~np.isfinite(evidence))):
            place = f"held-out point {shard.first + bad[0]}"
            raise UserError(f"{place}: expected finite evidence, found {evidence[bad[0]]}; {NOT_FINITE}")
    return exact_sum(ranks, evidence, shard.points) / shard.points


def with_round(context: Context, number: int) -> Context:
    """Return the context with the random numbers of one round of the search for states of new points."""
    return context._replace(random=context.random._replace(iteration=number))


def posterior_of(context: Context, scheme: Scheme, block: Block) -> Posterior:
    """Return the posterior of new points, after all rounds of the search for their states."""
    point_states = initial_point_states_of(scheme, len(block))
    for number in range(scheme.rounds):
        posterior, new = scheme.infer(with_round(context, number), block, point_states)
        point_states |= new
    return posterior
