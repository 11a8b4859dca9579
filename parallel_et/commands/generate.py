"""``python -m parallel_et.generate DIR --points N``: points drawn from what a run has learned, written by all ranks."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.commands import STOPPED, Parser
from parallel_et.commands.infer import digest_of, open_output, pieces, trained
from parallel_et.control.progress import Reporter
from parallel_et.control.stopping import Stopping
from parallel_et.data.base import GROUP
from parallel_et.data.model import Drawn
from parallel_et.errors import UserError
from parallel_et.io.lock import Lock
from parallel_et.io.output import Output, Table
from parallel_et.parallel.ranks import Ranks
from parallel_et.prepare.cutting import StoppedError, Sweep
from parallel_et.runs.job import Job
from parallel_et.runs.setup import model_of, open_source
from parallel_et.runs.training import installed

PIECE = 1 << 25
"""Bytes of points and states that are drawn and written at a time, or a group if that is more."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "generate",
        "Draw points from the model that a run has learned: FILE:/points, which a job or infer can read, with the "
        "causes that are active in each in FILE:/states. Given again, the command goes on where it was interrupted.",
        "mpirun -n 4 python -m parallel_et.generate runs/job --points 100000 --output drawn.h5",
    )
    parser.add_argument("run", metavar="DIR", help="the directory of the run, which may still be going on")
    parser.add_argument("--points", metavar="N", type=int, required=True, help="how many")
    parser.add_argument("--output", metavar="FILE", default="generated.h5", help="generated.h5 by default")
    seed = "what is drawn follows from it and from what was learned alone; 1 by default"
    parser.add_argument("--seed", metavar="NUMBER", type=int, default=1, help=seed)
    sigma = "standard deviation of the noise, by default that of the run; 0 for none"
    parser.add_argument("--sigma", metavar="X", type=float, help=sigma)
    parser.add_argument("--fresh", action="store_true", help="start over, also if FILE is there")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_trust()
    parser.add_max_time()
    args = parser.parse_args(argv)
    for option, good, expected in (
        ("points", 0 < args.points < 2**48, "a positive number"),
        ("seed", 0 <= args.seed < 2**63, "a number from 0 to 2^63 - 1"),
        ("sigma", args.sigma is None or 0 <= args.sigma < np.inf, "a number of 0 or more"),
    ):
        if not good:
            parser.error(f"--{option}: expected {expected}, found {vars(args)[option]}")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    report = Reporter(ranks.is_root, args.quiet)
    sweep = Sweep(ranks, report, Stopping(args.max_time))
    ranks.limit_threads()
    job, params, run = trained(args, ranks, report)
    if args.sigma is not None:
        if "sigma" not in params:
            raise UserError(f"--sigma: expected a model with this parameter, found {job.model.name}")
        params = {**params, "sigma": np.array(args.sigma)}
    source = Drawn(model_of(job, int(run["D"]))[0], params, args.points, args.seed, "generate")
    source.shape = ranks.from_root(lambda: shape_of(job, source.dims, report))
    lock = Lock(Path(f"{args.output}.lock"), args.output, report.say)
    ranks.from_root(lock.take)
    try:
        generate(args, source, sweep, about(args, job, source, run))
    except StoppedError as early:
        report.say(f"{early}; the same command{' without --fresh' if args.fresh else ''} goes on")
        return STOPPED
    finally:
        lock.release()
    report.say(f"result: {args.output}:/points")
    return 0


def shape_of(job: Job, dims: int, report: Reporter) -> tuple[int, ...]:
    """The shape of the points of a run, as far as that can still be told."""
    try:
        source = open_source(job)
        if source.dims == dims:
            return source.shape
        trouble = f"{source.name}: expected {dims} dimensions, found {source.dims}"
    except UserError as error:
        trouble = str(error)
    if stated := getattr(job.data, "shape", None):
        return tuple(stated)
    report.say(f"warning: the shape of the run's points is not known, these are vectors ({trouble})")
    return (dims,)


def about(args: argparse.Namespace, job: Job, source: Drawn, run: dict[str, Any]) -> dict[str, Any]:
    """What the points are of; an output that was interrupted goes on if it is the same."""
    return {
        "drawn from": args.run,
        "iteration": int(run["iteration"]),
        "model": job.model.name,
        **{name: float(value) for name, value in source.params.items() if value.ndim == 0},
        "seed": args.seed,
        "params sha256": digest_of(source.params),
        "job": job.toml(),
        "version parallel_et": installed("parallel_et"),
    }


def generate(args: argparse.Namespace, source: Drawn, sweep: Sweep, what: dict[str, Any]) -> None:
    """Draw and write the points that are not yet written; all ranks call this together."""
    ranks, report, N, H = sweep.ranks, sweep.report, source.points, source.model.latents.atoms
    tables = {"points": Table((N, *source.shape), np.float32), "states": Table((N, H), np.uint8)}
    arrays = {f"params/{name}": value for name, value in source.truth().items()}
    with open_output(Path(args.output), tables, ranks, what, args.fresh, arrays) as output:
        there = sum(last - first for first, last in output.written)
        report.say(
            f"{N} points of {source.dims} dimensions by {H} causes, on {ranks.size} rank"
            f"{'s' if ranks.size > 1 else ''}" + (f"; {there} are there already" if there else "")
        )
        row = sum(table.row_bytes for table in tables.values())
        groups = max(1, min(PIECE // row, N // (4 * ranks.size)) // GROUP)  # at least a few pieces for each rank
        todo = list(pieces(N, groups * GROUP, output.written))
        sweep.over(todo, N, "points", "written", lambda first, last: one_piece(source, first, last, output))


def one_piece(source: Drawn, first: int, last: int, output: Output) -> None:
    """Draw and write some rows."""
    rows = {name: np.empty((last - first, *t.shape[1:]), t.dtype) for name, t in output.tables.items()}
    for place, points, states in source.drawn(first, last):
        rows["points"][place] = points.reshape(len(points), *source.shape)
        rows["states"][place] = states
    try:
        output.write(first, rows)
    except OSError as error:
        raise UserError(f"{output.path}: expected room to write, found {error.strerror}") from None
