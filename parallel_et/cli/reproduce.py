"""``python -m parallel_et reproduce et-2010``: the experiments of a paper, beside the figures that it prints."""

import argparse
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from parallel_et.cli import STOPPED, Parser
from parallel_et.control.progress import Reporter
from parallel_et.control.signals import stops
from parallel_et.control.stopping import Stopping, Wish
from parallel_et.errors import UserError
from parallel_et.job.job import JOBS
from parallel_et.papers.kinds import KINDS, on_real_data
from parallel_et.papers.samples import draw_curve
from parallel_et.papers.sources import described, named_data, own_data, prepare, rows_of
from parallel_et.papers.table import Row, markdown, title_of
from parallel_et.papers.variants import slug
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.train_job import TrainOptions
from parallel_et.storage.atomic import why_no_place, write_whole
from parallel_et.trials.runner import TrialsOptions


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    papers = sorted(path.parent.name for path in JOBS.glob("*/table.toml"))
    parser = Parser(
        "reproduce",
        "Run the experiments of a paper, as jobs/PAPER has them, and write the table of what it printed and what "
        "came out here. Given again, the command goes on where it was interrupted.",
        "mpirun -n 2 python -m parallel_et reproduce et-2010",
    )
    parser.add_argument("paper", metavar="PAPER", help=" or ".join(papers))
    parser.add_argument("--only", metavar="JOB", nargs="+", help="only these experiments; they go to table-only.md")
    parser.add_argument("--trials", metavar="N", type=int, help="of each experiment on artificial data; mostly 100")
    own = (
        "a folder with data of your own, used in place of what ships: digits.npy (an array, a digit a row), grass (an "
        "image, or a folder of them), photos, large-photos and channels (likewise), sound (a wave file, or a folder of "
        "them), phonemes (a folder of wave files), icons (a folder of PNG files)"
    )
    parser.add_argument("--data", metavar="FOLDER", help=own)
    parser.add_argument("--output", metavar="FOLDER", help="where everything goes, by default runs/PAPER")
    parser.add_max_time()
    args = parser.parse_args(argv)
    if args.paper not in papers:
        parser.error(f"expected {' or '.join(papers)}, found {args.paper}")
    if args.trials is not None and args.trials < 1:
        parser.error(f"--trials: expected a positive number, found {args.trials}")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    with stops("after what it is at"):
        return reproduce(ranks, args)


def reproduce(ranks: Ranks, args: argparse.Namespace) -> int:
    """Run the experiments one after the other and write the table; returns the exit code."""
    table = ranks.from_root(lambda: chosen(args))
    say = Reporter(ranks.is_root, quiet=False).say
    folder = Path(args.output or f"runs/{args.paper}")
    stopping = Stopping(args.max_time)  # for what is not done by a command that watches itself
    own = ranks.from_root(lambda: own_data(args.data))
    ranks.from_root(lambda: make_folder(folder))
    sources: dict[str, str] = {}
    words = {name: described(name, own) for name in named_data(table)}
    for name in words:  # before hours of work
        say(f"data: {name}, {words[name]}")
        place = folder / ("own-data" if name in own else "data")  # apart, as one must not be taken for the other
        ranks.from_root(partial(make_folder, place))
        sources[name] = prepare(name, place, own.get(name), ranks)
    rows: list[Row] = []
    path = folder / ("table-only.md" if args.only else "table.md")
    for experiment in table["experiment"]:
        if wish := Wish(ranks.either(stopping.wish(0.0))):
            say(f"stopped by {wish.words()} before {title_of(experiment)}; the same command goes on")
            return STOPPED
        say(f"{title_of(experiment)}:")
        job = str(JOBS / args.paper / f"{experiment['job']}.toml")
        if "data" in experiment and "kind" not in experiment:
            source = sources[experiment["data"]]
            settings = [f"data.source={source}"]
            if experiment["data"] in own:  # all of it, however much it is
                settings.append(f"data.points={ranks.from_root(partial(rows_of, source))}")
            new, runs = [], []
            for name, more in experiment.get("variants", {"": []}).items():
                place = folder / "-".join(filter(None, [experiment["job"], slug(name)]))
                runs.append(place)
                options = TrainOptions(job, [*settings, *more], max_time=args.max_time)
                if not (one := on_real_data(ranks, experiment, options, place, say)):
                    return STOPPED
                new += [replace(row, job=": ".join(filter(None, [row.job, name]))) for row in one]
            if experiment.get("curve"):
                draw_curve(ranks, runs, folder / f"{experiment['job']}.png")
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
            return STOPPED
        rows.extend(new)
        ranks.from_root(lambda: write_whole(path, markdown(table, rows, words).encode()))
    say(f"\n{markdown(table, rows, words)}\nresult: {path}")
    return 0


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """The paper's table with the experiments that are asked for."""
    table = tomllib.loads((JOBS / args.paper / "table.toml").read_text())
    names = [experiment["job"] for experiment in table["experiment"]]
    for name in args.only or ():
        if name not in names:
            near = get_close_matches(name, names, 1)
            raise UserError(f"--only: expected {near[0] if near else ', '.join(names)}, found {name}")
    usual = [row["job"] for row in table["experiment"] if not row.get("asked")]
    table["experiment"] = [row for row in table["experiment"] if row["job"] in (args.only or usual)]
    return table


def make_folder(folder: Path) -> None:
    """Where everything goes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = why_no_place(folder, error, parents=True)
        raise UserError(f"{folder}: expected a folder to write to, found {why}") from None
