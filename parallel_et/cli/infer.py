"""``python -m parallel_et infer DIR DATA``: what a trained model makes of every row, written by all ranks."""

import argparse
from collections.abc import Sequence

import numpy as np

from parallel_et.cli import Parser, trusted_run
from parallel_et.data.base import Source
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.inference.posterior import USUAL, WHAT, Inference
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.threads import Team
from parallel_et.runs.setup import largest_of, open_together, size_up
from parallel_et.runs.stored_run import StoredRun, digest_of, read_together
from parallel_et.storage.output import Table
from parallel_et.storage.row_pass import Sweep, count_rows

PIECE = 1 << 25
"""Bytes of rows and of what is inferred from them that are handled at a time, or a block if that is more."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "infer",
        "Infer the causes of every row of a file with the model that a run has learned. Given again, the command goes "
        "on where it was interrupted.",
        "mpirun -n 4 python -m parallel_et infer runs/job patches.h5:/patches --output posterior.h5",
    )
    parser.add_argument("run", metavar="DIR", help="the directory of the run")
    data = 'rows of "file.h5:/dataset" or "file.npy"; "job" takes the data that the run was trained on'
    parser.add_argument("data", metavar="DATA", help=data)
    parser.add_argument("--output", metavar="FILE", default="posterior.h5", help="posterior.h5 by default")
    what = f"some of {','.join(WHAT)}; by default all that there are but quality, which takes all 2^H states"
    parser.add_argument("--what", metavar="NAMES", help=what)
    parser.add_running()
    parser.add_trust()
    args = parser.parse_args(argv)
    if args.what is not None:
        args.what = [name.strip() for name in args.what.split(",")]
    if wrong := [name for name in args.what or () if name not in WHAT]:
        parser.error(f"--what: expected some of {','.join(WHAT)}, found {','.join(wrong)}")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    sweep = Sweep(ranks, args.output, args.fresh, args.quiet, args.max_time)
    run = read_together(ranks, *trusted_run(args), sweep.report.say)
    own = args.data == "job"
    source = open_together(run.job, ranks) if own else ranks.from_root(lambda: FileRows(args.data))
    if source.dims != run.model.D:
        raise UserError(f"{source.name}: expected points of {run.model.D} dimensions, found {source.dims}")
    return sweep.run(lambda: infer_all(sweep, run, run.seen(source), args.what))


def infer_all(sweep: Sweep, run: StoredRun, source: Source, asked: Sequence[str] | None) -> str:
    """Infer what was asked for, by default the usual, piece by piece; returns where in the file it is."""
    ranks, report = sweep.ranks, sweep.report
    team = Team(run.job.run.threads)
    full = 0
    model, scheme, block = size_up(run.job, source)
    if "candidates" in (asked or ()) and not scheme.candidates:
        expected = f"no candidates of a run of scheme {run.job.inference.scheme}, which preselects none for a point"
        raise UserError(f"--what: expected {expected}, found {','.join(asked or ())}")
    what = USUAL if asked is None else asked
    inference = Inference(model, scheme, run.params, what, run.mean)
    tables = {name: Table(shape, kind) for name, (shape, kind) in inference.tables(source.points).items()}
    row = source.dims * source.dtype().itemsize + sum(table.row_bytes for table in tables.values())
    blocks = -(-source.points // block)
    count = max(1, min(PIECE // (block * row), blocks // (4 * ranks.size)))  # at least a few pieces for each rank
    if "quality" in what:  # takes long
        count = 1

    def make(first: int, last: int) -> dict[str, np.ndarray]:
        nonlocal full
        rows = source.read(first, last)
        found = {name: np.empty(shape, kind) for name, (shape, kind) in inference.tables(len(rows)).items()}

        def work(part: slice, thread: int) -> None:
            largest_of(rows[part, : source.dims], first + part.start, source.name)
            for name, values in inference.block(rows[part], first + part.start).items():
                found[name][part] = values

        team.share((slice(start, min(start + block, len(rows))) for start in range(0, len(rows), block)), work)
        full += inference.full(found)
        return found

    with sweep.open(tables, about(run, source)) as output:
        there = count_rows(output.written)
        report.say(
            f"{source.points} points of {source.dims} dimensions, on {ranks.size} rank{'s' if ranks.size > 1 else ''}, "
            f"written by way of {output.way}" + (f"; {there} points are there already" if there else "")
        )
        sweep.fill(output, (block, count * block), make, does="")
    if full := ranks.total(full):
        report.say(f"{full} MAP states are as full as could be considered: more of the causes may be active")
    return ""


def about(run: StoredRun, source: Source) -> dict[str, str]:
    """What an output is of; a part of the same can be continued."""
    return {
        "data": source.name,
        "data state": source.state(),
        "job": run.job.toml(),
        "params sha256": digest_of(run.params),
    }
