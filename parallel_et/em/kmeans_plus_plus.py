"""Data points as initial fields: random, or chosen by k-means++. They are the same on any number of ranks."""

import numpy as np

from parallel_et.core.capabilities import ManyPoints
from parallel_et.core.model import shape_of
from parallel_et.core.random import stream
from parallel_et.em.problem import Problem
from parallel_et.errors import UserError
from parallel_et.kernels.rows import pad_rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import scale_for


def initial_points(problem: Problem, ranks: Ranks, name: str, how: str) -> np.ndarray:
    """Return points for the initial fields, drawn with the seed, as columns (D, m). Collective."""
    points, (_, H) = problem.shard.points, shape_of(problem.model, name)
    model = problem.model
    count = min(points, model.points_for_fields() if isinstance(model, ManyPoints) else model.H)
    if points < H:
        raise UserError(f"model.init.{name}.rows: expected at least {H} points, one for each cause, found {points}")
    rng = stream(problem.seed, f"rows.{name}")
    if how == "k-means++":
        return kmeans_plus_plus(problem, ranks, count, rng).T
    return fetch_points(problem, ranks, rng.choice(points, count, replace=False)).T


def fetch_points(problem: Problem, ranks: Ranks, numbers: np.ndarray) -> np.ndarray:
    """Return the points with these indices (m,) on all ranks, (m, D). Collective."""
    shard, rows = problem.shard, np.zeros((len(numbers), problem.model.D))
    for row, number in zip(rows, numbers.tolist(), strict=True):
        if shard.first <= number < shard.last:
            index = number - shard.first
            row[:] = problem.rows[index : index + 1][0, : problem.model.D]
    ranks.sum(rows.view(np.int64))  # each point has one owner, and all other ranks add zeros
    return rows


def kmeans_plus_plus(problem: Problem, ranks: Ranks, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw points one after another by k-means++ (Arthur and Vassilvitskii 2007), (count, D). Collective.

    The probability of a point is proportional to the squared distance from the nearest point that is already drawn.
    The squares are rounded to integers, so that draws are the same on any number of ranks. Each draw costs a pass over
    all points.
    """
    from parallel_et.kernels import mixture  # declares kernels that few runs need

    shard = problem.shard
    chosen = fetch_points(problem, ranks, rng.integers(shard.points, size=1))
    square_distances = np.full(len(shard), np.inf)
    while len(chosen) < count:
        newest = pad_rows(chosen[-1:])
        for block in shard.blocks():
            mixture.update_distances(pad_rows(problem.rows[block]), newest, square_distances[block])
        bound = ranks.max(float(square_distances.max(initial=0.0)))
        squares = np.rint(square_distances * scale_for(bound * shard.points)).astype(np.int64)
        chosen = np.concatenate([chosen, fetch_points(problem, ranks, draw_point(squares, problem, ranks, rng))])
    return chosen


def draw_point(squares: np.ndarray, problem: Problem, ranks: Ranks, rng: np.random.Generator) -> np.ndarray:
    """Draw the index of a point with probability proportional to the integers (n,) of each rank; uniform if all are 0.

    Collective.
    """
    rank_totals = np.zeros(ranks.size, np.int64)
    rank_totals[ranks.rank] = squares.sum()
    ranks.sum(rank_totals)
    total = int(rank_totals.sum())
    number = np.zeros(1, np.int64)
    if not total:
        return rng.integers(problem.shard.points, size=1)
    place = min(int(rng.random() * total), total - 1) - int(rank_totals[: ranks.rank].sum())
    if 0 <= place < rank_totals[ranks.rank]:
        number[0] = problem.shard.first + np.searchsorted(np.cumsum(squares), place, side="right")
    ranks.sum(number)
    return number
