"""Restart unused fields along directions of skewed residuals, and keep them if the free energy rises enough."""

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
from parallel_et.em.third_moments import MIN_SKEWNESS, Whitening, fields_along, find_directions, unit_rows, whitening_of
from parallel_et.parallel.communicator import Ranks

MAX_RESIDUAL_VALUES = 1 << 22
"""Largest number of values in the table of residuals. Its points are whole blocks from all parts of the data."""
STEPS = 10
"""EM iterations of an attempt."""
SOFT_STEPS = 6
"""First iterations of an attempt, in which the model's own schedules follow ``SOFT_TEMPERATURE``."""
FROZEN_STEPS = 2
"""First iterations of an attempt, in which the fields are frozen."""
SOFT_TEMPERATURE = 4 / 3
"""Temperature at which causes share dimensions, so that values can move from field to field."""
MIN_GAIN = 0.02
"""Smallest rise of the free energy per point of a successful attempt."""
FIRST_DIVISOR = 8
"""Divisor of H for the number of restarted fields in the first attempts."""
ATTEMPTS_PER_COUNT = 2
"""Number of attempts after which the number of restarted fields is halved."""
DIRECTIONS = 16
"""Number of dimensions with the largest variance in which skewed directions are searched."""
STARTS = 128
"""Number of points from which a search for directions starts."""
SINGLE_CHOICES = 6
"""Number of least-used fields, and of most skewed directions, for single-field attempts, which draw one of each."""
MIN_INACTIVE_PROBABILITY = 1e-12
"""Lower limit of 1 - p(s_h = 1 | y_n) in the logarithm."""


class Residuals(NamedTuple):
    """A sample of points (n, D), their residuals (n, D), and the probability of each atom (n, atoms)."""

    points: np.ndarray
    residuals: np.ndarray
    active: np.ndarray


Step = Callable[[Problem, Ranks, EMState, Settings], tuple[EMState, Info]]
"""One EM iteration."""


def restart_fields(problem: Problem, ranks: Ranks, state: EMState, em_step: Step) -> tuple[EMState, int | None]:
    """Return the state to continue with, and the number of restarted fields; None if the schedule has no restarts.

    Residuals are skewed along the field of a cause that the model lacks. An attempt restarts the least used fields
    along such directions and runs some iterations. If the free energy is then higher than before, EM continues from the
    result, else from the old state. The outcome depends on the state alone, so a resumed run repeats it. Collective.
    """
    schedule = problem.schedule
    if (number := schedule.restart(state.iteration)) is None:
        return state, 0 if schedule.anneal.renew else None
    residuals, before = residuals_of(problem, ranks, state, ranks.from_root(lambda: schedule.settings(state)))

    def propose(root: Ranks) -> tuple[Params, int]:
        rng = stream(problem.seed, "renew", state.iteration)
        fields, gains = propose_fields(problem, state.params, residuals, rng, root)
        return replace_fields(problem, state, number, residuals, fields, gains)

    params, count = ranks.run_on_root(propose)
    if count == 0:
        return state, 0
    trial = state.copy()._replace(params=params)
    for step in range(STEPS):
        settings = ranks.from_root(lambda: trial_settings(problem, state, step, trial.params))  # noqa: B023
        trial, info = em_step(problem, ranks, trial, settings)
    if not ranks.broadcast_object(info.free_energy - before) > MIN_GAIN:
        return state, 0
    return state._replace(params=trial.params, point_states=trial.point_states), count


def residuals_of(problem: Problem, ranks: Ranks, state: EMState, settings: Settings) -> tuple[Residuals, float]:
    """Return the residuals of a sample of points, on the root, and the free energy of all points. Collective."""
    model, shard, N = problem.model, problem.shard, problem.shard.points
    width = 2 * model.D + model.latents.atoms
    stride = -(-N * width // max(MAX_RESIDUAL_VALUES, shard.block * width))  # of blocks
    blocks = range(0, -(-N // shard.block), stride)
    table = np.zeros((sum(min(shard.block, N - b * shard.block) for b in blocks), width))
    e_step = EStep(problem, ranks, state, settings, read_only=True)

    def collect(rows_slice: slice, thread: int, block: Block, posterior: Posterior) -> None:
        number, offset = divmod(block.first // shard.block, stride)
        if offset == 0:
            residuals = block.Y - e_step.evaluator.observe(block).reconstruct(posterior)
            place = slice(number * shard.block, number * shard.block + len(block))
            table[place] = np.hstack([block.Y, residuals, posterior.active(model.latents.atoms)])

    with ranks.synchronise_errors():
        e_step.visit(collect)
    ranks.sum_on_root(table.view(np.int64))  # each row has one owner, and all other ranks add zeros
    return Residuals(*np.split(table, [model.D, 2 * model.D], 1)), e_step.free_energy()


def propose_fields(
    problem: Problem, params: Params, sample: Residuals, rng: np.random.Generator, root: Ranks
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return fields (D, m) along skewed directions of the residuals, and their gains of free energy (m,) or None.

    Fields of larger skewness come first. A ``Restartable`` model improves the fields and computes their gains.
    """
    directions, skewness, whitening = skewed_directions(sample.residuals, rng, root)
    fields, _ = fields_along(directions, skewness, whitening, one_active=False)
    along = (sample.residuals - whitening.mean) @ whitening.forward @ directions.T
    model = problem.model
    fields = fields_from_directions(model, fields, sample.points, along)
    if isinstance(model, Restartable):
        return model.propose_fields(params, fields, sample.points, sample.residuals)
    return fields, None


def skewed_directions(
    residuals: np.ndarray, rng: np.random.Generator, root: Ranks
) -> tuple[np.ndarray, np.ndarray, Whitening]:
    """Return directions (m, k) along which residuals (n, D) are more skewed than noise, most skewed first.

    Their skewness (m,) and the whitening are returned too.
    """
    mean = residuals.mean(0)
    whitening = whitening_of(mean, (residuals - mean).T @ (residuals - mean) / len(residuals), DIRECTIONS)
    Z = (residuals - mean) @ whitening.forward
    n, k = Z.shape

    def moments(u: np.ndarray) -> np.ndarray:
        return ((Z @ u.T) ** 2).T @ Z / n

    if k == 0:
        return np.empty((0, 0)), np.empty(0), whitening
    start = unit_rows(Z[rng.choice(n, min(n, STARTS), replace=False)])
    found = find_directions(start, np.empty((0, k)), np.empty(0), moments, root)
    skewness = (found * moments(found)).sum(1)
    some = np.argsort(-skewness, kind="stable")
    some = some[skewness[some] > skewness_of_noise(n)]
    return found[some], skewness[some], whitening


def skewness_of_noise(points: int) -> float:
    """Return an upper limit of the skewness of noise: n normal points in k dimensions reach about 1.7 sqrt(6 k / n)."""
    return max(MIN_SKEWNESS, 2 * np.sqrt(6 * DIRECTIONS / points))


def replace_fields(
    problem: Problem,
    state: EMState,
    number: int,
    sample: Residuals,
    fields: np.ndarray,
    gains: np.ndarray | None = None,
) -> tuple[Params, int]:
    """Return the parameters with some of the fields (D, m) in place of the least used fields, and their number.

    If gains of free energy (m,) are known, the fields are used that gain more than the old fields lose, at least one.
    Every second attempt instead releases blocked values of the fields, if the model supports it.
    """
    count = problem.model.H // FIRST_DIVISOR >> number // ATTEMPTS_PER_COUNT
    if fields.shape[1] == 0:
        return state.params, 0
    if number % 2 and isinstance(problem.model, Restartable):
        released = problem.model.release_fields(state.params["W"], sample.points, sample.active)
        if changed := int((released != state.params["W"]).any(0).sum()):
            return problem.model.constrain({**state.params, "W": released}), changed
    losses = -np.log(np.maximum(1 - sample.active, MIN_INACTIVE_PROBABILITY)).sum(0)  # of F without each atom
    losses = np.bincount(problem.model.latents.owners, losses, problem.model.H)
    least_used = np.argsort(losses, kind="stable")
    if count > 1 or (gains is not None and number % 4 == 0):
        count = min(max(count, 1), fields.shape[1])
        if gains is not None:
            count = max(1, int((gains[:count] > losses[least_used[:count]]).sum()))
        old, new = least_used[:count], np.arange(count)
    else:
        rng = stream(problem.seed, "renewed", state.iteration)
        old, new = (
            choices[[int(rng.random() ** 2 * min(SINGLE_CHOICES, len(choices)))]]
            for choices in (least_used, np.arange(fields.shape[1]))
        )
    W = state.params["W"].copy()
    W[:, old] = fields[:, new]
    return problem.model.constrain({**state.params, "W": W}), len(old)


def trial_settings(problem: Problem, state: EMState, step: int, params: Params) -> Settings:
    """Return the settings of a step of an attempt. The schedules stand still, so that free energies can be compared."""
    settings = problem.schedule.settings(state._replace(params=params))
    soft = {name: schedule.rule(SOFT_TEMPERATURE) for name, schedule in problem.model.schedules.items()}
    own = soft if step < SOFT_STEPS else settings.model
    return settings._replace(iteration=state.iteration + step, model=own, fields_frozen=step < FROZEN_STEPS)
