"""``python -m parallel_et.train JOB.toml``: one run, on all ranks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parallel_et.cli import Parser
from parallel_et.job.job import CHANGEABLE_KEYS
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.train_job import TrainOptions, train_job


def arguments(argv: Sequence[str]) -> TrainOptions:
    """Parse the command line."""
    parser = Parser(
        "train",
        "Train a model as described by a job file, on all ranks. Results are written to a run directory. The same "
        "command resumes an unfinished run.",
        "mpirun -n 4 python -m parallel_et.train jobs/demo.toml --set run.seed=2 --output runs/demo-2",
    )
    parser.add_job("job file")
    parser.add_argument("--output", metavar="DIR", help="run directory; default: runs/<job name>")
    parser.add_argument("--fresh", action="store_true", help="start over; an earlier run in DIR is renamed")
    may = f"resume although this key differs from the run in DIR: {', '.join(CHANGEABLE_KEYS)}"
    parser.add_argument("--allow", metavar="KEY", action="append", default=[], help=may)
    parser.add_max_time()
    parser.add_argument(
        "--dry-run", action="store_true", help="check job and data, print the sizes of the run, and exit"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only; the log file is complete")
    return parser.options(argv, TrainOptions)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return train_job(ranks, ranks.from_root(lambda: arguments(argv)), draw)


def draw(W: np.ndarray, shape: tuple[int, ...], path: Path, title: str) -> None:
    """Draw the fields of a run; matplotlib is slow to import."""
    from parallel_et.reports.pictures import draw_fields

    draw_fields(W, shape, path, title)
