"""The kinds of experiments: each runs what a row of a paper's table asks for, and has its rows, none if stopped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from parallel_et.control.signals import STOPPED
from parallel_et.errors import UserError
from parallel_et.papers.anywhere import in_words as places_in_words
from parallel_et.papers.anywhere import run_anywhere, share_near
from parallel_et.papers.kmeans import SAME, gaps_to_kmeans
from parallel_et.papers.likelihood import run_learners
from parallel_et.papers.occlusion import explain_scenes, run_sets
from parallel_et.papers.planted import run_planted
from parallel_et.papers.receptive import count_kinds, own_fields, reverse_correlation
from parallel_et.papers.represented import look_at_trials
from parallel_et.papers.schemes import run_schemes
from parallel_et.papers.selections import by_clusters, by_selections
from parallel_et.papers.strengths import by_candidates
from parallel_et.papers.strokes import beside_linear
from parallel_et.papers.table import Row, beside, judge, title_of
from parallel_et.papers.variants import in_words, run_variants, verdict
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.chapters import write_report
from parallel_et.reports.pictures import draw_fields
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.result import Result
from parallel_et.runs.setup import open_together
from parallel_et.runs.stored_run import read_together
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.trials.comparison import Starts, compare_with_nmf
from parallel_et.trials.runner import TrialsOptions, run_trials, wilson
from parallel_et.trials.table import read_trials


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


def anywhere(ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range) -> list[Row]:
    """Train on scenes of objects that stand anywhere, and look for these; a row a variant, none if stopped."""
    rows = []
    for name, trials in (run_anywhere(ranks, options, experiment["variants"], place, seeds) or {}).items():
        all_found = all(one.found == one.objects for one in trials)
        right = all(share_near(one.best) >= experiment["places"] for one in trials)
        published = experiment["published"]["text"]
        seconds = float(np.mean([one.training for one in trials]))
        verdict = "met" if all_found and right else "worse"
        rows.append(
            Row(f"{title_of(experiment)}: {name}", published, places_in_words(trials), verdict, len(trials), seconds)
        )
    return rows


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


def represented(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials, of which those count in which every cause has a unit of its own; no row if stopped."""
    path = place.with_suffix(".h5")
    if run_trials(ranks, replace(options, output=str(path), until=experiment.get("until"))) == STOPPED:
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


KINDS = {
    "trials": on_artificial_data,
    "variants": in_variants,
    "k-means": beside_kmeans,
    "planted": planted,
    "represented": represented,
    "likelihood": likelihood,
    "best": best_of_sets,
    "anywhere": anywhere,
    "inference": beyond_gamma,
    "schemes": by_schemes,
    "selections": by_selections,
    "clusters": by_clusters,
    "strengths": by_candidates,
    "strokes": beside_linear,
}
"""Experiments on artificial data by their kind."""


RECEPTIVE = {"channels": reverse_correlation, "large-photos": own_fields}
"""Data on which fields are told apart by their shapes, and which fields."""


def on_real_data(
    ranks: Ranks, experiment: dict[str, Any], options: TrainOptions, folder: Path, say: Callable[[str], None]
) -> list[Row]:
    """One run in a folder and its report; no row if stopped."""
    code = train_job(ranks, replace(options, output=str(folder)), draw_fields)
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
    if receptive := RECEPTIVE.get(experiment["data"]):
        active = float(np.mean(learned.params["pi"])) * learned.model.H
        kinds = ranks.on_root_alone(lambda root: count_kinds(receptive(learned)))
        here += f", pi H = {active:.1f}, {kinds.words()}"
    return [Row(experiment["job"], experiment["published"]["text"], here, judged, 1, seconds)]


def seconds_of(result: Result) -> float:
    """How long a run has taken."""
    return sum(float(values.sum()) for name, values in result.history.items() if name.startswith("seconds_"))


def fields_in_words(result: Result) -> str:
    """What became of the fields, in a few words."""
    unused = int(result.history["unused_causes"][-1])
    words = f"{result.W.shape[1]} fields" + (f", {unused} unused" if unused else "")
    return f"{words}, F {result.history['free_energy'][-1]:.2f}"
