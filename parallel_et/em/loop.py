"""The EM algorithm: expectation truncation (ET Alg. 1 and 2) on all ranks at once."""

from collections.abc import Iterator

from parallel_et.core.terms import Settings
from parallel_et.em.e_step import EStep
from parallel_et.em.holdout import held_out_evidence
from parallel_et.em.m_step import MStep
from parallel_et.em.problem import Problem
from parallel_et.em.restart_fields import restart_fields
from parallel_et.em.state import EMState, Info
from parallel_et.parallel.ranks import Ranks


def em(problem: Problem, ranks: Ranks, state: EMState) -> Iterator[tuple[EMState, Info]]:
    """Yield the state and the metadata of every iteration, until the schedule ends or training has converged."""
    schedule = problem.schedule
    while not schedule.finished(state):
        begin, restarted = restart_fields(problem, ranks, state, em_step)
        settings = ranks.from_root(lambda: schedule.settings(begin))  # noqa: B023  evaluated at once
        new, info = em_step(problem, ranks, begin, settings)
        evidence = held_out_evidence(problem, ranks, new)
        progress = ranks.of_root(schedule.progress(state, new.params, evidence))
        state = new._replace(progress=progress)
        if evidence is None and schedule.finished(state):
            evidence = held_out_evidence(problem, ranks, state, last=True)
        yield state, info._replace(restarted=restarted, holdout=problem.known(evidence))


def em_step(problem: Problem, ranks: Ranks, state: EMState, settings: Settings) -> tuple[EMState, Info]:
    """Return the state after one iteration: E-step, data classification, M-step, parameter noise (ET Alg. 1).

    All ranks call it together. It is a pure function of its arguments, but it consumes the state.
    """
    e_step = EStep(problem, ranks, state, settings)
    m_step = MStep(e_step)
    used = e_step.classify()
    for stages in problem.passes(settings):
        m_step.maximise(stages, e_step.statistics(stages, m_step.params, used))
    m_step.add_noise()
    new = state._replace(
        iteration=state.iteration + 1,
        params=m_step.params,
        point_states=e_step.new_point_states(),
        averages=m_step.new_averages(),
    )
    return new, Info(settings, e_step.free_energy(), e_step.points, m_step.unused, *e_step.timer.report())
