"""Restart fields that represent no cause of their own along directions of the residual, if that raises F."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parallel_et.core.capabilities import Restartable, fields_from_directions
from parallel_et.core.posterior import Posterior
from parallel_et.core.random import stream
from parallel_et.core.types import Block, Params, Settings
from parallel_et.em.e_step import EStep
from parallel_et.em.problem import Problem
from parallel_et.em.state import EMState, Info
from parallel_et.em.third_moments import SKEWED, White, climbed, fields_of, unit, white_of
from parallel_et.parallel.communicator import Ranks

RESIDUALS = 1 << 22
"""Largest size of the table of residuals; its points are whole blocks from all parts of the data."""
STEPS, SOFT, HELD = 10, 6, 2
"""Iterations of an attempt, of which the first are soft, and the very first leave the fields as they are."""
WARM = 4 / 3
"""Temperature that the model's own schedules follow in the soft ones, by which values pass from field to field."""
GAIN = 0.02
"""Rise of the free energy a point from which on an attempt has been worth it."""
SHARE, PATIENCE = 8, 2
"""The first attempts are with an eighth of the fields, and after every two of them it is half as many."""
DIRECTIONS, STARTS = 16, 128
"""In how many dimensions, those of most variance, directions are searched for, and from how many points on."""
CHOICE = 6
"""Of how many fields, the ones that are missed least, and of how many directions one is drawn in attempts with one."""
SURE = 1e-12


class Residuals(NamedTuple):
    """Some points (n, D), their residuals (n, D), and the probability of each atom (n, atoms)."""

    points: np.ndarray
    rest: np.ndarray
    active: np.ndarray


Step = Callable[[Problem, Ranks, EMState, Settings], tuple[EMState, Info]]
"""One EM iteration."""


def restart_fields(problem: Problem, ranks: Ranks, state: EMState, em_step: Step) -> tuple[EMState, int | None]:
    """Return the state to go on with, and the number of restarted fields; None if the schedule has no restarts.

    An attempt takes the least used fields, restarts them along directions in which the residuals are skewed, as they
    are where a cause is missing, and runs some iterations. If the free energy is then higher than before, EM goes on
    from there. Otherwise the state is unchanged. The outcome depends on the state alone, so a resumed run repeats it.
    All ranks call it together.
    """
    schedule = problem.schedule
    if (number := schedule.restart(state.iteration)) is None:
        return state, 0 if schedule.anneal.renew else None
    residuals, before = residuals_of(problem, ranks, state, ranks.from_root(lambda: schedule.settings(state)))

    def begin(root: Ranks) -> tuple[Params, int]:
        rng = stream(problem.seed, "renew", state.iteration)
        return with_new(problem, state, number, residuals, *missing(problem, state.params, residuals, rng, root))

    params, count = ranks.on_root_alone(begin)
    if count == 0:
        return state, 0
    trial = state.copy()._replace(params=params)
    for step in range(STEPS):
        settings = ranks.from_root(lambda: trial_settings(problem, state, step, trial.params))  # noqa: B023
        trial, info = em_step(problem, ranks, trial, settings)
    if not ranks.of_root(info.free_energy - before) > GAIN:
        return state, 0
    return state._replace(params=trial.params, point_states=trial.point_states), count


def residuals_of(problem: Problem, ranks: Ranks, state: EMState, settings: Settings) -> tuple[Residuals, float]:
    """Return residuals of some points, on the root, and the free energy of all points; collective."""
    model, shard, N = problem.model, problem.shard, problem.shard.points
    wide = 2 * model.D + model.latents.atoms
    stride = -(-N * wide // max(RESIDUALS, shard.block * wide))  # of blocks
    blocks = range(0, -(-N // shard.block), stride)
    found = np.zeros((sum(min(shard.block, N - b * shard.block) for b in blocks), wide))
    e_step = EStep(problem, ranks, state, settings, read_only=True)

    def look(part: slice, thread: int, block: Block, posterior: Posterior) -> None:
        number, beyond = divmod(block.first // shard.block, stride)
        if beyond == 0:
            rest = block.Y - e_step.evaluator.observe(block).reconstruct(posterior)
            place = slice(number * shard.block, number * shard.block + len(block))
            found[place] = np.hstack([block.Y, rest, posterior.active(model.latents.atoms)])

    with ranks.together():
        e_step.visit(look)
    ranks.sum_on_root(found.view(np.int64))  # each has one owner, the others add nothing
    return Residuals(*np.split(found, [model.D, 2 * model.D], 1)), e_step.free_energy()


def missing(
    problem: Problem, params: Params, left: Residuals, rng: np.random.Generator, root: Ranks
) -> tuple[np.ndarray, np.ndarray | None]:
    """Fields (D, m) along which what is left is skewed, those of most skewness first; none if there is none.

    A model may know better, and then also what each gains (m,).
    """
    directions, skewness, white = skewed_directions(left.rest, rng, root)
    fields, _ = fields_of(directions, skewness, white, one_active=False)
    along = (left.rest - white.mean) @ white.to @ directions.T
    model = problem.model
    fields = fields_from_directions(model, fields, left.points, along)
    if isinstance(model, Restartable):
        return model.propose_fields(params, fields, left.points, left.rest)
    return fields, None


def skewed_directions(rest: np.ndarray, rng: np.random.Generator, root: Ranks) -> tuple[np.ndarray, np.ndarray, White]:
    """Directions (m, k) in which points (n, D) are more skewed than noise, their skewness, and the whitening."""
    mean = rest.mean(0)
    white = white_of(mean, (rest - mean).T @ (rest - mean) / len(rest), DIRECTIONS)
    Z = (rest - mean) @ white.to
    n, k = Z.shape

    def moments(u: np.ndarray) -> np.ndarray:
        return ((Z @ u.T) ** 2).T @ Z / n

    if k == 0:
        return np.empty((0, 0)), np.empty(0), white
    begin = unit(Z[rng.choice(n, min(n, STARTS), replace=False)])
    found = climbed(begin, np.empty((0, k)), np.empty(0), moments, root)
    skewness = (found * moments(found)).sum(1)
    some = np.argsort(-skewness, kind="stable")
    some = some[skewness[some] > by_chance(n)]
    return found[some], skewness[some], white


def by_chance(points: int) -> float:
    """Skewness that noise may have: that of n normal points in k dimensions is about 1.7 sqrt(6 k / n) at most."""
    return max(SKEWED, 2 * np.sqrt(6 * DIRECTIONS / points))


def with_new(
    problem: Problem, state: EMState, number: int, left: Residuals, fields: np.ndarray, gains: np.ndarray | None = None
) -> tuple[Params, int]:
    """The parameters with some of the new fields (D, m) in place of those that are missed least, and how many.

    Without any new ones all stays. In every second attempt values are released instead, if the model holds some. Where
    it is known what fields gain (m,), as many are taken as gain more than is lost by them, and one in any case.
    """
    few = problem.model.H // SHARE >> number // PATIENCE
    if fields.shape[1] == 0:
        return state.params, 0
    if number % 2 and isinstance(problem.model, Restartable):
        released = problem.model.release_fields(state.params["W"], left.points, left.active)
        if changed := int((released != state.params["W"]).any(0).sum()):
            return problem.model.constrain({**state.params, "W": released}), changed
    lost = -np.log(np.maximum(1 - left.active, SURE)).sum(0)  # of the free energy, by the absence of each atom
    lost = np.bincount(problem.model.latents.owners, lost, problem.model.H)
    least = np.argsort(lost, kind="stable")
    if few > 1 or (gains is not None and number % 4 == 0):
        count = min(max(few, 1), fields.shape[1])
        if gains is not None:
            count = max(1, int((gains[:count] > lost[least[:count]]).sum()))
        old, new = least[:count], np.arange(count)
    else:
        rng = stream(problem.seed, "renewed", state.iteration)
        old, new = (
            some[[int(rng.random() ** 2 * min(CHOICE, len(some)))]] for some in (least, np.arange(fields.shape[1]))
        )
    W = state.params["W"].copy()
    W[:, old] = fields[:, new]
    return problem.model.constrain({**state.params, "W": W}), len(old)


def trial_settings(problem: Problem, state: EMState, step: int, params: Params) -> Settings:
    """Return the settings of a step of an attempt: the schedules stand still, so that free energies compare."""
    settings = problem.schedule.settings(state._replace(params=params))
    soft = {name: schedule.rule(WARM) for name, schedule in problem.model.schedules.items()}
    own = soft if step < SOFT else settings.model
    return settings._replace(iteration=state.iteration + step, model=own, held=step < HELD)
