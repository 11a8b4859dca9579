"""Bars with grey values: recovery of the bars, and of the parameters of noise and strengths (TH fig. 3.4)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from parallel_et.core.capabilities import filled
from parallel_et.core.types import Params
from parallel_et.job.job import read_job
from parallel_et.papers.table import Row
from parallel_et.papers.variants import run_each
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source
from parallel_et.runs.trainer import new_training
from parallel_et.trials.runner import TrialsOptions
from parallel_et.trials.table import Trial

RELATIVE_TOLERANCE = 0.05
"""Largest relative error of a recovered parameter."""
REQUIRED_FRACTION = 0.95
"""Fraction of the trials that have to recover all causes and parameters."""
SETTLING_ITERATIONS = 10
"""Iterations in which mu and psi converge if all other parameters are known."""
PARAMETERS = ("sigma", "pi", "mu", "psi")


def strength_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials of several variants, and a run with only mu and psi unknown. Return their rows, or none if stopped."""

    def evaluate(path: Path, settings: list[str], trials: list[Trial]) -> tuple[list[Trial], np.ndarray]:
        def off(trial: Trial) -> np.ndarray:
            source = open_source(read_job(options.job, [*settings, f"run.seed={trial.seed}"]))
            return relative_errors(trial.params, source.truth())

        return trials, ranks.from_root(lambda: np.array([off(trial) for trial in trials]))

    if (found := run_each(ranks, options, experiment["variants"], place, seeds, evaluate)) is None:
        return []
    rows, start_time = [build_row(f"{experiment['job']}: {name}", *one) for name, one in found.items()], perf_counter()
    if not experiment.get("known"):
        return rows
    best = ranks.run_on_root(partial(slab_errors, options.job, options.set, seeds))
    words = [f"{n} within {x:.1%}" for n, x in zip(PARAMETERS[2:], np.abs(best).max(0), strict=True)]
    words.append(
        f"both within {RELATIVE_TOLERANCE:.0%} in {(np.abs(best) <= RELATIVE_TOLERANCE).all(1).sum()} of {len(best)}"
    )
    name, seconds = f"{experiment['job']}: fields, sigma and pi known", (perf_counter() - start_time) / len(best)
    return [*rows, Row(name, "", ", ".join(words), "", len(best), seconds)]


def slab_errors(job: str, settings: Sequence[str], seeds: range, root: Ranks) -> np.ndarray:
    """Compute relative errors of mu and psi, (seeds, 2), with all other parameters known: the error of the data."""

    def one(seed: int) -> np.ndarray:
        more = [f"run.seed={seed}", f"model.learn={list(PARAMETERS[2:])}", f"anneal.iterations={SETTLING_ITERATIONS}"]
        training = new_training(read_job(job, [*settings, *more]), root)
        truth, model = training.truth, training.problem.model
        numbers = {name: filled(model, name, float(np.mean(truth[name]))) for name in PARAMETERS}
        true = model.constrain({"W": np.asfortranarray(truth["W"]), **numbers})
        training.state = training.state._replace(params=true)
        training.run()
        return relative_errors(training.state.params, truth)[2:]

    return np.array([one(seed) for seed in seeds])


def relative_errors(learned: Params, truth: Params) -> np.ndarray:
    """Compute relative errors of ``PARAMETERS``, (4,).

    Only the product s W is identified, so mu and psi are rescaled to the scale of the true fields.
    The scale of a learned field is its projection onto the nearest true field.
    """
    own = learned["W"] / np.linalg.norm(learned["W"], axis=0)
    true = truth["W"]
    which = (own.T @ true / np.linalg.norm(true, axis=0)).argmax(0)
    scale = ((learned["W"][:, which] * true).sum(0) / (true**2).sum(0)).mean()
    measured = {**learned, "mu": learned["mu"] * scale, "psi": learned["psi"] * scale**2}
    return np.array([float(np.mean(measured[name]) / np.mean(truth[name])) - 1 for name in PARAMETERS])


def build_row(name: str, trials: list[Trial], off: np.ndarray) -> Row:
    """Build the row of a variant: how often all is recovered, and the largest error of each parameter."""
    complete = np.array([trial.found == trial.causes for trial in trials])
    good = complete & (np.abs(off) <= RELATIVE_TOLERANCE).all(1)
    rooted = np.column_stack([off[:, :3], np.sqrt(1 + off[:, 3]) - 1])  # the thesis plots the root of psi
    words = [
        f"all causes in {complete.sum()} of {len(trials)}, all within {RELATIVE_TOLERANCE:.0%} too in {good.sum()}, "
        f"with the root of psi in {(complete & (np.abs(rooted) <= RELATIVE_TOLERANCE).all(1)).sum()}"
    ]
    if complete.any():
        words += [f"{n} within {x:.1%}" for n, x in zip(PARAMETERS, np.abs(off[complete]).max(0), strict=True)]
    verdict = "met" if good.sum() >= REQUIRED_FRACTION * len(trials) else "worse"
    seconds = float(np.mean([trial.seconds for trial in trials]))
    return Row(name, "all in every run", ", ".join(words), verdict, len(trials), seconds)
