"""The command ``train``: training of a job in its run directory, with its messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallel_et.control.process import format_bytes
from parallel_et.control.progress import Reporter
from parallel_et.control.signals import EXIT_STOPPED, STOPPED_BEFORE_START
from parallel_et.control.stopping import Request, StopMonitor
from parallel_et.core.capabilities import cause_images_of
from parallel_et.core.schema import in_bytes
from parallel_et.data.base import Source
from parallel_et.em.problem import Problem
from parallel_et.errors import UserError
from parallel_et.inference.diagnostics import WAY_OUT, data_warnings
from parallel_et.inference.recovery import causes_of, recovery
from parallel_et.job.job import CHANGEABLE_KEYS, Job, read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.checkpointer import Checkpointer, Claim
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.setup import demand_of
from parallel_et.runs.trainer import IterationLog, Training, new_training

Draw = Callable[[np.ndarray, tuple[int, ...], Path, str], None]
"""Draws fields (D, H), each of a shape, to a file with a title."""


@dataclass(frozen=True)
class TrainOptions:
    """The options of the command line; ``max_time`` in seconds since the start of the process."""

    job: str
    set: Sequence[str] = ()
    output: str | None = None
    fresh: bool = False
    allow: Sequence[str] = ()
    max_time: float | None = None
    dry_run: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        for key in self.allow:
            if key not in CHANGEABLE_KEYS:
                raise UserError(f"--allow: expected {' or '.join(CHANGEABLE_KEYS)}, found {key}")


def train_job(ranks: Ranks, options: TrainOptions, draw: Draw) -> int:
    """Train a job, or resume its run; return the exit code. Collective."""
    job = ranks.from_root(lambda: read_job(options.job, options.set))
    directory = RunDirectory(options.output or f"runs/{job.name}")
    stopping = StopMonitor(options.max_time, directory.stop if ranks.is_root else None)
    report = Reporter(ranks.is_root, options.quiet)
    claim = Claim(directory, job, report.log, options.allow, options.fresh)
    ranks.from_root(claim.check)
    if crowded := ranks.limit_threads(job.run.threads):
        report.log(f"warning: {crowded}")
    training = new_training(job, ranks)
    problem, source = training.problem, training.source
    if options.dry_run:
        report.log(f"{summary_of(problem, ranks)}\n{job.toml()}\n{expected_work(problem, job, source, ranks)}")
        for line in (initial_values(training), *data_warnings(problem, training.state.params, job.model.name)):
            report.log(line)
        report.log(streaming_note(problem, job, ranks) or "each rank keeps all its rows in memory")
        report.log(f"run directory: {directory.path}")
        return 0

    if ranks.bitwise_or(stopping.requested(0.0) & Request.SIGNAL):  # a signal that arrived while the data were read
        report.log(STOPPED_BEFORE_START)
        return EXIT_STOPPED
    checkpointer = Checkpointer(claim, ranks)
    with checkpointer.resume_run(training):
        if checkpointer.finished:
            report.log(f"{directory.path}: this run is finished, its result is {directory.result}; --fresh starts over")
            return 0
        report.log(summary_of(problem, ranks))
        if (note := streaming_note(problem, job, ranks)) is not None:
            report.log(note)
        if training.state.iteration == 0:
            for line in data_warnings(problem, training.state.params, job.model.name):
                report.log(line)
        report.start(job.anneal.iterations, training.state.iteration, source.points)
        checkpointer.prepare_files()
        report.log_to(directory.append_to_log)
        log = IterationLog(report)
        for info in checkpointer.iterations(stopping):
            if ranks.is_root:
                log.add(training.state.params, info)
        if not training.ended:
            done, saved = training.state.iteration, checkpointer.written_at
            report.log(
                f"stopped by {checkpointer.stopped.reasons()} after {done} iterations; "
                f"the same command{' without --fresh' if options.fresh else ''} resumes"
                + (f" from iteration {saved}, the newest checkpoint" if saved < done else "")
            )
            return EXIT_STOPPED if saved == done else 1
        if ranks.is_root:
            conclude(training, job, directory, report, draw)
    return 0


def conclude(training: Training, job: Job, directory: RunDirectory, report: Reporter, draw: Draw) -> None:
    """Print recovery, warnings and diagnostics, draw the fields, and print the path of the result."""
    learned, problem = training.state.params, training.problem
    if "W" in training.truth:
        report.log(str(recovery(problem.model, problem.scheme, learned, causes_of(training.truth, problem.model.D))))
    if found := training.metadata["limits"]:
        report.log(f"warning: {found}")
    if found := training.metadata["diagnostics"]:
        report.log(f"note: {found}; {WAY_OUT}")
    if job.run.picture:
        picture = directory.path / "fields.png"
        try:
            draw(
                cause_images_of(problem.model, learned),
                training.source.shape,
                picture,
                f"{job.name}: {problem.model.H} fields",
            )
            report.log(f"picture of the fields: {picture}")
        except OSError as error:
            report.log(f"warning: {picture}: {error.strerror}; the result is complete without this picture")
    report.log(f"result: {directory.result}")


def summary_of(problem: Problem, ranks: Ranks) -> str:
    """Return the sizes of a run in one line."""
    blocks = -(-problem.shard.points // problem.shard.block)
    busy = min(blocks, ranks.size)
    idle = f", {ranks.size - busy} of them without points" if busy < ranks.size else ""
    count = problem.schedule.batches.count
    points = f"{problem.shard.points} points" + f" in {count} batches" * (count > 1)
    aside = "" if problem.holdout is None else f" and {problem.holdout.shard.points} held out"
    return (
        f"{points} of {problem.model.D} dimensions{aside}, {problem.model.H} causes, "
        f"{problem.scheme.description}, on {ranks.size} rank{'s' if ranks.size > 1 else ''}{idle}"
    )


def streaming_note(problem: Problem, job: Job, ranks: Ranks) -> str | None:
    """Return a message if the data of a rank exceed ``data.memory``; None otherwise."""
    tables, memory = [problem.rows, *([] if problem.holdout is None else [problem.holdout.rows])], job.data.memory
    sizes = [(len(rows) * rows.shape[1] * rows.dtype.itemsize, rows.nbytes) for rows in tables]
    total, kept = (int(ranks.max(sum(each))) for each in zip(*sizes, strict=True))
    if memory is None or total <= in_bytes(memory):
        return None
    least = f"; the buffers need {format_bytes(kept)}" if kept > in_bytes(memory) else ""
    return (
        f"a rank's rows, {format_bytes(total)}, exceed data.memory = {memory}: they are read again in every pass{least}"
    )


def initial_values(training: Training) -> str:
    """Return the scale of the data and the initial values of scalar parameters, in one line."""
    data, params = training.problem.summary, training.state.params
    scalars = ", ".join(f"{name} {float(value):.3g}" for name, value in params.items() if value.ndim == 0)
    return f"the data have mean {data.mean:.3g}, root mean square {data.rms:.3g} and spread {data.spread:.3g}" + (
        f"; initial values: {scalars}" if scalars else ""
    )


def expected_work(problem: Problem, job: Job, source: Source, ranks: Ranks) -> str:
    """Return the memory and work of the rank with the most points, in one line."""
    block = problem.shard.block
    need = demand_of(job, source, ranks.size)
    return (
        f"a rank has at most {need.points} points in blocks of {block}: {need.description()}; "
        f"{need.states:.3g} states per iteration"
    )
