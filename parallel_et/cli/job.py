"""``python -m parallel_et job MODEL``: a job with comments that runs as it stands, to begin with."""

import argparse
import sys
from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError, meant
from parallel_et.job.job import JOBS
from parallel_et.job.starter import does, every, first_job, names
from parallel_et.parallel.communicator import Ranks


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "job",
        "Print a job to begin with, which runs as it stands; without a name, list what there is.",
        "parallel-et job linca > job.toml\n  parallel-et job linca patches.h5:/patches > job.toml",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="a model, or a job that comes with the package")
    data = 'for a model: rows to learn from, "file.h5:/dataset" or "file.npy"; by default artificial ones'
    parser.add_argument("data", metavar="DATA", nargs="?", help=data)
    return parser.parse_args(argv)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    ranks.from_root(lambda: sys.stdout.write(text_for(arguments(argv))))
    return 0


def text_for(args: argparse.Namespace) -> str:
    """What to print."""
    shipped = {path.stem: path for path in sorted(JOBS.glob("*.toml"), key=lambda path: path.stem)}
    if args.name is None:
        lines = [f"  {name:<11} {does(name)}" for name in names()]
        lines += ["jobs that come with the package:"]
        titles = {name: path.read_text().partition("\n")[0].lstrip("# ") for name, path in shipped.items()}
        lines += [f"  {name:<11} {title.partition('. ')[0].rstrip('.')}." for name, title in titles.items()]
        return "\n".join(["a first job for a model:", *lines, "parallel-et job NAME > job.toml writes one", ""])
    if args.name in every():
        return first_job(args.name, None if args.data is None else FileRows(args.data))
    if args.name not in shipped:
        known = [*names(), *shipped]
        raise UserError(f"job: expected {', '.join(known)}, found {args.name}{meant(args.name, known)}")
    if args.data is not None:
        raise UserError(f"job: expected DATA with a model only, found {args.data} with {args.name}")
    return shipped[args.name].read_text()
