"""From a job to a problem: the data of this rank, the model, the scheme, the plan and the parameters to begin with."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from parallel_et.control.process import held_bytes, readable, usable_bytes
from parallel_et.core.capabilities import InitialisedFromPoints, InitialisedWithMoments, nanoseconds_of
from parallel_et.core.limits import Limits, check_array
from parallel_et.core.model import Model, shape_of
from parallel_et.core.options import FileInit, MomentsInit, RowsInit, start_of
from parallel_et.core.random import stream
from parallel_et.core.schema import in_bytes
from parallel_et.core.scheme import Learner, Scheme, initial_params_of
from parallel_et.core.types import Params, Summary
from parallel_et.data import generators
from parallel_et.data.base import Centred, Source
from parallel_et.data.files import FileRows
from parallel_et.data.holdout import split
from parallel_et.data.stream import rows_of
from parallel_et.em.kmeans_plus_plus import chosen_rows
from parallel_et.em.minibatches import Batches
from parallel_et.em.problem import Holdout, Problem
from parallel_et.em.schedule import Schedule
from parallel_et.em.third_moments import skewed_fields
from parallel_et.errors import UserError
from parallel_et.job.job import Job
from parallel_et.kernels import fixed
from parallel_et.kernels.rows import Rows, new_table
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import ExactSum
from parallel_et.parallel.shards import Shard, block_size
from parallel_et.parallel.threads import Team
from parallel_et.runs.memory_demand import Demand, count_statistics, demand
from parallel_et.storage.checksum import check_seal
from parallel_et.storage.hdf5 import read_array

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
        if prod(job.data.shape) != source.dims:
            raise UserError(f"data.shape: expected {source.dims} values, found {job.data.shape}")
        source.shape = tuple(job.data.shape)
    return source


def open_together(job: Job, ranks: Ranks) -> Source:
    """The source on all ranks: a generator is everybody's own, a file is looked at by the root alone; collective."""
    if job.data.source not in generators():
        return ranks.from_root(lambda: open_source(job))
    with ranks.together():
        return open_source(job)


def model_of(job: Job, dims: int) -> tuple[Model, Scheme]:
    """The model of points of so many dimensions, and the scheme."""
    model = job.Model(job.model, dims)
    for key, expected, found in job.inference.mistakes(model.latents):
        raise UserError(f"inference.{key}: expected {expected}, found {found}")
    return model, job.Scheme(job.inference, model.latents)


def size_up(job: Job, source: Source) -> tuple[Model, Scheme, int]:
    """The model, the scheme and the points a block, for which no data need to be read."""
    model, scheme = model_of(job, source.dims)
    batch = min(source.points, job.anneal.batch or source.points)
    cost, alike = nanoseconds_of(model, scheme.count), scheme.row_independent and model.row_independent
    size = job.run.block or block_size(batch, cost, count_statistics(model), alike)
    return model, scheme, size if job.anneal.batch is None else batch // -(-batch // size)


def demand_of(job: Job, source: Source, ranks: int) -> Demand:
    """What the job will ask of each of so many ranks; of its data only the sizes are looked at."""
    learned, held = split(source, job.data.holdout, job.run.seed)
    model, scheme, block = size_up(job, learned)
    row = new_table(0, source.dims, source.dtype)
    return demand(
        model,
        scheme,
        learned.points,
        block,
        row.shape[1] * row.itemsize,
        ranks,
        job.run.threads,
        job.data.memory,
        source.holds,
        job.anneal.iterations // job.run.snapshots if job.run.snapshots else 0,
        job.anneal.batch is not None,
        job.anneal.renew > 0,
        0 if held is None else held.points,
    )


def check_memory(need: Demand, team: Ranks, ranks: Ranks | None = None) -> None:
    """Refuse what the memory of a node does not hold, before it is asked for; all ranks call this together.

    ``need`` is that of a rank of the ``team`` that does the work, one of several of the ``ranks`` if given.
    """
    ranks = ranks or team
    count, held, asked = ranks.sum_on_node(1, held_bytes(), need.asked + team.is_root * need.root)
    usable = usable_bytes(held)
    with ranks.together():
        if asked > usable:
            raise UserError(
                f"memory: expected at most {readable(usable)}, which is left on {platform.node()}, found "
                f"{readable(asked)} for {count} rank{'s' if count > 1 else ''} ({need.words()}); take more nodes, or "
                + ("data.memory" if need.data > need.work + need.root else "fewer causes, dimensions or snapshots")
            )


def set_up(job: Job, source: Source, ranks: Ranks) -> tuple[Problem, Params, str]:
    """The problem, its initial parameters and the data's fingerprint; all ranks call this together."""
    problem, found = problem_of(job, source, ranks)
    return problem, initial(job, problem, ranks), fingerprint(found, ranks)


def problem_of(job: Job, whole: Source, ranks: Ranks) -> tuple[Problem, np.ndarray]:
    """The problem, and the digest of this rank's rows; all ranks call this together."""
    ranks.load_kernels()
    source, held = split(whole, job.data.holdout, job.run.seed)
    model, scheme, size = size_up(job, source)
    batch = job.anneal.batch or source.points
    if batch > source.points:
        raise UserError(f"anneal.batch: expected at most the {source.points} points of the data, found {batch}")
    if batch < source.points and isinstance(scheme.selection, Learner):
        expected = "all points in each iteration for a selection that is learned"
        raise UserError(f"anneal.batch: expected {expected}, found anneal.batch = {batch}")
    if job.anneal.renew:
        if batch < source.points:
            raise UserError(f"anneal.renew: expected all points in each iteration, found anneal.batch = {batch}")
        if "W" not in model.params or model.params["W"].axes != "DH" or model.latents.most == 1:
            expected = "a model with fields W, of which several are active at once"
            raise UserError(f"anneal.renew: expected {expected}, found {job.model.name}")
    check_memory(demand_of(job, whole, ranks.size), ranks)
    batches = Batches(source.points, size, batch, job.run.seed)
    shard = Shard.of(source.points, size, ranks.rank, ranks.size)
    others = Shard.of(0 if held is None else held.points, size, ranks.rank, ranks.size)
    room, aside = job.data.memory, None
    if room is not None:  # rows that are held out stay in memory if that leaves half of the room for the others
        aside = in_bytes(room) // 2
        room = in_bytes(room) - min(aside, len(others) * new_table(1, whole.dims, whole.dtype).nbytes)
    rows, summary, mean, digest = open_seen(job, model, source, shard, ranks, room, None, batches.count == 1)
    holdout = None
    if held is not None:
        held_rows, _, _, more = open_seen(job, model, held, others, ranks, aside, mean)
        holdout, digest = Holdout(others, held_rows, max(batches.count, scheme.rounds)), digest + more
    schedule = Schedule(job.anneal, model, scheme.most, batches)
    team = Team(job.run.threads)
    problem = Problem(model, scheme, schedule, shard, rows, summary, job.run.seed, team, mean, holdout)
    return problem, digest


def open_seen(
    job: Job,
    model: Model,
    source: Source,
    shard: Shard,
    ranks: Ranks,
    memory: str | float | None,
    mean: np.ndarray | None = None,
    ordered: bool = True,
) -> tuple[Rows, Summary, np.ndarray | None, np.ndarray]:
    """The rows of this rank as the model sees them, if it can learn from such; all ranks call this together.

    And what all are like, the mean that was subtracted, if the job says so (that of the rows unless one is given), and
    the digest of this rank's rows as they were before.
    """
    rows, found, summary, columns = open_rows(job, source, shard, ranks, memory, ordered)
    if job.data.centre:
        del rows  # room for the others
        mean = columns.mean if mean is None else mean
        rows, _, summary, _ = open_rows(job, Centred(source, mean), shard, ranks, memory, ordered)
    model.check(summary)
    return rows, summary, mean, found.digest


def open_rows(
    job: Job, source: Source, shard: Shard, ranks: Ranks, memory: str | float | None, ordered: bool = True
) -> tuple[Rows, "Survey", Summary, "Columns"]:
    """The rows of this rank, of which it keeps what the ``memory`` holds; all ranks call this together.

    And what is found in them and in those of all; ``ordered``: whether passes go from the first block to the last.
    """
    with ranks.together():
        rows = rows_of(source, shard, memory, job.run.threads, ordered)
        found = survey(rows, shard, source)
        first = np.asarray(source.read(0, 1)[0, : source.dims], np.float64)
    heights = ranks.largest(found.heights)
    columns = look_at_columns(rows, shard, first, heights, ranks)
    return rows, found, summarise(found, shard, columns, ranks), columns


def initial(job: Job, problem: Problem, ranks: Ranks) -> Params:
    """The parameters to begin with; all ranks call this together."""
    model, params = problem.model, ranks.from_root(lambda: given_arrays(job, problem.model))
    beside: Mapping[str, float] = {}
    for index, name in enumerate(model.params):
        init = getattr(job.model.init, name)
        if isinstance(init, RowsInit):
            points = chosen_rows(problem, ranks, name, init.rows)
            params[name] = model.fields_from_points(points) if isinstance(model, InitialisedFromPoints) else points
        elif name not in params:
            params[name] = start_of(model, name, problem.summary, stream(job.run.seed, "init", index))
            if isinstance(init, MomentsInit):
                params[name], probability = skewed_fields(problem, ranks, name, params[name])
                if probability is not None and isinstance(model, InitialisedWithMoments):
                    beside = model.values_with_moments(probability, problem.summary)
    for name, value in beside.items():
        if getattr(job.model, name, None) is None and getattr(job.model.init, name) is None:
            params[name] = np.full(shape_of(model, name), value)
    ordered = {name: params[name] for name in model.params}
    own = initial_params_of(problem.scheme, problem.shard.points, model.D)
    return ranks.share({**model.constrain(ordered), **own})


def given_arrays(job: Job, model: Model) -> dict[str, np.ndarray]:
    """The initial parameters that the job takes from files."""
    given = {}
    for name in model.params:
        init = getattr(job.model.init, name)
        if isinstance(init, FileInit):
            check_seal(init.file)
            given[name] = read_array(init.file, init.dataset or name)
            limits = Limits(
                shape_of(model, name), -LARGEST, LARGEST
            )  # what is beyond the model's own is brought within
            check_array(f"{init.file}: {init.dataset or name}", given[name], limits)
    return given


@dataclass(frozen=True)
class Survey:
    """What one pass over a rank's rows finds.

    Attributes
    ----------
    heights : (D,) largest magnitude in each dimension
    sums : (blocks, 3) of each block the sum, the sum of squares and the number of negative values
    digest : (1,) uint64, of the values and their places
    """

    heights: np.ndarray
    sums: np.ndarray
    digest: np.ndarray


def survey(rows: Rows, shard: Shard, source: Source) -> Survey:
    """Look at all rows once."""
    heights, sums, digest = np.zeros(source.dims), [], np.zeros(1, np.uint64)
    for block in shard.blocks():
        Y = np.ascontiguousarray(rows[block][:, : source.dims], np.float64)
        numbers = source.numbers(shard.first + block.start, shard.first + block.stop)
        heights = np.maximum(heights, largest_of(Y, numbers, source.name))
        sums.append((Y.sum(), (Y * Y).sum(), (Y < 0).sum()))
        ends = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(Y)]
        for first, last in pairwise(ends):
            digest += fixed.digest(Y[first:last].view(np.uint64), int(numbers[first]))
    return Survey(heights, np.array(sums, np.float64), digest)


def largest_of(Y: np.ndarray, first: int | np.ndarray, name: str) -> np.ndarray:
    """Return the largest magnitude in each column of a block of rows; every value must be finite, as its square.

    ``first`` is the number of the first row, or those of all rows.
    """
    magnitude = np.abs(Y)
    heights = magnitude.max(0, initial=0.0).astype(np.float64)
    if not (heights <= LARGEST).all():  # true for NaN too
        row, column = np.argwhere(~(magnitude <= np.float64(LARGEST)))[0]  # in single precision that is infinite
        place = f"{name}: row {first + row if isinstance(first, int) else first[row]}"
        raise UserError(f"{place}: expected numbers below {LARGEST:g}, found {Y[row, column]} in column {column}")
    return heights


class Columns(NamedTuple):
    """The dimensions of all points.

    Attributes
    ----------
    mean, heights, spreads : (D,) mean, largest magnitude and standard deviation
    same : (D,) whether all points have the same value
    """

    mean: np.ndarray
    heights: np.ndarray
    spreads: np.ndarray
    same: np.ndarray


def look_at_columns(rows: Rows, shard: Shard, first: np.ndarray, heights: np.ndarray, ranks: Ranks) -> Columns:
    """Return the properties of each dimension, the same on any number of ranks; all ranks call this together.

    The sums are over distances from the ``first`` point (D,), so that a common offset takes no digits.
    """
    dims, largest = len(first), float(heights.max())
    total, differ = ExactSum({"sum": (dims,), "squares": (dims,)}), np.zeros(dims, np.int64)
    total.reset({"sum": 2 * largest, "squares": 4 * largest**2}, shard.points, shard.block)
    with ranks.together():
        for block in shard.blocks():
            gap = rows[block][:, :dims] - first
            total.add("sum", gap.sum(0))
            total.add("squares", (gap * gap).sum(0))
            differ += (gap != 0).sum(0)
    sums = total.everywhere(ranks)
    ranks.sum(differ)
    gap = sums["sum"] / shard.points
    spreads = np.sqrt(np.maximum(0.0, sums["squares"] / shard.points - gap * gap))
    return Columns(first + gap, heights, spreads, differ == 0)


def summarise(found: Survey, shard: Shard, columns: Columns, ranks: Ranks) -> Summary:
    """What all points are like, the same on any number of ranks; all ranks call this together."""
    dims, largest = len(columns.mean), float(columns.heights.max())
    bounds = {"sum": dims * largest, "squares": dims * largest**2, "negative": float(dims)}
    total = ExactSum(dict.fromkeys(bounds, ()))
    total.reset(bounds, shard.points, shard.block)
    for sums in found.sums:
        for name, value in zip(bounds, sums, strict=True):
            total.add(name, value)
    everything = total.everywhere(ranks)
    count = shard.points * dims
    mean, square, negative = (float(everything[name]) / count for name in bounds)
    offset, zero = float(np.sqrt((columns.mean**2).mean())), columns.mean == 0
    constant, empty = int((columns.same & ~zero).sum()), int((columns.same & zero).sum())
    rms, spread = float(np.sqrt(square)), float(np.sqrt((columns.spreads**2).mean()))
    return Summary(
        shard.points,
        dims,
        largest,
        mean,
        rms,
        negative,
        spread,
        offset,
        constant,
        empty,
        columns.heights,
        columns.spreads,
        columns.mean,
    )


def fingerprint(digest: np.ndarray, ranks: Ranks) -> str:
    """A digest of all data points, by value and order, that does not depend on the ranks or the job."""
    total = digest.copy()
    ranks.sum(total)
    return f"{int(total[0]):016x}"
