"""A job trained in its run directory, and what is told of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallel_et.control.process import readable
from parallel_et.control.progress import Reporter
from parallel_et.control.signals import NOT_BEGUN, STOPPED
from parallel_et.control.stopping import Stopping, Wish
from parallel_et.core.capabilities import pictures_of
from parallel_et.core.schema import in_bytes
from parallel_et.data.base import Source
from parallel_et.em.problem import Problem
from parallel_et.errors import UserError
from parallel_et.inference.diagnostics import WAY_OUT, notes
from parallel_et.inference.recovery import causes_of, recovery
from parallel_et.job.job import HARMLESS, Job, read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.checkpointer import Claim, Keeper
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.setup import demand_of
from parallel_et.runs.trainer import IterationLog, Training, begin

Draw = Callable[[np.ndarray, tuple[int, ...], Path, str], None]


@dataclass(frozen=True)
class TrainOptions:
    """What the command can be told, in its words; ``max_time`` in seconds since the start of the process."""

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
            if key not in HARMLESS:
                raise UserError(f"--allow: expected {' or '.join(HARMLESS)}, found {key}")


def train_job(ranks: Ranks, options: TrainOptions, draw: Draw) -> int:
    """Train as the job says, or go on; all ranks call this together. Returns the exit code.

    Parameters
    ----------
    draw : makes a picture of the fields (D, H), of which each has a shape, with a title
    """
    job = ranks.from_root(lambda: read_job(options.job, options.set))
    directory = RunDirectory(options.output or f"runs/{job.name}")
    stopping = Stopping(options.max_time, directory.stop if ranks.is_root else None)
    report = Reporter(ranks.is_root, options.quiet)
    claim = Claim(directory, job, report.say, options.allow, options.fresh)
    ranks.from_root(claim.check)
    if crowded := ranks.limit_threads(job.run.threads):
        report.say(f"warning: {crowded}")
    training = begin(job, ranks)
    problem, source = training.problem, training.source
    if options.dry_run:
        report.say(f"{describe(problem, ranks)}\n{job.toml()}\n{expected_work(problem, job, source, ranks)}")
        for line in (expected_start(training), *notes(problem, training.state.params, job.model.name)):
            report.say(line)
        report.say(streaming(problem, job, ranks) or "a rank keeps all its rows in memory")
        report.say(f"the run would go to {directory.path}")
        return 0

    if ranks.either(stopping.wish(0.0) & Wish.SIGNAL):  # while data were read, which may take long
        report.say(NOT_BEGUN)
        return STOPPED
    keeper = Keeper(claim, ranks)
    with keeper.keeping(training):
        if keeper.finished:
            report.say(
                f"{directory.path}: this run is finished, its result is {directory.result}; --fresh runs it again"
            )
            return 0
        report.say(describe(problem, ranks))
        if (note := streaming(problem, job, ranks)) is not None:
            report.say(note)
        if training.state.iteration == 0:
            for line in notes(problem, training.state.params, job.model.name):
                report.say(line)
        report.begin(job.anneal.iterations, training.state.iteration, source.points)
        keeper.begin()
        report.log_to(directory.note)
        log = IterationLog(report)
        for info in keeper.iterations(stopping):
            if ranks.is_root:
                log.add(training.state.params, info)
        if not training.ended:
            done, saved = training.state.iteration, keeper.written_at
            report.say(
                f"stopped by {keeper.stopped.words()} after {done} iterations; "
                f"the same command{' without --fresh' if options.fresh else ''} goes on"
                + (f" from iteration {saved}: there is no checkpoint of those after it" if saved < done else "")
            )
            return STOPPED if saved == done else 1
        if ranks.is_root:
            conclude(training, job, directory, report, draw)
    return 0


def conclude(training: Training, job: Job, directory: RunDirectory, report: Reporter, draw: Draw) -> None:
    """Tell what was learned and where it lies."""
    learned, problem = training.state.params, training.problem
    if "W" in training.truth:
        report.say(str(recovery(problem.model, problem.scheme, learned, causes_of(training.truth, problem.model.D))))
    if found := training.about["limits"]:
        report.say(f"warning: {found}")
    if found := training.about["doubts"]:
        report.say(f"note: {found}; {WAY_OUT}")
    if job.run.picture:
        picture = directory.path / "fields.png"
        try:
            draw(
                pictures_of(problem.model, learned),
                training.source.shape,
                picture,
                f"{job.name}: {problem.model.H} fields",
            )
            report.say(f"picture of the fields: {picture}")
        except OSError as error:
            report.say(f"warning: {picture}: {error.strerror}; the result is not touched by that")
    report.say(f"result: {directory.result}")


def describe(problem: Problem, ranks: Ranks) -> str:
    """The run in one line."""
    blocks = -(-problem.shard.points // problem.shard.block)
    busy = min(blocks, ranks.size)
    idle = f", {ranks.size - busy} of them without points" if busy < ranks.size else ""
    count = problem.schedule.batches.count
    points = f"{problem.shard.points} points" + f" in {count} batches" * (count > 1)
    aside = "" if problem.held is None else f" and {problem.held.shard.points} held out"
    return (
        f"{points} of {problem.model.D} dimensions{aside}, {problem.model.H} causes, "
        f"{problem.scheme.words}, on {ranks.size} rank{'s' if ranks.size > 1 else ''}{idle}"
    )


def streaming(problem: Problem, job: Job, ranks: Ranks) -> str | None:
    """What to say if the rank that has most does not keep its rows."""
    tables, memory = [problem.rows, *([] if problem.held is None else [problem.held.rows])], job.data.memory
    sizes = [(len(rows) * rows.shape[1] * rows.dtype.itemsize, rows.nbytes) for rows in tables]
    most, held = (int(ranks.max(sum(each))) for each in zip(*sizes, strict=True))
    if memory is None or most <= in_bytes(memory):
        return None
    least = f"; it takes {readable(held)} to do so" if held > in_bytes(memory) else ""
    return (
        f"a rank's rows, {readable(most)}, are more than data.memory = {memory}: "
        f"they are read again in every pass{least}"
    )


def expected_start(training: Training) -> str:
    """What the data are like, and with which numbers the run begins."""
    data, params = training.problem.summary, training.state.params
    begins = ", ".join(f"{name} {float(value):.3g}" for name, value in params.items() if value.ndim == 0)
    return (
        f"the values of the data have mean {data.mean:.3g}, root mean square {data.rms:.3g} and spread "
        f"{data.spread:.3g}" + (f"; it begins with {begins}" if begins else "")
    )


def expected_work(problem: Problem, job: Job, source: Source, ranks: Ranks) -> str:
    """Memory and work of the rank that has most."""
    block = problem.shard.block
    most = demand_of(job, source, ranks.size)
    return (
        f"a rank has at most {most.points} points in blocks of {block}: {most.words()}; "
        f"{most.states:.3g} states an iteration"
    )
