"""Initial fields along skewed directions of the data, found by third moments; the same on any number of ranks."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parallel_et.core.capabilities import fields_from_directions
from parallel_et.core.random import stream
from parallel_et.em.kmeans_plus_plus import fetch_points
from parallel_et.em.problem import Problem
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import ExactSum

ROUNDS = 8
"""Largest number of searches for further directions."""
STARTS_PER_CAUSE = 4
"""Number of points per cause from which a search starts."""
SEARCH_STEPS = 30
"""Largest number of steps of a search."""
REFINEMENT_STEPS = 15
"""Largest number of steps of the joint refinement of all directions."""
TOLERANCE = 1e-7
"""Change of the directions in a step below which a search or a refinement ends."""
SAME_DIRECTION_COSINE = 0.9
"""Cosine above which two directions count as one."""
MIN_SKEWNESS = 0.3
"""Smallest skewness of a direction."""
MIN_RELATIVE_VARIANCE = 1e-3
"""Smallest variance of a whitened direction, relative to the largest variance."""
SAMPLE_VALUES = 1 << 22
"""Largest number of values of the sample of points from which fields along directions are computed."""
MIN_PROBABILITY, MAX_PROBABILITY = 0.05, 0.45
"""Limits of the probability of a cause that follows from the skewness of its direction."""


class Whitening(NamedTuple):
    """The linear map to data of variance 1 in k directions, and its inverse.

    Attributes
    ----------
    mean : (D,) mean of the data
    forward : (D, k), z = (y - mean) ``forward``
    back : (D, k), y = mean + ``back`` z
    """

    mean: np.ndarray
    forward: np.ndarray
    back: np.ndarray


def skewed_fields(problem: Problem, ranks: Ranks, name: str, rest: np.ndarray) -> tuple[np.ndarray, float | None]:
    """Return the fields of independent causes that add up, (D, H), and the median probability of the causes, or None.

    If there are fewer directions than causes, the remaining columns are taken from ``rest`` (D, H). Collective.

    The third cumulant of y = W s + noise is sum_h c_h W_h x W_h x W_h for symmetric noise. The coefficient c_h is
    positive for a cause that is rarely active. Power iteration u <- <(u z)^2 z> on the whitened data z finds the terms,
    starting from points (Anandkumar et al. 2014). The terms are subtracted, and all are refined together. Each step is
    a pass over all points. For models with one active cause the fields are the means of the points with that cause.
    """
    white = whitening(problem, ranks)
    moments = third_moments(problem, ranks, white)
    rng, count = stream(problem.seed, f"skewed.{name}"), rest.shape[1]
    directions, weights = np.empty((0, white.forward.shape[1])), np.empty(0)
    for _ in range(ROUNDS if white.forward.shape[1] else 0):
        numbers = rng.choice(problem.shard.points, min(problem.shard.points, STARTS_PER_CAUSE * count), replace=False)
        start = unit_rows((fetch_points(problem, ranks, numbers) - white.mean) @ white.forward)
        found = find_directions(start, directions, weights, moments, ranks)
        directions = refine_directions(np.concatenate([directions, found]), moments, ranks)
        directions, weights = strongest_directions(directions, count, moments, ranks)
        if len(directions) == count:
            break
    fields, p = fields_along(directions, weights, white, problem.model.latents.max_active == 1)
    sample = np.linspace(
        0, problem.shard.points - 1, min(problem.shard.points, SAMPLE_VALUES // problem.model.D + 1)
    ).astype(int)
    points = fetch_points(problem, ranks, sample) if len(directions) else rest.T[:0]

    def combine_fields() -> tuple[np.ndarray, float | None]:
        along = (points - white.mean) @ white.forward @ directions.T
        first = fields_from_directions(problem.model, fields, points, along)
        return np.concatenate([first, rest[:, len(p) :]], 1), float(np.median(p)) if len(p) else None

    return ranks.from_root(combine_fields)


def whitening(problem: Problem, ranks: Ranks) -> Whitening:
    """Return the whitening of the data in the H directions with the largest variance. Collective."""
    N, D, H, largest = problem.shard.points, problem.model.D, problem.model.H, problem.summary.largest
    mean = sum_over_blocks(problem, ranks, (D,), largest, lambda Y: Y.sum(0)) / N

    def products(Y: np.ndarray) -> np.ndarray:
        return (Y - mean).T @ (Y - mean)

    covariance = sum_over_blocks(problem, ranks, (D, D), 4 * largest**2, products) / N
    return ranks.from_root(lambda: whitening_of(mean, covariance, H))


def whitening_of(mean: np.ndarray, covariance: np.ndarray, count: int) -> Whitening:
    """Return the whitening for a mean (D,) and a covariance (D, D), with at most ``count`` directions."""
    variance, vectors = np.linalg.eigh(covariance)
    some = np.argsort(-variance, kind="stable")[:count]
    some = some[variance[some] > MIN_RELATIVE_VARIANCE * variance.max()]
    return Whitening(mean, vectors[:, some] / np.sqrt(variance[some]), vectors[:, some] * np.sqrt(variance[some]))


def third_moments(problem: Problem, ranks: Ranks, white: Whitening) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that computes <(u z)^2 z>, (m, k), for unit vectors u (m, k) in one pass. Collective."""
    farthest = 0.0
    with ranks.synchronise_errors():
        for block in problem.shard.blocks():
            Z = (problem.rows[block][:, : problem.model.D] - white.mean) @ white.forward
            farthest = max(farthest, float(np.sqrt((Z * Z).sum(1)).max(initial=0.0)))
    farthest = ranks.max(farthest) * (1 + 1e-9)

    def moments(directions: np.ndarray) -> np.ndarray:
        def add(Y: np.ndarray) -> np.ndarray:
            Z = (Y - white.mean) @ white.forward
            return ((Z @ directions.T) ** 2).T @ Z

        return sum_over_blocks(problem, ranks, directions.shape, farthest**3, add) / problem.shard.points

    return moments


def sum_over_blocks(
    problem: Problem, ranks: Ranks, shape: tuple[int, ...], bound: float, function: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Sum ``function`` of the points (n, D) of each block, to which a point adds at most ``bound``. Collective."""
    total = ExactSum({"sum": shape})
    total.reset({"sum": bound}, problem.shard.points, problem.shard.block)
    with ranks.synchronise_errors():
        for block in problem.shard.blocks():
            total.add("sum", function(np.asarray(problem.rows[block][:, : problem.model.D], np.float64)))
    return total.on_all_ranks(ranks)["sum"]


def find_directions(
    start: np.ndarray, known: np.ndarray, weights: np.ndarray, moments: Callable, ranks: Ranks
) -> np.ndarray:
    """Search for directions of large skewness in addition to the ``known`` ones with their ``weights``; (m, k)."""
    directions = start
    for _ in range(SEARCH_STEPS):
        cube = moments(directions)

        def step(old: np.ndarray = directions, cube: np.ndarray = cube) -> np.ndarray:
            return unit_rows(cube - ((old @ known.T) ** 2 * weights) @ known)

        old, directions = directions, ranks.from_root(step)
        if ranks.broadcast_object(float(np.abs(directions - old).max(initial=0.0))) < TOLERANCE:
            break
    cube = moments(directions)

    def select() -> np.ndarray:
        skewness = (directions * cube).sum(1) - (directions @ known.T) ** 3 @ weights
        taken = list[int]()
        for i in np.argsort(-skewness, kind="stable"):
            others = np.concatenate([known, directions[taken]])
            if skewness[i] > MIN_SKEWNESS and (others @ directions[i]).max(initial=-1.0) < SAME_DIRECTION_COSINE:
                taken.append(i)
        return directions[taken]

    return ranks.from_root(select)


def refine_directions(directions: np.ndarray, moments: Callable, ranks: Ranks) -> np.ndarray:
    """Refine all directions together, each after subtraction of the others, because they need not be orthogonal."""
    for _ in range(REFINEMENT_STEPS if len(directions) else 0):
        cube = moments(directions)

        def step(old: np.ndarray = directions, cube: np.ndarray = cube) -> np.ndarray:
            overlap = (old @ old.T) ** 2 * cumulant_weights(old, cube)
            np.fill_diagonal(overlap, 0.0)
            return unit_rows(cube - overlap @ old)

        old, directions = directions, ranks.from_root(step)
        if ranks.broadcast_object(float(np.abs(directions - old).max())) < TOLERANCE:
            break
    return directions


def strongest_directions(
    directions: np.ndarray, count: int, moments: Callable, ranks: Ranks
) -> tuple[np.ndarray, np.ndarray]:
    """Return at most ``count`` different directions with the largest weights, and these weights."""
    if not len(directions):
        return directions, np.empty(0)
    cube = moments(directions)

    def select() -> tuple[np.ndarray, np.ndarray]:
        weights, taken = cumulant_weights(directions, cube), list[int]()
        for i in np.argsort(-weights, kind="stable"):
            if (
                weights[i] > MIN_SKEWNESS
                and (directions[taken] @ directions[i]).max(initial=-1.0) < SAME_DIRECTION_COSINE
            ):
                taken.append(i)
        taken = taken[:count]
        return directions[taken], cumulant_weights(directions[taken], cube[taken])

    return ranks.from_root(select)


def cumulant_weights(directions: np.ndarray, cube: np.ndarray) -> np.ndarray:
    """Return the weights w of the terms that explain all skewnesses: sum_j w_j (v_j v_i)^3 = <(v_i z)^3>."""
    return np.linalg.lstsq((directions @ directions.T) ** 3, (directions * cube).sum(1), rcond=1e-6)[0]


def fields_along(
    directions: np.ndarray, weights: np.ndarray, white: Whitening, one_active: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return fields (D, m) along directions, with the length of causes of their skewness, and probabilities (m,).

    A cause of probability p has the skewness g = (1 - 2 p) / sqrt(p (1 - p)) and the variance p (1 - p).
    """
    p = np.clip((1 - weights / np.sqrt(weights**2 + 4)) / 2, MIN_PROBABILITY, MAX_PROBABILITY)
    fields = white.back @ (directions / np.sqrt(p * (1 - p))[:, None]).T
    if one_active:
        fields = white.mean[:, None] + (1 - p) * fields
    return fields, p


def unit_rows(directions: np.ndarray) -> np.ndarray:
    """Scale the rows to length 1, (m, k); rows of zeros stay."""
    length = np.sqrt((directions * directions).sum(1, keepdims=True))
    return directions / np.where(length > 0, length, 1.0)
