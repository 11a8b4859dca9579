"""The setup of a run: data of this rank, model, scheme, schedule and initial parameters, from a job."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from parallel_et.control.process import format_bytes, node_available_bytes, resident_bytes
from parallel_et.core.capabilities import InitialisedFromPoints, InitialisedWithMoments, nanoseconds_of
from parallel_et.core.limits import Limits, check_array
from parallel_et.core.model import Model, shape_of
from parallel_et.core.options import FileInit, MomentsInit, RowsInit, initial_value_of
from parallel_et.core.random import stream
from parallel_et.core.schema import in_bytes
from parallel_et.core.scheme import Scheme, TrainablePart, initial_params_of
from parallel_et.core.types import Params, Summary
from parallel_et.data import generators
from parallel_et.data.base import Centred, Source
from parallel_et.data.files import FileRows
from parallel_et.data.holdout import split_holdout
from parallel_et.data.stream import open_rows
from parallel_et.em.kmeans_plus_plus import initial_points
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
from parallel_et.parallel.threads import ThreadTeam
from parallel_et.runs.memory_demand import Demand, count_statistics, demand
from parallel_et.storage.checksum import check_checksum
from parallel_et.storage.hdf5 import read_array

MAX_MAGNITUDE = 1e100
"""Largest magnitude of a value of the data; its square is finite."""


def open_source(job: Job) -> Source:
    """Return the source of data points of a job."""
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


def open_on_all_ranks(job: Job, ranks: Ranks) -> Source:
    """Return the source of a job on all ranks; the root alone inspects a file. Collective."""
    if job.data.source not in generators():
        return ranks.from_root(lambda: open_source(job))
    with ranks.synchronise_errors():
        return open_source(job)


def model_of(job: Job, dims: int) -> tuple[Model, Scheme]:
    """Return the model of points of ``dims`` dimensions, and the scheme."""
    model = job.Model(job.model, dims)
    for key, expected, found in job.inference.inconsistencies(model.latents):
        raise UserError(f"inference.{key}: expected {expected}, found {found}")
    return model, job.Scheme(job.inference, model.latents)


def model_and_block_size(job: Job, source: Source) -> tuple[Model, Scheme, int]:
    """Return the model, the scheme and the number of points in a block; no data are read."""
    model, scheme = model_of(job, source.dims)
    batch = min(source.points, job.anneal.batch or source.points)
    cost, row_independent = nanoseconds_of(model, scheme.count), scheme.row_independent and model.row_independent
    size = job.run.block or block_size(batch, cost, count_statistics(model), row_independent)
    return model, scheme, size if job.anneal.batch is None else batch // -(-batch // size)


def demand_of(job: Job, source: Source, ranks: int) -> Demand:
    """Return the demand of a job on a rank, from the sizes of its data alone."""
    learned, held = split_holdout(source, job.data.holdout, job.run.seed)
    model, scheme, block = model_and_block_size(job, learned)
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
        source.working_bytes,
        job.anneal.iterations // job.run.snapshots if job.run.snapshots else 0,
        job.anneal.batch is not None,
        job.anneal.renew > 0,
        0 if held is None else held.points,
    )


def check_memory(need: Demand, team: Ranks, ranks: Ranks | None = None) -> None:
    """Raise UserError if the memory of a node is too small, before it is allocated. Collective.

    Parameters
    ----------
    need : demand on each rank of the team
    team : ranks that run the job together
    ranks : all ranks, if several teams run at the same time
    """
    ranks = ranks or team
    count, held, asked = ranks.sum_on_node(1, resident_bytes(), need.allocated + team.is_root * need.root)
    usable = node_available_bytes(held)
    with ranks.synchronise_errors():
        if asked > usable:
            raise UserError(
                f"memory: expected at most {format_bytes(usable)}, the free memory of {platform.node()}, found "
                f"{format_bytes(asked)} for {count} rank{'s' if count > 1 else ''} ({need.description()}); "
                "use more nodes, or reduce "
                + ("data.memory" if need.data > need.work + need.root else "causes, dimensions or snapshots")
            )


def set_up(job: Job, source: Source, ranks: Ranks) -> tuple[Problem, Params, str]:
    """Return the problem, its initial parameters, and the fingerprint of the data. Collective."""
    problem, found = problem_of(job, source, ranks)
    return problem, initial_params(job, problem, ranks), fingerprint(found, ranks)


def problem_of(job: Job, whole: Source, ranks: Ranks) -> tuple[Problem, np.ndarray]:
    """Return the problem, and the digest of the rows of this rank. Collective."""
    ranks.load_kernels()
    source, held = split_holdout(whole, job.data.holdout, job.run.seed)
    model, scheme, size = model_and_block_size(job, source)
    batch = job.anneal.batch or source.points
    if batch > source.points:
        raise UserError(f"anneal.batch: expected at most the {source.points} points of the data, found {batch}")
    if batch < source.points and isinstance(scheme.selection, TrainablePart):
        expected = "all points in each iteration for a trainable selection"
        raise UserError(f"anneal.batch: expected {expected}, found anneal.batch = {batch}")
    if job.anneal.renew:
        if batch < source.points:
            raise UserError(f"anneal.renew: expected all points in each iteration, found anneal.batch = {batch}")
        if "W" not in model.params or model.params["W"].axes != "DH" or model.latents.max_active == 1:
            expected = "a model with fields W and several active causes per point"
            raise UserError(f"anneal.renew: expected {expected}, found {job.model.name}")
    check_memory(demand_of(job, whole, ranks.size), ranks)
    batches = Batches(source.points, size, batch, job.run.seed)
    shard = Shard.of(source.points, size, ranks.rank, ranks.size)
    held_shard = Shard.of(0 if held is None else held.points, size, ranks.rank, ranks.size)
    memory, held_memory = job.data.memory, None
    if memory is not None:  # held-out rows stay in memory if they need at most half of it
        held_memory = in_bytes(memory) // 2
        memory = in_bytes(memory) - min(held_memory, len(held_shard) * new_table(1, whole.dims, whole.dtype).nbytes)
    rows, summary, mean, digest = open_centred_rows(job, model, source, shard, ranks, memory, None, batches.count == 1)
    holdout = None
    if held is not None:
        held_rows, _, _, more = open_centred_rows(job, model, held, held_shard, ranks, held_memory, mean)
        holdout, digest = Holdout(held_shard, held_rows, max(batches.count, scheme.rounds)), digest + more
    schedule = Schedule(job.anneal, model, scheme.max_active, batches)
    team = ThreadTeam(job.run.threads)
    problem = Problem(model, scheme, schedule, shard, rows, summary, job.run.seed, team, mean, holdout)
    return problem, digest


def open_centred_rows(
    job: Job,
    model: Model,
    source: Source,
    shard: Shard,
    ranks: Ranks,
    memory: str | float | None,
    mean: np.ndarray | None = None,
    ordered: bool = True,
) -> tuple[Rows, Summary, np.ndarray | None, np.ndarray]:
    """Read the rows of this rank, subtract the mean with ``data.centre``, and check them for the model. Collective.

    Parameters
    ----------
    memory : maximum number of bytes of rows that this rank keeps
    mean : (D,) mean to subtract; default: the mean of the rows
    ordered : passes visit the blocks in order

    Returns
    -------
    rows : centred rows of this rank
    summary : summary of the rows of all ranks
    mean : (D,) the mean that was subtracted; None without ``data.centre``
    digest : digest of the rows of this rank before the mean was subtracted
    """
    rows, found, summary, columns = open_and_survey(job, source, shard, ranks, memory, ordered)
    if job.data.centre:
        del rows  # frees memory for the centred rows
        mean = columns.mean if mean is None else mean
        rows, _, summary, _ = open_and_survey(job, Centred(source, mean), shard, ranks, memory, ordered)
    model.check(summary)
    return rows, summary, mean, found.digest


def open_and_survey(
    job: Job, source: Source, shard: Shard, ranks: Ranks, memory: str | float | None, ordered: bool = True
) -> tuple[Rows, "Survey", Summary, "Columns"]:
    """Return the rows of this rank, their survey, and summary and columns of the rows of all ranks. Collective.

    ``memory`` is the maximum size of the rows that this rank keeps. With ``ordered``, passes visit blocks in order.
    """
    with ranks.synchronise_errors():
        rows = open_rows(source, shard, memory, job.run.threads, ordered)
        found = survey(rows, shard, source)
        first = np.asarray(source.read(0, 1)[0, : source.dims], np.float64)
    heights = ranks.elementwise_max(found.heights)
    columns = column_statistics(rows, shard, first, heights, ranks)
    return rows, found, summarise(found, shard, columns, ranks), columns


def initial_params(job: Job, problem: Problem, ranks: Ranks) -> Params:
    """Return the initial parameters of model and scheme. Collective."""
    model, params = problem.model, ranks.from_root(lambda: given_arrays(job, problem.model))
    estimated: Mapping[str, float] = {}
    for index, name in enumerate(model.params):
        init = getattr(job.model.init, name)
        if isinstance(init, RowsInit):
            points = initial_points(problem, ranks, name, init.rows)
            params[name] = model.fields_from_points(points) if isinstance(model, InitialisedFromPoints) else points
        elif name not in params:
            params[name] = initial_value_of(model, name, problem.summary, stream(job.run.seed, "init", index))
            if isinstance(init, MomentsInit):
                params[name], probability = skewed_fields(problem, ranks, name, params[name])
                if probability is not None and isinstance(model, InitialisedWithMoments):
                    estimated = model.values_with_moments(probability, problem.summary)
    for name, value in estimated.items():
        if getattr(job.model, name, None) is None and getattr(job.model.init, name) is None:
            params[name] = np.full(shape_of(model, name), value)
    ordered = {name: params[name] for name in model.params}
    own = initial_params_of(problem.scheme, problem.shard.points, model.D)
    return ranks.broadcast({**model.constrain(ordered), **own})


def given_arrays(job: Job, model: Model) -> dict[str, np.ndarray]:
    """Return the initial parameters that the job reads from files."""
    given = {}
    for name in model.params:
        init = getattr(job.model.init, name)
        if isinstance(init, FileInit):
            check_checksum(init.file)
            given[name] = read_array(init.file, init.dataset or name)
            limits = Limits(
                shape_of(model, name), -MAX_MAGNITUDE, MAX_MAGNITUDE
            )  # the model clips values to its own limits
            check_array(f"{init.file}: {init.dataset or name}", given[name], limits)
    return given


@dataclass(frozen=True)
class Survey:
    """Properties of the rows of a rank, from one pass.

    Attributes
    ----------
    heights : (D,) largest magnitude in each dimension
    sums : (blocks, 3) sum, sum of squares and number of negative values of each block
    digest : (1,) uint64 digest of the values and their indices
    """

    heights: np.ndarray
    sums: np.ndarray
    digest: np.ndarray


def survey(rows: Rows, shard: Shard, source: Source) -> Survey:
    """Compute the properties of all rows of this rank in one pass."""
    heights, sums, digest = np.zeros(source.dims), [], np.zeros(1, np.uint64)
    for block in shard.blocks():
        Y = np.ascontiguousarray(rows[block][:, : source.dims], np.float64)
        numbers = source.row_numbers(shard.first + block.start, shard.first + block.stop)
        heights = np.maximum(heights, largest_magnitudes(Y, numbers, source.name))
        sums.append((Y.sum(), (Y * Y).sum(), (Y < 0).sum()))
        ends = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(Y)]
        for first, last in pairwise(ends):
            digest += fixed.digest(Y[first:last].view(np.uint64), int(numbers[first]))
    return Survey(heights, np.array(sums, np.float64), digest)


def largest_magnitudes(Y: np.ndarray, first: int | np.ndarray, name: str) -> np.ndarray:
    """Return the largest magnitude in each column of a block of rows; raise UserError for NaN or too large values.

    ``first`` is the index of the first row, or the indices of all rows.
    """
    magnitude = np.abs(Y)
    heights = magnitude.max(0, initial=0.0).astype(np.float64)
    if not (heights <= MAX_MAGNITUDE).all():  # true for NaN too
        row, column = np.argwhere(~(magnitude <= np.float64(MAX_MAGNITUDE)))[0]  # infinite in single precision
        place = f"{name}: row {first + row if isinstance(first, int) else first[row]}"
        raise UserError(f"{place}: expected numbers below {MAX_MAGNITUDE:g}, found {Y[row, column]} in column {column}")
    return heights


class Columns(NamedTuple):
    """Properties of each dimension of the data.

    Attributes
    ----------
    mean, heights, spreads : (D,) mean, largest magnitude and standard deviation
    same : (D,) bool, True if all points have the same value
    """

    mean: np.ndarray
    heights: np.ndarray
    spreads: np.ndarray
    same: np.ndarray


def column_statistics(rows: Rows, shard: Shard, first: np.ndarray, heights: np.ndarray, ranks: Ranks) -> Columns:
    """Return the properties of each dimension, the same on any number of ranks. Collective.

    Distances from the ``first`` point (D,) are summed, because a common offset would reduce the precision.
    """
    dims, largest = len(first), float(heights.max())
    total, differ = ExactSum({"sum": (dims,), "squares": (dims,)}), np.zeros(dims, np.int64)
    total.reset({"sum": 2 * largest, "squares": 4 * largest**2}, shard.points, shard.block)
    with ranks.synchronise_errors():
        for block in shard.blocks():
            gap = rows[block][:, :dims] - first
            total.add("sum", gap.sum(0))
            total.add("squares", (gap * gap).sum(0))
            differ += (gap != 0).sum(0)
    sums = total.on_all_ranks(ranks)
    ranks.sum(differ)
    gap = sums["sum"] / shard.points
    spreads = np.sqrt(np.maximum(0.0, sums["squares"] / shard.points - gap * gap))
    return Columns(first + gap, heights, spreads, differ == 0)


def summarise(found: Survey, shard: Shard, columns: Columns, ranks: Ranks) -> Summary:
    """Return a summary of all points, the same on any number of ranks. Collective."""
    dims, largest = len(columns.mean), float(columns.heights.max())
    bounds = {"sum": dims * largest, "squares": dims * largest**2, "negative": float(dims)}
    total = ExactSum(dict.fromkeys(bounds, ()))
    total.reset(bounds, shard.points, shard.block)
    for sums in found.sums:
        for name, value in zip(bounds, sums, strict=True):
            total.add(name, value)
    everything = total.on_all_ranks(ranks)
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
    """Return a digest of all points by value and order; it does not depend on the ranks or the job. Collective."""
    total = digest.copy()
    ranks.sum(total)
    return f"{int(total[0]):016x}"
