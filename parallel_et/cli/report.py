"""``python -m parallel_et report DIR``: a page about a run, or about two runs side by side."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from parallel_et.cli import Parser, directory_and_files
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.chapters import write_report
from parallel_et.reports.run_comparison import write_comparison


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        "report",
        "Write a page, report.html, about a run: its fields, curves, and explained points; or about two runs side by "
        "side. The page contains its pictures, which are also written as files. One process is enough.",
        "python -m parallel_et report runs/demo",
    )
    one = "run directory; the run may still be in progress; a second run is shown side by side"
    parser.add_argument("run", metavar="DIR", nargs="+", help=one)
    where = "folder of the report; default: DIR/report, or DIR/report-NAME with the name of the second run"
    parser.add_argument("--output", metavar="FOLDER", help=where)
    rows = 'rows on which two runs are compared, "file.h5:/dataset" or "file.npy"; default: held-out rows'
    parser.add_argument("--data", metavar="FILE", help=rows)
    shape = "shape of a point for pictures, e.g. 16x16 or 2x16x16 (on and off channels); default: that of the data"
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
    """Run the command and return its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    ranks.limit_threads()
    runs = [directory_and_files(argparse.Namespace(**{**vars(args), "run": run})) for run in args.run]
    (directory, files), last = runs[0], Path(os.path.abspath(runs[-1][0].path)).name
    folder = Path(args.output or directory.path / ("report" if len(runs) == 1 else f"report-{last}"))

    def write(root: Ranks) -> None:
        if len(runs) == 1:
            write_report(directory, files, folder, args.shape, args.quiet)
        else:
            write_comparison(runs, folder, args.shape, args.data, args.quiet)

    ranks.run_on_root(write)
    return 0
