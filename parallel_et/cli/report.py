"""``python -m parallel_et report DIR``: what a run has learned, or two side by side, in one page."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from parallel_et.cli import Parser, trusted_run
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.chapters import write_report
from parallel_et.reports.run_comparison import write_comparison


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "report",
        "Show in one page, report.html, what a run has learned so far: its fields, its curves, how it explains points; "
        "or two runs side by side. The page holds its pictures, which also lie beside it. One process is enough.",
        "python -m parallel_et report runs/demo",
    )
    one = "the directory of a run, which may still be going on; a second one is put beside it"
    parser.add_argument("run", metavar="DIR", nargs="+", help=one)
    where = "where the report goes, by default DIR/report; of two runs DIR/report-NAME, with the name of the second"
    parser.add_argument("--output", metavar="FOLDER", help=where)
    rows = 'of two runs: rows whose evidence is compared, "file.h5:/dataset" or "file.npy"; by default those held out'
    parser.add_argument("--data", metavar="FILE", help=rows)
    shape = "shape of a point for the pictures, as 16x16 or 2x16x16 (on and off channels), by default that of the data"
    parser.add_argument("--shape", metavar="HxW", help=shape)
    parser.add_trust()
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    args = parser.parse_args(argv)
    if len(args.run) > 2:
        parser.error(f"DIR: expected one run or two, found {len(args.run)}")
    if args.data is not None and len(args.run) < 2:
        parser.error("--data: expected two runs, found one")
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
    runs = [trusted_run(argparse.Namespace(**{**vars(args), "run": run})) for run in args.run]
    (directory, files), last = runs[0], Path(os.path.abspath(runs[-1][0].path)).name
    folder = Path(args.output or directory.path / ("report" if len(runs) == 1 else f"report-{last}"))

    def write(root: Ranks) -> None:
        if len(runs) == 1:
            write_report(directory, files, folder, args.shape, args.quiet)
        else:
            write_comparison(runs, folder, args.shape, args.data, args.quiet)

    ranks.on_root_alone(write)
    return 0
