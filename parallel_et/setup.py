"""From a job to a problem: the data of this rank, the model, the scheme, the plan and the parameters to begin with."""

from typing import Any

import numpy as np

from parallel_et import models, posterior
from parallel_et.data import generators
from parallel_et.data.base import Source
from parallel_et.demand import count_statistics
from parallel_et.em import Problem
from parallel_et.errors import UserError
from parallel_et.io.files import FileRows, read_array
from parallel_et.job import Job
from parallel_et.kernels import fixed
from parallel_et.models.base import FileInit, Params, Summary
from parallel_et.parallel.ranks import Ranks
from parallel_et.parallel.shard import Shard, block_size
from parallel_et.parallel.sums import ExactSum
from parallel_et.parallel.team import Team
from parallel_et.random import stream
from parallel_et.schedule import Plan

LARGEST = 1e100


def open_source(job: Job) -> Source:
    """The source of data points that a job names."""
    kind = generators().get(job.data.source)
    if kind is not None:
        return kind(job.data, job.run.seed, job)
    source = FileRows(job.data.source)
    if job.data.points is not None:
        if job.data.points > source.points:
            raise UserError(
                f"data.points: expected at most the {source.points} rows of {source.name}, found {job.data.points}"
            )
        source.points = job.data.points
    if job.data.shape is not None:
        if int(np.prod(job.data.shape)) != source.dims:
            raise UserError(f"data.shape: expected {source.dims} values, found {job.data.shape}")
        source.shape = tuple(job.data.shape)
    return source


def size_up(job: Job, source: Source) -> tuple[models.Model, Any, int]:
    """The model, the scheme and the points a block, for which no data need to be read."""
    scheme = posterior.known()[job.inference.scheme](job.inference, job.model.causes)
    model = models.known()[job.model.name](job.model, source.dims)
    size = block_size(source.points, model.nanoseconds(len(scheme.states)), count_statistics(model))
    return model, scheme, size


def set_up(job: Job, source: Source, ranks: Ranks) -> tuple[Problem, Params, str]:
    """The problem, its initial parameters and the data's fingerprint; all ranks call this together."""
    model, scheme, size = size_up(job, source)
    with ranks.together():
        shard = Shard.of(source.points, size, ranks.rank, ranks.size)
        rows = source.read(shard.first, shard.last)
        points = rows[:, : source.dims]
        check_rows(points, shard.first, source.name)
    summary = summarise(points, shard, ranks)
    plan = Plan(job.anneal, model, scheme.gamma, source.points)
    problem = Problem(model, scheme, plan, shard, rows, summary, job.run.seed, Team(job.run.threads))
    given = ranks.from_root(lambda: given_arrays(job, source.dims))
    params = ranks.share(model.initial(stream(job.run.seed, "init"), summary, given))
    return problem, params, fingerprint(points, shard, ranks)


def given_arrays(job: Job, dims: int) -> dict[str, np.ndarray]:
    """The initial parameters that the job takes from files."""
    init = job.model.init.W
    if not isinstance(init, FileInit):
        return {}
    W = read_array(init.file, init.dataset)
    if W.shape != (dims, job.model.causes):
        raise UserError(
            f"{init.file}: {init.dataset}: expected the shape {(dims, job.model.causes)} (dimensions x causes), "
            f"found {W.shape}"
        )
    if not np.isfinite(W).all():
        raise UserError(f"{init.file}: {init.dataset}: expected finite numbers, found others")
    return {"W": W}


def check_rows(rows: np.ndarray, first: int, name: str) -> None:
    """Every value must be a number whose square is one too."""
    largest = min(LARGEST, float(np.finfo(rows.dtype).max))
    for start in range(0, len(rows), 4096):
        finite = np.abs(rows[start : start + 4096]) <= largest  # false for NaN too
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            found = rows[start + row, column]
            place = f"{name}: row {first + start + row}"
            raise UserError(f"{place}: expected numbers below {LARGEST:g}, found {found} in column {column}")


def summarise(rows: np.ndarray, shard: Shard, ranks: Ranks) -> Summary:
    """Magnitudes of all points, the same on any number of ranks."""
    dims = rows.shape[1]
    largest = ranks.max(max((float(np.abs(rows[b]).max()) for b in shard.blocks()), default=0.0))
    bounds = {"sum": dims * largest, "squares": dims * largest**2, "negative": float(dims)}
    total = ExactSum(dict.fromkeys(bounds, ()))
    total.reset(bounds, shard.points)
    for block in shard.blocks():
        Y = np.ascontiguousarray(rows[block], np.float64)
        for name, value in zip(bounds, (Y.sum(), (Y * Y).sum(), (Y < 0).sum()), strict=True):
            total.add(name, value)
    sums = total.everywhere(ranks)
    count = shard.points * dims
    mean, square, negative = (float(sums[name]) / count for name in bounds)
    return Summary(shard.points, dims, largest, mean, float(np.sqrt(square)), negative)


def fingerprint(rows: np.ndarray, shard: Shard, ranks: Ranks) -> str:
    """A digest of all data points, by value and order, that does not depend on the ranks or the job."""
    total = np.zeros(1, np.uint64)
    for block in shard.blocks():
        total += fixed.digest(np.ascontiguousarray(rows[block], np.float64).view(np.uint64), shard.first + block.start)
    ranks.sum(total)
    return f"{int(total[0]):016x}"
