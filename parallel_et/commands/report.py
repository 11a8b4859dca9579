"""``python -m parallel_et.report DIR``: what a run has learned, in one page."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from parallel_et.commands import Parser, trusted_run
from parallel_et.parallel.ranks import Ranks
from parallel_et.report.contents import write_report


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "report",
        "Show in one page, report.html, what a run has learned so far: its fields, its curves, how it explains points. "
        "The page holds its pictures, which also lie beside it. One process is enough.",
        "python -m parallel_et.report runs/demo",
    )
    parser.add_argument("run", metavar="DIR", help="the directory of the run, which may still be going on")
    parser.add_argument("--output", metavar="FOLDER", help="where the report goes, by default DIR/report")
    shape = "shape of a point for the pictures, as 16x16 or 2x16x16 (on and off channels), by default that of the data"
    parser.add_argument("--shape", metavar="HxW", help=shape)
    parser.add_trust()
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    args = parser.parse_args(argv)
    if args.shape is not None:
        numbers = args.shape.split("x")
        if not all(number.isdecimal() and int(number) > 0 for number in numbers):
            parser.error(f"--shape: expected numbers as in 16x16, found {args.shape}")
        args.shape = tuple(map(int, numbers))
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    ranks.limit_threads()
    directory, files = trusted_run(args)
    folder = Path(args.output or directory.path / "report")
    ranks.on_root_alone(lambda root: write_report(directory, files, folder, args.shape, args.quiet))
    return 0
