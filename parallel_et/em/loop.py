"""The EM algorithm of expectation truncation (ET, Lücke and Eggert 2010, Alg. 1 and 2), on all ranks.

One iteration, for points y_n, parameters Theta and the inverse temperature beta = 1 / T:

* Preselection: the H' candidates of each point, for example the causes h with the largest p(s = {h}, y_n).
* E-step: q_n(s) = p(s, y_n)^beta / sum over K_n of p(s', y_n)^beta for the states s in a set K_n, and 0 for all others.
  F_n = log of the sum over K_n of p(s, y_n)^beta. The mean F_n is the free energy.
  The scheme et considers all states with at most gamma active causes, all of them candidates, and the empty state.
* Data classification: M is the set of the ``settings.points`` points with the largest F_n. The cut thus removes the
  points that K_n explains worst, mostly points with more active causes than the states in K_n.
* Statistics: sums over the points n in M and the states s in K_n of q_n(s) f(y_n, s), where the model declares f.
* M-step: the parameters that maximise the expected log joint over M, as functions of these sums. Priors correct pi for
  the cut. Then noise is added, and parameters are clipped to their limits.
"""

from collections.abc import Iterator

from parallel_et.core.types import Settings
from parallel_et.em.e_step import EStep
from parallel_et.em.holdout import held_out_evidence
from parallel_et.em.m_step import MStep
from parallel_et.em.problem import Problem
from parallel_et.em.restart_fields import restart_fields
from parallel_et.em.state import EMState, Info
from parallel_et.parallel.communicator import Ranks


def em(problem: Problem, ranks: Ranks, state: EMState) -> Iterator[tuple[EMState, Info]]:
    """Yield the state and the metadata of every iteration, until the schedule ends or training has converged.

    To keep a yielded state, copy it: the next iteration may overwrite its point states.
    """
    schedule = problem.schedule
    while not schedule.finished(state):
        start, restarted = restart_fields(problem, ranks, state, em_step)  # usually does nothing
        settings = ranks.from_root(lambda: schedule.settings(start))  # noqa: B023  evaluated at once
        new, info = em_step(problem, ranks, start, settings)
        evidence = held_out_evidence(problem, ranks, new)
        progress = ranks.broadcast_object(schedule.progress(state, new.params, evidence))
        state = new._replace(progress=progress)
        if evidence is None and schedule.finished(state):
            evidence = held_out_evidence(problem, ranks, state, last=True)
        yield state, info._replace(restarted=restarted, holdout=problem.nan_if_missing(evidence))


def em_step(problem: Problem, ranks: Ranks, state: EMState, settings: Settings) -> tuple[EMState, Info]:
    """Return the state and the metadata after one iteration. All ranks call it together.

    The result depends on the arguments alone. The call may overwrite the arrays of ``state.point_states``.
    """
    e_step = EStep(problem, ranks, state, settings)
    m_step = MStep(e_step)
    used = e_step.classify()  # the set M
    for stages in problem.passes(settings):  # one pass over all q_n; q_n depends on ``state.params`` in every pass
        m_step.maximise(stages, e_step.statistics(stages, m_step.params, used))
    m_step.add_noise()
    new = state._replace(
        iteration=state.iteration + 1,
        params=m_step.params,
        point_states=e_step.new_point_states(),
        averages=m_step.new_averages(),
    )
    return new, Info(settings, e_step.free_energy(), e_step.points, m_step.unused, *e_step.timer.report())
