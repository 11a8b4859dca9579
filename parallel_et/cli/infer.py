"""``python -m parallel_et infer DIR DATA``: posteriors of all rows of a file, written by all ranks."""

import argparse
from collections.abc import Sequence

import numpy as np

from parallel_et.cli import Parser, directory_and_files
from parallel_et.data.base import Source
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.inference.posterior import DEFAULT_QUANTITIES, QUANTITIES, Inference
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.threads import ThreadTeam
from parallel_et.runs.setup import largest_magnitudes, model_and_block_size, open_on_all_ranks
from parallel_et.runs.stored_run import StoredRun, params_digest, read_on_all_ranks
from parallel_et.storage.output import Table
from parallel_et.storage.row_pass import RowPass, count_rows

PIECE_BYTES = 1 << 25
"""Bytes of rows and of their inferred quantities that are processed at a time, at least one block."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        "infer",
        "Infer the causes of every row of a file with a trained model. The same command resumes after an interruption.",
        "mpirun -n 4 python -m parallel_et infer runs/job patches.h5:/patches --output posterior.h5",
    )
    parser.add_argument("run", metavar="DIR", help="run directory; the run may still be in progress")
    data = '"file.h5:/dataset" or "file.npy"; "job" uses the training data of the run'
    parser.add_argument("data", metavar="DATA", help=data)
    parser.add_argument("--output", metavar="FILE", default="posterior.h5", help="output file; default: posterior.h5")
    what = f"some of {','.join(QUANTITIES)}; default: all but quality, which needs all 2^H states"
    parser.add_argument("--what", metavar="NAMES", help=what)
    parser.add_running()
    parser.add_trust()
    args = parser.parse_args(argv)
    if args.what is not None:
        args.what = [name.strip() for name in args.what.split(",")]
    if wrong := [name for name in args.what or () if name not in QUANTITIES]:
        parser.error(f"--what: expected some of {','.join(QUANTITIES)}, found {','.join(wrong)}")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    row_pass = RowPass(ranks, args.output, args.fresh, args.quiet, args.max_time)
    run = read_on_all_ranks(ranks, *directory_and_files(args), row_pass.reporter.log)
    own = args.data == "job"
    source = open_on_all_ranks(run.job, ranks) if own else ranks.from_root(lambda: FileRows(args.data))
    if source.dims != run.model.D:
        raise UserError(f"{source.name}: expected points of {run.model.D} dimensions, found {source.dims}")
    return row_pass.run(lambda: infer_all(row_pass, run, run.centred(source), args.what))


def infer_all(row_pass: RowPass, run: StoredRun, source: Source, asked: Sequence[str] | None) -> str:
    """Infer and write the requested quantities piece by piece; return the name of the dataset, here empty."""
    ranks, report = row_pass.ranks, row_pass.reporter
    team = ThreadTeam(run.job.run.threads)
    full = 0
    model, scheme, block = model_and_block_size(run.job, source)
    if "candidates" in (asked or ()) and not scheme.candidates:
        expected = f"no candidates of a run with scheme {run.job.inference.scheme}, which has no preselection"
        raise UserError(f"--what: expected {expected}, found {','.join(asked or ())}")
    what = DEFAULT_QUANTITIES if asked is None else asked
    inference = Inference(model, scheme, run.params, what, run.mean)
    tables = {name: Table(shape, kind) for name, (shape, kind) in inference.tables(source.points).items()}
    row = source.dims * source.dtype().itemsize + sum(table.row_bytes for table in tables.values())
    blocks = -(-source.points // block)
    count = max(1, min(PIECE_BYTES // (block * row), blocks // (4 * ranks.size)))  # several pieces for each rank
    if "quality" in what:  # slow
        count = 1

    def make(first: int, last: int) -> dict[str, np.ndarray]:
        nonlocal full
        rows = source.read(first, last)
        found = {name: np.empty(shape, kind) for name, (shape, kind) in inference.tables(len(rows)).items()}

        def work(part: slice, thread: int) -> None:
            largest_magnitudes(rows[part, : source.dims], first + part.start, source.name)
            for name, values in inference.block(rows[part], first + part.start).items():
                found[name][part] = values

        team.map_blocks((slice(start, min(start + block, len(rows))) for start in range(0, len(rows), block)), work)
        full += inference.count_full_states(found)
        return found

    with row_pass.open(tables, metadata(run, source)) as output:
        written = count_rows(output.written)
        report.log(
            f"{source.points} points of {source.dims} dimensions, on {ranks.size} rank{'s' if ranks.size > 1 else ''}, "
            f"written with the writer {output.writer}" + (f"; {written} points already exist" if written else "")
        )
        row_pass.fill(output, (block, count * block), make, verb="")
    if full := ranks.total(full):
        report.log(f"{full} MAP states have as many causes as the search allows: more causes may be active")
    return ""


def metadata(run: StoredRun, source: Source) -> dict[str, str]:
    """Return the metadata of the output; an interrupted output is resumed if its metadata are the same."""
    return {
        "data": source.name,
        "data state": source.version(),
        "job": run.job.toml(),
        "params sha256": params_digest(run.params),
    }
