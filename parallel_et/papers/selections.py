"""Comparison of selections: how often all causes are found, and the accuracy of clusters (TH fig. 4.2 and 4.3)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
from scipy.optimize import linear_sum_assignment

from parallel_et.core.capabilities import filled
from parallel_et.core.types import Params
from parallel_et.data.base import Generated
from parallel_et.inference.posterior import Inference, exact_scheme_for
from parallel_et.job.job import read_job
from parallel_et.papers.table import Row, compare_with_published
from parallel_et.papers.variants import run_each
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.trainer import Training, new_training
from parallel_et.trials.runner import TrialsOptions

RIGHT_MARGIN = 0.02
"""Largest difference in accuracy between a correct trial and the true clusters."""


def selection_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials of several selections. Return one row per selection, compared with the first, or none if stopped."""
    found = run_each(ranks, options, experiment["variants"], place, seeds, lambda path, all_settings, trials: trials)
    rows, first = list[Row](), None
    for name, trials in (found or {}).items():
        complete, count = sum(trial.found == trial.causes for trial in trials), len(trials)
        off = [
            f"{key} within {max(abs(float(t.params[key]) / value - 1) for t in trials if t.found == t.causes):.1%}"
            for key, value in experiment["truth"].items()
            if complete
        ]
        words = ", ".join([f"all causes in {complete} of {count}", *off])
        verdict = "the first" if first is None else compare_with_published(first, complete, count)
        first = first or {"found": complete, "of": count}
        seconds = float(np.mean([trial.seconds for trial in trials]))
        rows.append(
            Row(f"{experiment['job']}: {name}", experiment["published"]["text"], words, verdict, count, seconds)
        )
    return rows


def cluster_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run several selections on clusters, from the initial values of the job or from the optimum. Return their rows."""
    variants: Mapping[str, Sequence[str]] = experiment["variants"]
    optimum, rows = experiment.get("optimum", False), list[Row]()
    for name, settings in variants.items():
        start_time = perf_counter()

        def fractions(root: Ranks, all_settings: Sequence[str] = (*options.set, *settings)) -> np.ndarray:
            return np.array(
                [cluster_fractions(root, options.job, [*all_settings, f"run.seed={seed}"], optimum) for seed in seeds]
            )

        found = ranks.run_on_root(fractions)
        right, seconds = (
            int((found[:, 0] > found[:, 1] - RIGHT_MARGIN).sum()),
            (perf_counter() - start_time) / len(seeds),
        )
        words = f"right in {right} of {len(seeds)}, {found[:, 0].mean():.1%} of the points, of {found[:, 1].mean():.1%}"
        title = f"{experiment['job']}{', from the optimum' * optimum}: {name}"
        published = experiment["published"].get(name, "")
        rows.append(Row(title, published, words, "", len(seeds), seconds))
    return rows


def cluster_fractions(root: Ranks, job: str, settings: list[str], optimum: bool) -> tuple[float, float]:
    """Return the fraction of points in their own clusters, for a run and for the true clusters."""
    training = new_training(read_job(job, settings), root)
    true = true_params(training)
    if optimum:
        training.state = training.state._replace(params={**training.state.params, **true})
    training.run()
    return right_fraction(training, training.state.params), right_fraction(training, true)


def true_params(training: Training) -> Params:
    """Return the true parameters of round clusters with equal weights."""
    model, truth = training.problem.model, training.truth
    var = filled(model, "var", float(truth["sigma"]) ** 2)
    return {"W": np.asfortranarray(truth["W"]), "var": var, "pi": filled(model, "pi", 1 / model.H)}


def right_fraction(training: Training, params: Params) -> float:
    """Return the fraction of points whose most probable cluster is matched to their true cluster."""
    model, source = training.problem.model, cast(Generated, training.source)
    Y = np.asarray(source.read(0, source.points)[:, : source.dims], np.float64)
    own = np.concatenate([states.argmax(1) for *_, states in source.draw_groups(0, source.points)])
    inference = Inference(model, exact_scheme_for(model.latents), params, ["means"])
    together = np.zeros((model.H, model.H))
    np.add.at(together, (own, inference.block(Y)["means"].argmax(1)), 1)
    return float(together[linear_sum_assignment(-together)].sum() / source.points)
