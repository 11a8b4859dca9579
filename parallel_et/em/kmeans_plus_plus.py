"""Points of the data that the fields of a run begin with: the same on any number of ranks."""

import numpy as np

from parallel_et.core.capabilities import ManyPoints
from parallel_et.core.model import shape_of
from parallel_et.core.random import stream
from parallel_et.em.problem import Problem
from parallel_et.errors import UserError
from parallel_et.kernels.rows import pad_rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import scale_for


def chosen_rows(problem: Problem, ranks: Ranks, name: str, how: str) -> np.ndarray:
    """As many points as the model wants, drawn by the seed, as columns (D, H); all ranks call this together."""
    points, (_, H) = problem.shard.points, shape_of(problem.model, name)
    model = problem.model
    count = min(points, model.points_for_fields() if isinstance(model, ManyPoints) else model.H)
    if points < H:
        raise UserError(f"model.init.{name}.rows: expected at least {H} points, one for each cause, found {points}")
    rng = stream(problem.seed, f"rows.{name}")
    if how == "k-means++":
        return far_apart(problem, ranks, count, rng).T
    return fetch(problem, ranks, rng.choice(points, count, replace=False)).T


def fetch(problem: Problem, ranks: Ranks, numbers: np.ndarray) -> np.ndarray:
    """The points of these numbers (m,), on all ranks, (m, D)."""
    shard, rows = problem.shard, np.zeros((len(numbers), problem.model.D))
    for row, number in zip(rows, numbers.tolist(), strict=True):
        if shard.first <= number < shard.last:
            here = number - shard.first
            row[:] = problem.rows[here : here + 1][0, : problem.model.D]
    ranks.sum(rows.view(np.int64))  # each has one owner, the others add nothing
    return rows


def far_apart(problem: Problem, ranks: Ranks, count: int, rng: np.random.Generator) -> np.ndarray:
    """Points drawn one after the other, each with a probability as its squared distance from the nearest before it.

    k-means++ (Arthur and Vassilvitskii 2007), (count, D). The squares are rounded to multiples of a tiny unit: a sum
    of integers, and where in it a random one lies, is the same on any number of ranks. Costs a pass over all points for
    each that is drawn.
    """
    from parallel_et.kernels import mixture  # its kernels are for those who need them

    shard = problem.shard
    chosen, gaps = fetch(problem, ranks, rng.integers(shard.points, size=1)), np.full(len(shard), np.inf)
    while len(chosen) < count:
        newest = pad_rows(chosen[-1:])
        for block in shard.blocks():
            mixture.nearer(pad_rows(problem.rows[block]), newest, gaps[block])
        bound = ranks.max(float(gaps.max(initial=0.0)))
        squares = np.rint(gaps * scale_for(bound * shard.points)).astype(np.int64)
        chosen = np.concatenate([chosen, fetch(problem, ranks, drawn(squares, problem, ranks, rng))])
    return chosen


def drawn(squares: np.ndarray, problem: Problem, ranks: Ranks, rng: np.random.Generator) -> np.ndarray:
    """The number of a point, drawn with a probability as the integers (n,) of each rank's points; any if all are 0."""
    totals = np.zeros(ranks.size, np.int64)
    totals[ranks.rank] = squares.sum()
    ranks.sum(totals)
    everything, number = int(totals.sum()), np.zeros(1, np.int64)
    if not everything:
        return rng.integers(problem.shard.points, size=1)
    place = min(int(rng.random() * everything), everything - 1) - int(totals[: ranks.rank].sum())
    if 0 <= place < totals[ranks.rank]:
        number[0] = problem.shard.first + np.searchsorted(np.cumsum(squares), place, side="right")
    ranks.sum(number)
    return number
