"""``python -m parallel_et generate DIR --points N``: points drawn from a trained model, written by all ranks."""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from parallel_et.cli import Parser, directory_and_files
from parallel_et.control.progress import Reporter
from parallel_et.core.types import Params
from parallel_et.data.base import GROUP_POINTS
from parallel_et.data.model import DrawnFromModel
from parallel_et.errors import UserError
from parallel_et.job.job import Job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source
from parallel_et.runs.stored_run import StoredRun, params_digest, read_on_all_ranks
from parallel_et.runs.trainer import installed
from parallel_et.storage.output import Table
from parallel_et.storage.row_pass import RowPass, count_rows

PIECE_BYTES = 1 << 25
"""Bytes of points and states that are drawn and written at a time, at least one group."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        "generate",
        "Draw points from a trained model: FILE:/points, a data source for jobs and infer, and the active causes of "
        "each point, FILE:/states. The same command resumes after an interruption.",
        "mpirun -n 4 python -m parallel_et generate runs/job --points 100000 --output drawn.h5",
    )
    parser.add_argument("run", metavar="DIR", help="run directory; the run may still be in progress")
    parser.add_argument("--points", metavar="N", type=int, required=True, help="number of points")
    parser.add_argument("--output", metavar="FILE", default="generated.h5", help="output file; default: generated.h5")
    seed = "the points depend only on the seed and the parameters; default: 1"
    parser.add_argument("--seed", metavar="NUMBER", type=int, default=1, help=seed)
    sigma = "standard deviation of the noise, 0 for none; default: that of the run"
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
    """Run the command and return its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    row_pass = RowPass(ranks, args.output, args.fresh, args.quiet, args.max_time)
    run = read_on_all_ranks(ranks, *directory_and_files(args), row_pass.reporter.log)
    params = run.params
    if args.sigma is not None:
        if "sigma" not in params:
            raise UserError(f"--sigma: expected a model with this parameter, found {run.job.model.name}")
        params = {**params, "sigma": np.array(args.sigma)}
    source = DrawnFromModel(run.model, params, args.points, args.seed, "generate", run.mean)
    source.shape = ranks.from_root(lambda: shape_of(run.job, source.dims, row_pass.reporter))
    return row_pass.run(lambda: generate(row_pass, source, metadata(args, run, params)))


def shape_of(job: Job, dims: int, report: Reporter) -> tuple[int, ...]:
    """Return the shape of the points of a run; a vector if it is not known."""
    try:
        source = open_source(job)
        if source.dims == dims:
            return source.shape
        reason = f"{source.name}: expected {dims} dimensions, found {source.dims}"
    except UserError as error:
        reason = str(error)
    if stated := getattr(job.data, "shape", None):
        return tuple(stated)
    report.log(f"warning: the shape of the points is not known, so they are written as vectors ({reason})")
    return (dims,)


def metadata(args: argparse.Namespace, run: StoredRun, params: Params) -> dict[str, Any]:
    """Return the metadata of the output; an interrupted output is resumed if its metadata are the same."""
    return {
        "drawn from": args.run,
        "iteration": int(run.metadata["iteration"]),
        "model": run.job.model.name,
        **{name: float(value) for name, value in params.items() if value.ndim == 0},
        "seed": args.seed,
        "params sha256": params_digest(params),
        "job": run.job.toml(),
        "version parallel_et": installed("parallel_et"),
    }


def generate(row_pass: RowPass, source: DrawnFromModel, what: dict[str, Any]) -> str:
    """Draw and write the missing points; return the name of their dataset."""
    ranks, N, H = row_pass.ranks, source.points, source.model.latents.atoms
    tables = {
        "points": Table((N, *source.shape), np.float32),
        "states": Table((N, H), np.uint16 if source.model.latents.ordered else np.uint8),
    }
    arrays = {f"params/{name}": value for name, value in source.truth().items()}
    if source.mean is not None:
        arrays["data/mean"] = source.mean
    row = sum(table.row_bytes for table in tables.values())
    groups = max(1, min(PIECE_BYTES // row, N // (4 * ranks.size)) // GROUP_POINTS)  # several pieces for each rank

    def make(first: int, last: int) -> dict[str, np.ndarray]:
        rows = {name: np.empty((last - first, *table.shape[1:]), table.dtype) for name, table in tables.items()}
        for place, points, states in source.draw_groups(first, last):
            rows["points"][place] = points.reshape(len(points), *source.shape)
            rows["states"][place] = states
        return rows

    with row_pass.open(tables, what, arrays) as output:
        written = count_rows(output.written)
        row_pass.reporter.log(
            f"{N} points of {source.dims} dimensions by {H} causes, on {ranks.size} rank"
            f"{'s' if ranks.size > 1 else ''}" + (f"; {written} already exist" if written else "")
        )
        row_pass.fill(output, (GROUP_POINTS, groups * GROUP_POINTS), make)
    return ":/points"
