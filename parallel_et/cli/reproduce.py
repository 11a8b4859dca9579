"""``python -m parallel_et reproduce et-2010``: the experiments of a paper, compared with its published figures."""

import argparse
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from parallel_et.cli import EXIT_STOPPED, Parser
from parallel_et.control.progress import Reporter
from parallel_et.control.signals import ctrl_c_reply
from parallel_et.control.stopping import Request, StopMonitor
from parallel_et.errors import UserError
from parallel_et.job.job import JOBS
from parallel_et.papers.kinds import KINDS, real_data_rows
from parallel_et.papers.samples import write_sample_curve
from parallel_et.papers.sources import count_points, data_names, describe_data, find_own_data, prepare_data
from parallel_et.papers.table import Row, format_table, title_of
from parallel_et.papers.variants import slug
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.train_job import TrainOptions
from parallel_et.storage.atomic import unwritable_reason, write_atomically
from parallel_et.trials.runner import TrialsOptions


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    papers = sorted(path.parent.name for path in JOBS.glob("*/table.toml"))
    parser = Parser(
        "reproduce",
        "Run the experiments of a paper, the jobs in jobs/PAPER, and write a table of published results and results "
        "of these runs. The same command resumes after an interruption.",
        "mpirun -n 2 python -m parallel_et reproduce et-2010",
    )
    parser.add_argument("paper", metavar="PAPER", help=" or ".join(papers))
    parser.add_argument(
        "--only", metavar="JOB", nargs="+", help="run only these experiments; the table is table-only.md"
    )
    parser.add_argument(
        "--trials",
        metavar="N",
        type=int,
        help="trials of each experiment on artificial data; default: the number of the experiment, usually 100",
    )
    own = (
        "folder with your own data, which replace data of the package: digits.npy (an array, a digit per row), grass "
        "(an image, or a folder of them), photos, large-photos and channels (likewise), sound (a wave file, or a "
        "folder of them), phonemes (a folder of wave files), icons (a folder of PNG files)"
    )
    parser.add_argument("--data", metavar="FOLDER", help=own)
    parser.add_argument("--output", metavar="FOLDER", help="output folder; default: runs/PAPER")
    parser.add_max_time()
    args = parser.parse_args(argv)
    if args.paper not in papers:
        parser.error(f"expected {' or '.join(papers)}, found {args.paper}")
    if args.trials is not None and args.trials < 1:
        parser.error(f"--trials: expected a positive number, found {args.trials}")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    with ctrl_c_reply("after the current experiment"):
        return reproduce(ranks, args)


def reproduce(ranks: Ranks, args: argparse.Namespace) -> int:
    """Run the experiments one after the other and write the table; return the exit code."""
    table = ranks.from_root(lambda: chosen(args))
    log = Reporter(ranks.is_root, quiet=False).log
    folder = Path(args.output or f"runs/{args.paper}")
    stopping = StopMonitor(args.max_time)  # commands that run inside have their own time limit
    own = ranks.from_root(lambda: find_own_data(args.data))
    ranks.from_root(lambda: make_folder(folder))
    sources: dict[str, str] = {}
    words = {name: describe_data(name, own) for name in data_names(table)}
    for name in words:  # before long computations
        log(f"data: {name}, {words[name]}")
        place = folder / ("own-data" if name in own else "data")  # separate folders, to avoid confusion
        ranks.from_root(partial(make_folder, place))
        sources[name] = prepare_data(name, place, own.get(name), ranks)
    rows: list[Row] = []
    path = folder / ("table-only.md" if args.only else "table.md")
    for experiment in table["experiment"]:
        if request := Request(ranks.bitwise_or(stopping.requested(0.0))):
            log(f"stopped by {request.reasons()} before {title_of(experiment)}; the same command resumes")
            return EXIT_STOPPED
        log(f"{title_of(experiment)}:")
        job = str(JOBS / args.paper / f"{experiment['job']}.toml")
        if "data" in experiment and "kind" not in experiment:
            source = sources[experiment["data"]]
            settings = [f"data.source={source}"]
            if experiment["data"] in own:  # all rows
                settings.append(f"data.points={ranks.from_root(partial(count_points, source))}")
            new, runs = [], []
            for name, more in experiment.get("variants", {"": []}).items():
                place = folder / "-".join(filter(None, [experiment["job"], slug(name)]))
                runs.append(place)
                options = TrainOptions(job, [*settings, *more], max_time=args.max_time)
                if not (one := real_data_rows(ranks, experiment, options, place, log)):
                    return EXIT_STOPPED
                new += [replace(row, job=": ".join(filter(None, [row.job, name]))) for row in one]
            if experiment.get("curve"):
                write_sample_curve(ranks, runs, folder / f"{experiment['job']}.png")
        else:
            count = args.trials or experiment["trials"]
            first = experiment.get("seed", table["seed"])
            seeds = range(first, first + count)
            made = [f"data.waves={sources[experiment['data']]}"] if "data" in experiment else []
            settings = [f"run.seed={first}", *experiment.get("set", ()), *made]
            if "folder" in experiment:
                settings.append(f"data.folder={sources[experiment['folder']]}")
            trials = TrialsOptions(job, settings, count, max_time=args.max_time)
            kind = KINDS[experiment.get("kind", "trials")]
            variant = f"-{slug(experiment['variant'])}" if "variant" in experiment else ""
            new = kind(ranks, experiment, trials, folder / f"{experiment['job']}{variant}", seeds)
        if not new:
            return EXIT_STOPPED
        rows.extend(new)
        ranks.from_root(lambda: write_atomically(path, format_table(table, rows, words).encode()))
    log(f"\n{format_table(table, rows, words)}\nresult: {path}")
    return 0


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """Return the table of the paper with the selected experiments."""
    table = tomllib.loads((JOBS / args.paper / "table.toml").read_text())
    names = [experiment["job"] for experiment in table["experiment"]]
    for name in args.only or ():
        if name not in names:
            near = get_close_matches(name, names, 1)
            raise UserError(f"--only: expected {near[0] if near else ', '.join(names)}, found {name}")
    default = [row["job"] for row in table["experiment"] if not row.get("asked")]
    table["experiment"] = [row for row in table["experiment"] if row["job"] in (args.only or default)]
    return table


def make_folder(folder: Path) -> None:
    """Create a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = unwritable_reason(folder, error, parents=True)
        raise UserError(f"{folder}: expected a folder to write to, found {why}") from None
