"""Fields that stand for no cause of their own, begun anew along what all leave unexplained, where that is better."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from parallel_et.core.contract import Block, Knobs, Params
from parallel_et.core.expectation import Expectation
from parallel_et.core.plan import Position
from parallel_et.core.posterior import Posterior
from parallel_et.core.problem import Problem
from parallel_et.core.random import stream
from parallel_et.core.skewed import SKEWED, White, climbed, fields_of, unit, white_of
from parallel_et.parallel.ranks import Ranks
from parallel_et.parallel.sums import exact_sum

ROOM = 1 << 22
"""Numbers that are looked at of the points, whole blocks of these from all parts of the data."""
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


class Left(NamedTuple):
    """Of some points: these (n, D), what is left of them (n, D), and the probability of each atom (n, atoms)."""

    points: np.ndarray
    rest: np.ndarray
    active: np.ndarray


def renew(problem: Problem, ranks: Ranks, at: Position, iterate: Callable[..., Any]) -> tuple[Params, int | None]:
    """The parameters to go on with, and how many fields began anew; None if the plan never has any. All ranks call it.

    An attempt takes the fields that are missed least, begins them anew along directions in which what is left
    unexplained is skewed, as it is where a cause is missing, and runs some iterations. If the free energy is then
    higher than without, the run goes on from there; if not, all is as before. It depends on where a run stands alone,
    so a run that is resumed repeats it.
    """
    if (number := problem.plan.attempt(at.iteration)) is None:
        return at.params, 0 if problem.plan.anneal.renew else None
    plan = problem.plan
    now = ranks.from_root(lambda: plan.at(at.iteration, at.params, at.cooled))
    left, before = unexplained(problem, ranks, at.params, now)

    def begun(root: Ranks) -> tuple[Params, int]:
        found = missing(problem, at.params, left, stream(problem.seed, "renew", at.iteration), root)
        return with_new(problem, at, number, left, *found)

    params, count = ranks.on_root_alone(begun)
    if count == 0:
        return at.params, 0
    trial = replace(problem, kept={name: values.copy() for name, values in problem.kept.items()})
    for step in range(STEPS):
        knobs = ranks.from_root(partial(knobs_of, trial, at, step, params))
        params, info = iterate(trial, ranks, params, knobs)
    if not ranks.of_root(info.free_energy - before) > GAIN:
        return at.params, 0
    for name, values in trial.kept.items():
        problem.kept[name][:] = values
    return params, count


def unexplained(problem: Problem, ranks: Ranks, params: Params, knobs: Knobs) -> tuple[Left, float]:
    """What the model leaves of some points, on the root, and the free energy of all; all ranks call this together."""
    model, shard, N = problem.model, problem.shard, problem.shard.points
    wide = 2 * model.D + model.latents.atoms
    stride = -(-N * wide // max(ROOM, shard.block * wide))  # of blocks
    blocks = range(0, -(-N // shard.block), stride)
    found = np.zeros((sum(min(shard.block, N - b * shard.block) for b in blocks), wide))
    expectation = Expectation(problem, params, knobs, again=True)

    def look(part: slice, block: Block, posterior: Posterior) -> None:
        number, beyond = divmod(block.first // shard.block, stride)
        if beyond == 0:
            rest = block.Y - model.reconstruct(expectation.ready, params, posterior)
            place = slice(number * shard.block, number * shard.block + len(block))
            found[place] = np.hstack([block.Y, rest, posterior.active(model.latents.atoms)])

    with ranks.together():
        expectation.visit(look)
    ranks.sum_on_root(found.view(np.int64))  # each has one owner, the others add nothing
    free_energy = exact_sum(ranks, expectation.evidence, N) / N
    return Left(*np.split(found, [model.D, 2 * model.D], 1)), free_energy


def missing(
    problem: Problem, params: Params, left: Left, rng: np.random.Generator, root: Ranks
) -> tuple[np.ndarray, np.ndarray | None]:
    """Fields (D, m) along which what is left is skewed, those of most skewness first; none if there is none.

    A model may know better, and then also what each gains (m,).
    """
    directions, skewness, white = skewed_directions(left.rest, rng, root)
    fields, _ = fields_of(directions, skewness, white, one_active=False)
    along = (left.rest - white.mean) @ white.to @ directions.T
    fields = problem.model.from_directions(fields, left.points, along)
    return problem.model.beside(params, fields, left.points, left.rest)


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
    problem: Problem, at: Position, number: int, left: Left, fields: np.ndarray, gains: np.ndarray | None = None
) -> tuple[Params, int]:
    """The parameters with some of the new fields (D, m) in place of those that are missed least, and how many.

    Without any new ones all stays. In every second attempt values are released instead, if the model holds some. Where
    it is known what fields gain (m,), as many are taken as gain more than is lost by them, and one in any case.
    """
    few = problem.model.H // SHARE >> number // PATIENCE
    if fields.shape[1] == 0:
        return at.params, 0
    if number % 2:
        released = problem.model.released(at.params["W"], left.points, left.active)
        if changed := int((released != at.params["W"]).any(0).sum()):
            return problem.model.constrain({**at.params, "W": released}), changed
    lost = -np.log(np.maximum(1 - left.active, SURE)).sum(0)  # of the free energy, by the absence of each atom
    lost = np.bincount(problem.model.latents.owners, lost, problem.model.H)
    least = np.argsort(lost, kind="stable")
    if few > 1 or (gains is not None and number % 4 == 0):
        count = min(max(few, 1), fields.shape[1])
        if gains is not None:
            count = max(1, int((gains[:count] > lost[least[:count]]).sum()))
        old, new = least[:count], np.arange(count)
    else:
        rng = stream(problem.seed, "renewed", at.iteration)
        old, new = (
            some[[int(rng.random() ** 2 * min(CHOICE, len(some)))]] for some in (least, np.arange(fields.shape[1]))
        )
    W = at.params["W"].copy()
    W[:, old] = fields[:, new]
    return problem.model.constrain({**at.params, "W": W}), len(old)


def knobs_of(problem: Problem, at: Position, step: int, params: Params) -> Knobs:
    """What an iteration of an attempt uses: the schedules as they are before it, so that free energies compare."""
    knobs = problem.plan.at(at.iteration, params, at.cooled)
    soft = {name: knob.rule(WARM) for name, knob in problem.model.knobs.items()}
    own = soft if step < SOFT else knobs.model
    return knobs._replace(iteration=at.iteration + step, model=own, held=step < HELD)
