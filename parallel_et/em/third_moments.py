"""Fields to begin with, along which the data are skewed: found by third moments, the same on any number of ranks."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parallel_et.core.capabilities import fields_from_directions
from parallel_et.core.random import stream
from parallel_et.em.kmeans_plus_plus import fetch
from parallel_et.em.problem import Problem
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import ExactSum

ROUNDS, STARTS = 8, 4
"""Searches for directions that are not found yet, and from how many points each of them begins, for each cause."""
STEPS, REFINED = 30, 15
"""Steps of a search, and of the refinement of all directions after it."""
CALM = 1e-7
"""Largest change of a direction in a step that ends them early."""
ALIKE = 0.9
"""Cosine from which on two directions are one."""
SKEWED = 0.3
"""Least skewness of a direction that is found."""
FLAT = 1e-3
"""Variance of a direction, beside that of the widest, below which the data have none there."""
ROOM = 1 << 22
"""Numbers that points have at most, some of all, of which the fields of directions are made."""
RARE, EVEN = 0.05, 0.45
"""Limits of the probability of a cause, as its skewness tells it."""


class White(NamedTuple):
    """The data at variance 1 in all directions: z = (y - mean) ``to``, y = mean + ``back`` z; (D,) and (D, k) each."""

    mean: np.ndarray
    to: np.ndarray
    back: np.ndarray


def skewed_fields(problem: Problem, ranks: Ranks, name: str, rest: np.ndarray) -> tuple[np.ndarray, float | None]:
    """The fields of independent causes that add up, (D, H), and the probability of one, if any is found.

    All ranks call this together.
    The third cumulant of y = W s + noise is sum_h c_h W_h x W_h x W_h, with c_h > 0 for causes that are rarely active,
    whatever the noise, if that is symmetric. Its terms are found by power iteration u <- <(u z)^2 z> on the whitened
    data z, from points of these on (Anandkumar et al. 2014); what is found is subtracted, and all are refined together.
    Each step is a pass over all points. Where fewer are found than there are causes, the ``rest`` (D, H) stands for
    the others. For models with one active cause the fields are the means of the points with that cause.
    """
    white = whitened(problem, ranks)
    moments = third_moments(problem, ranks, white)
    rng, count = stream(problem.seed, f"skewed.{name}"), rest.shape[1]
    directions, weights = np.empty((0, white.to.shape[1])), np.empty(0)
    for _ in range(ROUNDS if white.to.shape[1] else 0):
        numbers = rng.choice(problem.shard.points, min(problem.shard.points, STARTS * count), replace=False)
        begin = unit((fetch(problem, ranks, numbers) - white.mean) @ white.to)
        found = climbed(begin, directions, weights, moments, ranks)
        directions = refined(np.concatenate([directions, found]), moments, ranks)
        directions, weights = strongest(directions, count, moments, ranks)
        if len(directions) == count:
            break
    fields, p = fields_of(directions, weights, white, problem.model.latents.most == 1)
    some = np.linspace(0, problem.shard.points - 1, min(problem.shard.points, ROOM // problem.model.D + 1)).astype(int)
    points = fetch(problem, ranks, some) if len(directions) else rest.T[:0]

    def begin_with() -> tuple[np.ndarray, float | None]:
        along = (points - white.mean) @ white.to @ directions.T
        first = fields_from_directions(problem.model, fields, points, along)
        return np.concatenate([first, rest[:, len(p) :]], 1), float(np.median(p)) if len(p) else None

    return ranks.from_root(begin_with)


def whitened(problem: Problem, ranks: Ranks) -> White:
    """The way to whitened data and back, of as many directions as there are causes, those of most variance."""
    N, D, H, largest = problem.shard.points, problem.model.D, problem.model.H, problem.summary.largest
    mean = summed(problem, ranks, (D,), largest, lambda Y: Y.sum(0)) / N

    def products(Y: np.ndarray) -> np.ndarray:
        return (Y - mean).T @ (Y - mean)

    covariance = summed(problem, ranks, (D, D), 4 * largest**2, products) / N
    return ranks.from_root(lambda: white_of(mean, covariance, H))


def white_of(mean: np.ndarray, covariance: np.ndarray, count: int) -> White:
    """The same of what has this mean (D,) and covariance (D, D), of at most ``count`` directions."""
    variance, vectors = np.linalg.eigh(covariance)
    some = np.argsort(-variance, kind="stable")[:count]
    some = some[variance[some] > FLAT * variance.max()]
    return White(mean, vectors[:, some] / np.sqrt(variance[some]), vectors[:, some] * np.sqrt(variance[some]))


def third_moments(problem: Problem, ranks: Ranks, white: White) -> Callable[[np.ndarray], np.ndarray]:
    """The function that computes <(u z)^2 z> for directions u (m, k) of length 1, (m, k), in a pass."""
    farthest = 0.0
    with ranks.together():
        for block in problem.shard.blocks():
            Z = (problem.rows[block][:, : problem.model.D] - white.mean) @ white.to
            farthest = max(farthest, float(np.sqrt((Z * Z).sum(1)).max(initial=0.0)))
    farthest = ranks.max(farthest) * (1 + 1e-9)

    def moments(directions: np.ndarray) -> np.ndarray:
        def add(Y: np.ndarray) -> np.ndarray:
            Z = (Y - white.mean) @ white.to
            return ((Z @ directions.T) ** 2).T @ Z

        return summed(problem, ranks, directions.shape, farthest**3, add) / problem.shard.points

    return moments


def summed(
    problem: Problem, ranks: Ranks, shape: tuple[int, ...], bound: float, part: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The sum over all blocks of what is computed of their points (n, D), of which each adds at most ``bound``."""
    total = ExactSum({"sum": shape})
    total.reset({"sum": bound}, problem.shard.points, problem.shard.block)
    with ranks.together():
        for block in problem.shard.blocks():
            total.add("sum", part(np.asarray(problem.rows[block][:, : problem.model.D], np.float64)))
    return total.everywhere(ranks)["sum"]


def climbed(begin: np.ndarray, known: np.ndarray, weights: np.ndarray, moments: Callable, ranks: Ranks) -> np.ndarray:
    """Directions of most skewness, beside what is ``known`` with its ``weights``, that a search ends in; (m, k)."""
    directions = begin
    for _ in range(STEPS):
        cube = moments(directions)

        def step(old: np.ndarray = directions, cube: np.ndarray = cube) -> np.ndarray:
            return unit(cube - ((old @ known.T) ** 2 * weights) @ known)

        old, directions = directions, ranks.from_root(step)
        if ranks.of_root(float(np.abs(directions - old).max(initial=0.0))) < CALM:
            break
    cube = moments(directions)

    def chosen() -> np.ndarray:
        skewness = (directions * cube).sum(1) - (directions @ known.T) ** 3 @ weights
        taken = list[int]()
        for i in np.argsort(-skewness, kind="stable"):
            others = np.concatenate([known, directions[taken]])
            if skewness[i] > SKEWED and (others @ directions[i]).max(initial=-1.0) < ALIKE:
                taken.append(i)
        return directions[taken]

    return ranks.from_root(chosen)


def refined(directions: np.ndarray, moments: Callable, ranks: Ranks) -> np.ndarray:
    """The directions, each as the others leave it, which are not orthogonal where they are many."""
    for _ in range(REFINED if len(directions) else 0):
        cube = moments(directions)

        def step(old: np.ndarray = directions, cube: np.ndarray = cube) -> np.ndarray:
            overlap = (old @ old.T) ** 2 * weights_of(old, cube)
            np.fill_diagonal(overlap, 0.0)
            return unit(cube - overlap @ old)

        old, directions = directions, ranks.from_root(step)
        if ranks.of_root(float(np.abs(directions - old).max())) < CALM:
            break
    return directions


def strongest(directions: np.ndarray, count: int, moments: Callable, ranks: Ranks) -> tuple[np.ndarray, np.ndarray]:
    """Those of most weight, ``count`` at most and none twice, and their weights."""
    if not len(directions):
        return directions, np.empty(0)
    cube = moments(directions)

    def chosen() -> tuple[np.ndarray, np.ndarray]:
        weights, taken = weights_of(directions, cube), list[int]()
        for i in np.argsort(-weights, kind="stable"):
            if weights[i] > SKEWED and (directions[taken] @ directions[i]).max(initial=-1.0) < ALIKE:
                taken.append(i)
        taken = taken[:count]
        return directions[taken], weights_of(directions[taken], cube[taken])

    return ranks.from_root(chosen)


def weights_of(directions: np.ndarray, cube: np.ndarray) -> np.ndarray:
    """The weights w of the terms that explain the skewness along all of them: sum_j w_j (v_j v_i)^3 = <(v_i z)^3>."""
    return np.linalg.lstsq((directions @ directions.T) ** 3, (directions * cube).sum(1), rcond=1e-6)[0]


def fields_of(
    directions: np.ndarray, weights: np.ndarray, white: White, one_active: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The fields (D, m) of the directions, at the length that causes of their skewness have, and probabilities (m,).

    A cause of probability p has the skewness g = (1 - 2 p) / sqrt(p (1 - p)) and the variance p (1 - p).
    """
    p = np.clip((1 - weights / np.sqrt(weights**2 + 4)) / 2, RARE, EVEN)
    fields = white.back @ (directions / np.sqrt(p * (1 - p))[:, None]).T
    if one_active:
        fields = white.mean[:, None] + (1 - p) * fields
    return fields, p


def unit(directions: np.ndarray) -> np.ndarray:
    """At length 1, (m, k); what has none stays."""
    length = np.sqrt((directions * directions).sum(1, keepdims=True))
    return directions / np.where(length > 0, length, 1.0)
