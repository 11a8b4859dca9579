"""``python -m parallel_et.infer DIR DATA``: what a trained model makes of every row, written by all ranks."""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.commands import STOPPED, Parser
from parallel_et.control.progress import Reporter
from parallel_et.control.stopping import Stopping, Wish
from parallel_et.core.contract import Params
from parallel_et.data.base import Source
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.io.lock import Lock
from parallel_et.io.output import Output, Table, discard
from parallel_et.parallel.ranks import Ranks
from parallel_et.parallel.team import Team
from parallel_et.runs.checked import job_of
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.inference import USUAL, WHAT, Inference
from parallel_et.runs.job import Job
from parallel_et.runs.result import Result
from parallel_et.runs.setup import largest_of, open_together, size_up

PIECE = 1 << 25
"""Bytes of rows and of what is inferred from them that are handled at a time, or a block if that is more."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "infer",
        "Infer the causes of every row of a file with the model that a run has learned. Given again, the command goes "
        "on where it was interrupted.",
        "mpirun -n 4 python -m parallel_et.infer runs/job patches.h5:/patches --output posterior.h5",
    )
    parser.add_argument("run", metavar="DIR", help="the directory of the run")
    data = 'rows of "file.h5:/dataset" or "file.npy"; "job" takes the data that the run was trained on'
    parser.add_argument("data", metavar="DATA", help=data)
    parser.add_argument("--output", metavar="FILE", default="posterior.h5", help="posterior.h5 by default")
    what = f"some of {','.join(WHAT)}; all but quality, which takes all 2^H states, by default"
    parser.add_argument("--what", metavar="NAMES", default=",".join(USUAL), help=what)
    parser.add_argument("--fresh", action="store_true", help="start over, also if FILE is there")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_trust()
    parser.add_max_time()
    args = parser.parse_args(argv)
    args.what = [name.strip() for name in args.what.split(",")]
    if wrong := [name for name in args.what if name not in WHAT]:
        parser.error(f"--what: expected some of {','.join(WHAT)}, found {','.join(wrong)}")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    report = Reporter(ranks.is_root, args.quiet)
    stopping = Stopping(args.max_time)
    job, params, run = trained(args, ranks, report)
    ranks.limit_threads(job.run.threads)
    own = args.data == "job"
    source = open_together(job, ranks) if own else ranks.from_root(lambda: FileRows(args.data))
    if source.dims != int(run["D"]):
        raise UserError(f"{source.name}: expected points of {run['D']} dimensions, found {source.dims}")
    lock = Lock(Path(f"{args.output}.lock"), args.output, report.say)
    ranks.from_root(lock.take)
    try:
        return infer(ranks, args, job, params, source, stopping, report)
    finally:
        lock.release()


def trained(args: argparse.Namespace, ranks: Ranks, report: Reporter) -> tuple[Job, Params, dict[str, Any]]:
    """Job, parameters and attributes of a run's result, or of its last checkpoint; all ranks call this together."""
    found: Result | None = None

    def find() -> tuple[Job, dict[str, tuple[int, ...]], dict[str, Any]]:
        nonlocal found
        directory = RunDirectory(args.run)
        found, name = directory.latest()
        report.say(f"{args.run}: the parameters of {name}, after {found.about['iteration']} iterations")
        job = job_of(found.about, name, directory.trusted(args.trust, args.model, args.scheme))
        return job, {name: value.shape for name, value in found.params.items()}, found.about

    job, shapes, about = ranks.from_root(find)
    empty = {name: np.empty(shape) for name, shape in shapes.items()}
    return job, ranks.share(empty if found is None else found.params), about


def infer(
    ranks: Ranks,
    args: argparse.Namespace,
    job: Job,
    params: Params,
    source: Source,
    stopping: Stopping,
    report: Reporter,
) -> int:
    """Infer what was asked for, piece by piece; returns the exit code."""
    model, scheme, block = size_up(job, source)
    inference = Inference(model, scheme, params, args.what)
    tables = {name: Table(shape, kind) for name, (shape, kind) in inference.tables(source.points).items()}
    output = open_output(Path(args.output), tables, ranks, about(job, params, source), args.fresh)
    row = source.dims * source.dtype().itemsize + sum(table.row_bytes for table in tables.values())
    blocks = -(-source.points // block)
    count = max(1, min(PIECE // (block * row), blocks // (4 * ranks.size)))  # at least a few pieces for each rank
    if "quality" in args.what:  # takes long
        count = 1
    todo = list(pieces(source.points, count * block, output.written))
    done = source.points - sum(last - first for first, last in todo)
    report.say(
        f"{source.points} points of {source.dims} dimensions, on {ranks.size} rank{'s' if ranks.size > 1 else ''}, "
        f"written by way of {output.way}" + (f"; {done} points are there already" if done else "")
    )
    report.begin(source.points, done)
    mine = todo[len(todo) * ranks.rank // ranks.size : len(todo) * (ranks.rank + 1) // ranks.size]
    team, longest, full = Team(job.run.threads), 0.0, 0
    for turn in range(-(-len(todo) // ranks.size)):
        begun, rows = time.monotonic(), 0
        with ranks.together():
            if turn < len(mine):
                rows = mine[turn][1] - mine[turn][0]
                full += one_piece(inference, source, team, block, *mine[turn], output)
        longest = max(longest, time.monotonic() - begun)
        done += ranks.total(rows)
        report.step(done, f"{done} of {source.points} points")
        if done < source.points and (wish := Wish(ranks.either(stopping.wish(1.2 * longest)))):
            output.abandon()
            again = "the same command" + (" without --fresh" if args.fresh else "")
            report.say(f"stopped by {wish.words()} after {done} points; {again} goes on")
            return STOPPED
    output.close()
    if full := ranks.total(full):
        report.say(f"{full} MAP states are as full as could be considered: more of the causes may be active")
    report.say(f"result: {args.output}")
    return 0


def about(job: Job, params: Params, source: Source) -> dict[str, str]:
    """What an output is of; a part of the same can be continued."""
    return {"data": source.name, "data state": source.state(), "job": job.toml(), "params sha256": digest_of(params)}


def digest_of(params: Params) -> str:
    """What tells these parameters from others."""
    return sha256(b"".join(np.asarray(value).tobytes() for value in params.values())).hexdigest()


def open_output(
    path: Path,
    tables: dict[str, Table],
    ranks: Ranks,
    what: Mapping[str, str | int],
    fresh: bool,
    arrays: Mapping[str, np.ndarray] = {},
) -> Output:
    """The file to write, or what there is of it; all ranks call this together."""

    def look() -> None:
        if path.is_dir():
            raise UserError(f"{path}: expected a file, found a directory")
        if fresh:
            discard(path)
        elif path.exists() and not path.with_name(path.name + ".part").exists():  # else it is being written anew
            raise UserError(f"{path}: expected a name that is not taken, found a file; --fresh writes it anew")

    ranks.from_root(look)
    return Output(path, tables, ranks, what, arrays=arrays)


def pieces(points: int, size: int, written: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The pieces [first, last) of ``size`` rows that are not written yet."""
    for first in range(0, points, size):
        last = min(first + size, points)
        if not any(a <= first and last <= b for a, b in written):
            yield first, last


def one_piece(
    inference: Inference, source: Source, team: Team, block: int, first: int, last: int, output: Output
) -> int:
    """Infer and write some rows; returns how many MAP states are full."""
    rows = source.read(first, last)
    found = {name: np.empty(shape, kind) for name, (shape, kind) in inference.tables(len(rows)).items()}

    def work(part: slice, thread: int) -> None:
        largest_of(rows[part, : source.dims], first + part.start, source.name)
        for name, values in inference.block(rows[part], first + part.start).items():
            found[name][part] = values

    team.share((slice(start, min(start + block, len(rows))) for start in range(0, len(rows), block)), work)
    try:
        output.write(first, found)
    except OSError as error:
        raise UserError(f"{output.path}: expected room to write, found {error.strerror}") from None
    return inference.full(found)
