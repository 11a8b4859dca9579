"""``python -m parallel_et.train JOB.toml``: one run, on all ranks."""

import argparse
from collections.abc import Sequence

from parallel_et.commands import Parser
from parallel_et.demand import demand
from parallel_et.em import Problem
from parallel_et.errors import UserError
from parallel_et.io.directory import RunDirectory
from parallel_et.io.result import Result
from parallel_et.job import Job, differing_keys, read_job
from parallel_et.measure import recovery
from parallel_et.models.base import Params
from parallel_et.parallel.ranks import Ranks
from parallel_et.progress import Reporter
from parallel_et.run import run
from parallel_et.setup import open_source, set_up


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "train",
        "Train a model as a job file says, on all ranks; results go to a run directory.",
        "mpirun -n 4 python -m parallel_et.train jobs/demo.toml --set run.seed=2 --output runs/demo-2",
    )
    parser.add_job("the job file")
    parser.add_argument("--output", metavar="DIR", help="run directory, by default runs/<job name>")
    parser.add_argument("--fresh", action="store_true", help="start over; what is in DIR is kept aside")
    parser.add_argument("--dry-run", action="store_true", help="check job and data, say what would run, and stop")
    parser.add_argument("--quiet", action="store_true", help="print errors only; the log is written all the same")
    return parser.parse_args(argv)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    job = ranks.from_root(lambda: read_job(args.job, args.set))
    directory = RunDirectory(args.output or f"runs/{job.name}")
    report = Reporter(ranks.is_root, args.quiet)
    ranks.from_root(directory.check_place)
    if not args.fresh and (note := ranks.from_root(lambda: earlier_run(directory, job))) is not None:
        report.say(note)
        if ranks.from_root(lambda: directory.finished) and not args.dry_run:
            return 0
    if crowded := ranks.limit_threads(job.run.threads):
        report.say(f"warning: {crowded}")

    with ranks.together():
        source = open_source(job)
    problem, params, fingerprint = set_up(job, source, ranks)
    report.say(describe(problem, ranks))
    if problem.summary.negative > 0.5 and problem.model.nonnegative:
        share = f"{problem.summary.negative:.0%}"
        report.say(f"warning: {share} of the data is negative, the fields of {job.model.name} cannot be")
    if args.dry_run:
        report.say(f"{job.toml()}\n{expected_work(problem, ranks)}\nthe run would go to {directory.path}")
        return 0

    aside = ranks.from_root(lambda: begin(directory, job, args.fresh))
    report.log_to(directory.note)
    if aside is not None:
        report.say(f"what was there is kept in {aside}")
    report.begin(source.points, job.anneal.iterations)
    result = run(job, problem, params, ranks, source.truth(), {"data fingerprint": fingerprint}, report)
    if ranks.is_root:
        directory.finish(result)
        conclude(result, problem, job, source.shape, directory, report)
    return 0


def conclude(
    result: Result, problem: Problem, job: Job, shape: tuple[int, ...], directory: RunDirectory, report: Reporter
) -> None:
    """Tell what was learned and where it lies."""
    learned = Params(**result.params)
    if "W" in result.truth:
        report.say(str(recovery(problem.model, problem.scheme, learned, result.truth["W"])))
    if job.run.picture:
        from parallel_et.picture import draw_fields  # matplotlib takes its time to load

        picture = directory.path / "fields.png"
        draw_fields(learned.W, shape, picture, f"{job.name}: {learned.W.shape[1]} fields")
        report.say(f"picture of the fields: {picture}")
    report.say(f"result: {directory.result}")


def earlier_run(directory: RunDirectory, job: Job) -> str | None:
    """What to say of a run that is in the directory already; refuse one of another job."""
    stored = directory.stored_job()
    if stored is None:
        return None
    if differing := differing_keys(stored, job.resolved()):
        raise UserError(
            f"{directory.path}: holds a run of another job; use another --output, or --fresh to start over\n"
            + "\n".join(f"  {line}" for line in differing)
        )
    if directory.finished:
        return f"{directory.path}: this run is finished, its result is {directory.result}; --fresh runs it again"
    return f"{directory.path}: holds this run unfinished and without a checkpoint; it starts from the beginning"


def begin(directory: RunDirectory, job: Job, fresh: bool) -> str | None:
    """Make the run directory; returns where an earlier one went."""
    aside = directory.set_aside() if fresh else None
    directory.begin(job.toml())
    return None if aside is None else str(aside)


def describe(problem: Problem, ranks: Ranks) -> str:
    """The run in one line."""
    blocks = -(-problem.shard.points // problem.shard.block)
    busy = min(blocks, ranks.size)
    idle = f", {ranks.size - busy} of them without points" if busy < ranks.size else ""
    return (
        f"{problem.shard.points} points of {problem.model.D} dimensions, {problem.model.H} causes, "
        f"{len(problem.scheme.states)} states a point, on {ranks.size} rank{'s' if ranks.size > 1 else ''}{idle}"
    )


def expected_work(problem: Problem, ranks: Ranks) -> str:
    """Memory and work of the rank that has most."""
    shard, rows = problem.shard, problem.rows
    row = rows.shape[1] * rows.itemsize
    most = demand(problem.model, problem.scheme, shard.points, shard.block, row, ranks.size, problem.team.size)
    return (
        f"a rank has at most {most.points} points in blocks of {shard.block}: {most.data / 2**20:.1f} MiB of data, "
        f"{most.work / 2**20:.1f} MiB to work in, up to {most.posteriors / 2**20:.0f} MiB for posteriors, "
        f"{most.states:.3g} states an iteration"
    )
