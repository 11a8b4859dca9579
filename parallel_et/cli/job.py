"""``python -m parallel_et job MODEL``: a first job with comments, which runs without changes."""

import argparse
import sys
from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError, suggestion
from parallel_et.job.job import JOBS
from parallel_et.job.starter import description_of, first_job, model_names, names_and_aliases
from parallel_et.parallel.communicator import Ranks


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        "job",
        "Print a first job, which runs without changes. Without a name, list all models and jobs.",
        "parallel-et job linca > job.toml\n  parallel-et job linca patches.h5:/patches > job.toml",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="a model, or a job of the package")
    data = 'data of the job, "file.h5:/dataset" or "file.npy"; default: artificial data'
    parser.add_argument("data", metavar="DATA", nargs="?", help=data)
    return parser.parse_args(argv)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    ranks.from_root(lambda: sys.stdout.write(text_for(arguments(argv))))
    return 0


def text_for(args: argparse.Namespace) -> str:
    """Return the text to print."""
    shipped = {path.stem: path for path in sorted(JOBS.glob("*.toml"), key=lambda path: path.stem)}
    if args.name is None:
        lines = [f"  {name:<11} {description_of(name)}" for name in model_names()]
        lines += ["jobs of the package:"]
        titles = {name: path.read_text().partition("\n")[0].lstrip("# ") for name, path in shipped.items()}
        lines += [f"  {name:<11} {title.partition('. ')[0].rstrip('.')}." for name, title in titles.items()]
        return "\n".join(["models with a first job:", *lines, "parallel-et job NAME > job.toml writes one of them", ""])
    if args.name in names_and_aliases():
        return first_job(args.name, None if args.data is None else FileRows(args.data))
    if args.name not in shipped:
        known = [*model_names(), *shipped]
        raise UserError(f"job: expected {', '.join(known)}, found {args.name}{suggestion(args.name, known)}")
    if args.data is not None:
        raise UserError(f"job: expected DATA with a model only, found {args.data} with {args.name}")
    return shipped[args.name].read_text()
