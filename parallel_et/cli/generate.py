"""``python -m parallel_et generate DIR --points N``: points drawn from what a run has learned, written by all ranks."""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from parallel_et.cli import Parser, trusted_run
from parallel_et.control.progress import Reporter
from parallel_et.core.types import Params
from parallel_et.data.base import GROUP
from parallel_et.data.model import Drawn
from parallel_et.errors import UserError
from parallel_et.job.job import Job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source
from parallel_et.runs.stored_run import StoredRun, digest_of, read_together
from parallel_et.runs.trainer import installed
from parallel_et.storage.output import Table
from parallel_et.storage.row_pass import Sweep, count_rows

PIECE = 1 << 25
"""Bytes of points and states that are drawn and written at a time, or a group if that is more."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "generate",
        "Draw points from the model that a run has learned: FILE:/points, which a job or infer can read, with the "
        "causes that are active in each in FILE:/states. Given again, the command goes on where it was interrupted.",
        "mpirun -n 4 python -m parallel_et generate runs/job --points 100000 --output drawn.h5",
    )
    parser.add_argument("run", metavar="DIR", help="the directory of the run, which may still be going on")
    parser.add_argument("--points", metavar="N", type=int, required=True, help="how many")
    parser.add_argument("--output", metavar="FILE", default="generated.h5", help="generated.h5 by default")
    seed = "what is drawn follows from it and from what was learned alone; 1 by default"
    parser.add_argument("--seed", metavar="NUMBER", type=int, default=1, help=seed)
    sigma = "standard deviation of the noise, by default that of the run; 0 for none"
    parser.add_argument("--sigma", metavar="X", type=float, help=sigma)
    parser.add_running()
    parser.add_trust()
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
    sweep = Sweep(ranks, args.output, args.fresh, args.quiet, args.max_time)
    run = read_together(ranks, *trusted_run(args), sweep.report.say)
    params = run.params
    if args.sigma is not None:
        if "sigma" not in params:
            raise UserError(f"--sigma: expected a model with this parameter, found {run.job.model.name}")
        params = {**params, "sigma": np.array(args.sigma)}
    source = Drawn(run.model, params, args.points, args.seed, "generate", run.mean)
    source.shape = ranks.from_root(lambda: shape_of(run.job, source.dims, sweep.report))
    return sweep.run(lambda: generate(sweep, source, about(args, run, params)))


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


def about(args: argparse.Namespace, run: StoredRun, params: Params) -> dict[str, Any]:
    """What the points are of; an output that was interrupted goes on if it is the same."""
    return {
        "drawn from": args.run,
        "iteration": int(run.about["iteration"]),
        "model": run.job.model.name,
        **{name: float(value) for name, value in params.items() if value.ndim == 0},
        "seed": args.seed,
        "params sha256": digest_of(params),
        "job": run.job.toml(),
        "version parallel_et": installed("parallel_et"),
    }


def generate(sweep: Sweep, source: Drawn, what: dict[str, Any]) -> str:
    """Draw and write the points that are not yet written; returns where in the file they are."""
    ranks, N, H = sweep.ranks, source.points, source.model.latents.atoms
    tables = {
        "points": Table((N, *source.shape), np.float32),
        "states": Table((N, H), np.uint16 if source.model.latents.ordered else np.uint8),
    }
    arrays = {f"params/{name}": value for name, value in source.truth().items()}
    if source.mean is not None:
        arrays["data/mean"] = source.mean
    row = sum(table.row_bytes for table in tables.values())
    groups = max(1, min(PIECE // row, N // (4 * ranks.size)) // GROUP)  # at least a few pieces for each rank

    def make(first: int, last: int) -> dict[str, np.ndarray]:
        rows = {name: np.empty((last - first, *table.shape[1:]), table.dtype) for name, table in tables.items()}
        for place, points, states in source.drawn(first, last):
            rows["points"][place] = points.reshape(len(points), *source.shape)
            rows["states"][place] = states
        return rows

    with sweep.open(tables, what, arrays) as output:
        there = count_rows(output.written)
        sweep.report.say(
            f"{N} points of {source.dims} dimensions by {H} causes, on {ranks.size} rank"
            f"{'s' if ranks.size > 1 else ''}" + (f"; {there} are there already" if there else "")
        )
        sweep.fill(output, (GROUP, groups * GROUP), make)
    return ":/points"
