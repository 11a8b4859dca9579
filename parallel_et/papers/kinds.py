"""The kinds of experiments. Each runs an experiment of a table and returns its rows, or no rows if stopped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from parallel_et.control.signals import EXIT_STOPPED
from parallel_et.errors import UserError
from parallel_et.papers.anywhere import format_outcomes as format_places
from parallel_et.papers.anywhere import fraction_near, run_anywhere
from parallel_et.papers.kmeans import SAME_CENTRES, differences_to_kmeans
from parallel_et.papers.likelihood import compare_likelihoods
from parallel_et.papers.occlusion import explain_scenes, run_sets
from parallel_et.papers.planted import run_planted
from parallel_et.papers.receptive import count_kinds, generative_fields, reverse_correlation
from parallel_et.papers.represented import evaluate_trials
from parallel_et.papers.schemes import run_schemes
from parallel_et.papers.selections import cluster_rows, selection_rows
from parallel_et.papers.strengths import strength_rows
from parallel_et.papers.strokes import stroke_rows
from parallel_et.papers.table import Row, compare_with_published, summarise_trials, title_of
from parallel_et.papers.variants import format_outcome, run_variants, verdict_on_free_energy
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.chapters import write_report
from parallel_et.reports.pictures import draw_fields
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.result import Result
from parallel_et.runs.setup import open_on_all_ranks
from parallel_et.runs.stored_run import read_on_all_ranks
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.trials.comparison import Starts, compare_with_nmf
from parallel_et.trials.runner import TrialsOptions, run_trials, wilson
from parallel_et.trials.table import read_trials


def variant_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials of several variants. Return one row per variant, or no rows if stopped."""
    found = run_variants(ranks, options, experiment["variants"], place, seeds)
    if found is None:
        return []
    first = next(iter(found.values()))
    return [
        Row(
            f"{experiment['job']}: {name}",
            experiment["published"]["text"],
            format_outcome(outcome, first),
            verdict_on_free_energy(outcome),
            len(outcome.trials),
            float(np.mean([trial.seconds for trial in outcome.trials])),
        )
        for name, outcome in found.items()
    ]


def kmeans_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials, and k-means on the same data with the same initial centres. Return one row, or none if stopped."""
    path = place.with_suffix(".h5")
    if run_trials(ranks, replace(options, output=str(path))) == EXIT_STOPPED:
        return []

    def compare(root: Ranks) -> Row:
        trials = [trial for trial in read_trials(path)[1] if trial.seed in seeds]
        differences = differences_to_kmeans(root, options.job, trials)
        same = differences < SAME_CENTRES
        measured = f"the same centres in {same.sum()} of {len(same)}, but for {differences.max():.1g} at most"
        verdict = "met" if same.all() else "worse"
        seconds = float(np.mean([trial.seconds for trial in trials]))
        return Row(experiment["job"], experiment["published"]["text"], measured, verdict, len(same), seconds)

    return [ranks.run_on_root(compare)]


def scheme_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials with several schemes. Return one row per scheme, or no rows if stopped."""
    found, least = run_schemes(ranks, options, experiment["variants"], place, seeds), experiment["published"]["share"]
    return [
        Row(
            f"{experiment['job']}: {name}",
            f"more than {least:.0%}",
            one.summarise(experiment["truth"]),
            "met" if len(one.complete) > least * len(one.trials) else "worse",
            len(one.trials),
            float(np.mean([trial.seconds for trial in one.trials])),
        )
        for name, one in (found or {}).items()
    ]


def anywhere_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Train on scenes with objects at any place, and evaluate the places. Return one row per variant."""
    rows = []
    for name, trials in (run_anywhere(ranks, options, experiment["variants"], place, seeds) or {}).items():
        all_found = all(one.found == one.objects for one in trials)
        right = all(fraction_near(one.best) >= experiment["places"] for one in trials)
        published = experiment["published"]["text"]
        seconds = float(np.mean([one.training for one in trials]))
        verdict = "met" if all_found and right else "worse"
        rows.append(
            Row(f"{title_of(experiment)}: {name}", published, format_places(trials), verdict, len(trials), seconds)
        )
    return rows


def planted_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials of several variants on data with planted fields. Return one row per variant."""
    found, least = run_planted(ranks, options, experiment["variants"], place, seeds), experiment["published"]["share"]
    return [
        Row(
            f"{experiment['job']}: {name}",
            f"all in {least:.0%}",
            format_fractions(shares),
            "met" if (shares == 1).mean() >= least else "worse",
            len(trials),
            float(np.mean([trial.seconds for trial in trials])),
        )
        for name, (trials, shares) in (found or {}).items()
    ]


def format_fractions(shares: np.ndarray) -> str:
    """Format how often all fields were found, from the fraction of fields that each trial has found, (trials,)."""
    complete, count = int((shares == 1).sum()), len(shares)
    low, high = wilson(complete, count)
    return f"all in {complete} of {count} ({low:.0%} to {high:.0%}), {shares.mean():.1%} of the fields"


def best_of_sets_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run sets of trials, each set on its own data. Return a row for the trials with the smallest sigma in each set."""
    size = experiment["sets"]
    found = run_sets(ranks, options, size, place.with_name(f"{place.name}-sets"), seeds)
    if found is None:
        return []
    row = summarise_trials(experiment, found.best, seeds)
    seconds = float(np.mean([trial.seconds for trial in found.trials]))
    name = f"{experiment['job']}: best of {size} by sigma"
    return [replace(row, job=name, trials=len(found.trials), seconds=seconds)]


def inference_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Train once, and infer scenes with any number of causes. Return one row, or none if stopped."""
    place = place.with_name(f"{place.name}-run")
    found = explain_scenes(ranks, options.job, options.set, place, options.max_time)
    if found is None:
        return []
    many = found.causes > read_on_all_ranks(ranks, RunDirectory(str(place)), {}).scheme.max_active
    right = found.recognised
    with_many = f"{right[many].sum()} of {many.sum()} of more than gamma causes"
    measured = f"right in {right.sum()} of {len(many)} scenes, in {with_many}"
    published = experiment["published"]["text"]
    return [Row(f"{experiment['job']}: inference", published, measured, "no figure", 1, found.seconds)]


def trial_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials, each with its own data. Return one row, or none if stopped."""
    path = place.with_suffix(".h5")
    if run_trials(ranks, replace(options, output=str(path))) == EXIT_STOPPED:
        return []
    rows = [ranks.from_root(lambda: summarise_trials(experiment, read_trials(path)[1], seeds))]
    if experiment.get("best"):
        trials = [trial for trial in ranks.from_root(lambda: read_trials(path)[1]) if trial.seed in seeds]
        first = min(trials, key=lambda trial: float(trial.params["sigma"]))
        rows[0] = replace(rows[0], measured=f"{rows[0].measured}; with smallest sigma: {first.found} of {first.causes}")
    return rows


def represented_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials, and count those in which each cause has its own unit. Return one row, or none if stopped."""
    path = place.with_suffix(".h5")
    if run_trials(ranks, replace(options, output=str(path), until=experiment.get("until"))) == EXIT_STOPPED:
        return []

    def evaluate() -> Row:
        outcome, published = evaluate_trials(options, path, seeds), experiment["published"]
        measured = f"{outcome.complete} of {len(outcome.units)}, {outcome.units.mean():.2f} causes"
        if np.isfinite(outcome.errors).any() and published.get("pi"):
            measured += f", pi within {outcome.errors.mean():.4f}"
        known = f", pi within {published['pi']}" if "pi" in published else ""
        return Row(
            experiment["job"],
            f"{published['found']} of {published['of']}{known}",
            measured,
            compare_with_published(published, outcome.complete, len(outcome.units)),
            len(outcome.trials),
            float(np.mean([trial.seconds for trial in outcome.trials])),
        )

    return [ranks.from_root(evaluate)]


def likelihood_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run several jobs on the same points, and draw their log likelihoods. Return one row."""
    names = [experiment["job"], *experiment["beside"]]
    jobs = {name: str(Path(options.job).with_name(f"{name}.toml")) for name in names}
    start_time = perf_counter()
    curves, generating = compare_likelihoods(ranks, jobs, options.job, seeds, place)
    ends = {name: np.median([course.likelihood[-1] for course in found]) - generating for name, found in curves.items()}
    measured = ", ".join(f"{name} {value:+.2f}" for name, value in ends.items())
    seconds = (perf_counter() - start_time) / (len(names) * len(seeds))
    published = experiment["published"]["text"]
    return [Row(f"{place.name}: likelihood", published, f"{measured} per point", "see picture", len(seeds), seconds)]


KINDS = {
    "trials": trial_rows,
    "variants": variant_rows,
    "k-means": kmeans_rows,
    "planted": planted_rows,
    "represented": represented_rows,
    "likelihood": likelihood_rows,
    "best": best_of_sets_rows,
    "anywhere": anywhere_rows,
    "inference": inference_rows,
    "schemes": scheme_rows,
    "selections": selection_rows,
    "clusters": cluster_rows,
    "strengths": strength_rows,
    "strokes": stroke_rows,
}
"""Functions of the experiments on artificial data, by kind."""
RECEPTIVE_FIELDS = {"channels": reverse_correlation, "large-photos": generative_fields}
"""Data whose fields are classified by their shapes, and the function that returns these fields."""


def real_data_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrainOptions, folder: Path, log: Callable[[str], None]
) -> list[Row]:
    """Train one run in a folder and write its report. Return one row, or none if stopped."""
    code = train_job(ranks, replace(options, output=str(folder)), draw_fields)
    if code == EXIT_STOPPED:
        return []
    if code:
        raise UserError(f"{folder}: expected the run to reach its end, found exit code {code}")
    directory = RunDirectory(str(folder))
    ranks.run_on_root(lambda root: write_report(directory, {}, folder / "report"))
    learned = read_on_all_ranks(ranks, directory, {})
    measured, seconds = ranks.from_root(lambda: (format_fields(learned.result), training_seconds(learned.result)))
    verdict = "see report"
    if experiment["data"] == "digits":
        source = learned.centred(open_on_all_ranks(learned.job, ranks))
        squares, divergence = (
            compare_with_nmf(ranks, learned, source, Starts(loss=loss), log).excess
            for loss in ("squares", "divergence")
        )
        measured = f"{squares:+.1%} against NMF by squares, {divergence:+.1%} by divergence"
        verdict = "met" if squares < experiment["below"] else "worse"
    if receptive := RECEPTIVE_FIELDS.get(experiment["data"]):
        active = float(np.mean(learned.params["pi"])) * learned.model.H
        kinds = ranks.run_on_root(lambda root: count_kinds(receptive(learned)))
        measured += f", pi H = {active:.1f}, {kinds.summary()}"
    return [Row(experiment["job"], experiment["published"]["text"], measured, verdict, 1, seconds)]


def training_seconds(result: Result) -> float:
    """Return the seconds of all iterations."""
    return sum(float(values.sum()) for name, values in result.history.items() if name.startswith("seconds_"))


def format_fields(result: Result) -> str:
    """Format the number of fields, of unused fields, and the final free energy."""
    unused = int(result.history["unused_causes"][-1])
    words = f"{result.W.shape[1]} fields" + (f", {unused} unused" if unused else "")
    return f"{words}, F {result.history['free_energy'][-1]:.2f}"
