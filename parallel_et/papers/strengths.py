"""Bars of any grey value: whether all are found, and the parameters of noise and strengths with them (TH fig. 3.4)."""

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
from parallel_et.runs.trainer import begin
from parallel_et.trials.runner import TrialsOptions
from parallel_et.trials.table import Trial

CLOSE = 0.05
"""How far off a parameter may be that counts as recovered."""
OFTEN = 0.95
"""Share of the trials in which all are to be."""
ENOUGH = 10
"""Iterations in which mu and psi settle if all else is known."""
NAMES = ("sigma", "pi", "mu", "psi")


def by_candidates(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Run trials of several variants, a row each, and one with all but mu and psi known; none if stopped."""

    def look(path: Path, told: list[str], trials: list[Trial]) -> tuple[list[Trial], np.ndarray]:
        def off(trial: Trial) -> np.ndarray:
            source = open_source(read_job(options.job, [*told, f"run.seed={trial.seed}"]))
            return errors(trial.params, source.truth())

        return trials, ranks.from_root(lambda: np.array([off(trial) for trial in trials]))

    if (found := run_each(ranks, options, experiment["variants"], place, seeds, look)) is None:
        return []
    rows, begun = [row_of(f"{experiment['job']}: {name}", *one) for name, one in found.items()], perf_counter()
    if not experiment.get("known"):
        return rows
    best = ranks.on_root_alone(partial(errors_of_slab, options.job, options.set, seeds))
    words = [f"{n} within {x:.1%}" for n, x in zip(NAMES[2:], np.abs(best).max(0), strict=True)]
    words.append(f"both within {CLOSE:.0%} in {(np.abs(best) <= CLOSE).all(1).sum()} of {len(best)}")
    name, seconds = f"{experiment['job']}: fields, sigma and pi known", (perf_counter() - begun) / len(best)
    return [*rows, Row(name, "", ", ".join(words), "", len(best), seconds)]


def errors_of_slab(job: str, settings: Sequence[str], seeds: range, root: Ranks) -> np.ndarray:
    """Relative errors of mu and psi, (seeds, 2), that are learned where all else is known: what the data leave open."""

    def one(seed: int) -> np.ndarray:
        told = [f"run.seed={seed}", f"model.learn={list(NAMES[2:])}", f"anneal.iterations={ENOUGH}"]
        training = begin(read_job(job, [*settings, *told]), root)
        truth, model = training.truth, training.problem.model
        numbers = {name: filled(model, name, float(np.mean(truth[name]))) for name in NAMES}
        true = model.constrain({"W": np.asfortranarray(truth["W"]), **numbers})
        training.state = training.state._replace(params=true)
        training.run()
        return errors(training.state.params, truth)[2:]

    return np.array([one(seed) for seed in seeds])


def errors(learned: Params, truth: Params) -> np.ndarray:
    """Relative errors of what is learned, (4,); of mu and psi at the scale of the true fields, as that of s W counts.

    A learned field is as large as its part along the true one that it is nearest to.
    """
    own = learned["W"] / np.linalg.norm(learned["W"], axis=0)
    true = truth["W"]
    which = (own.T @ true / np.linalg.norm(true, axis=0)).argmax(0)
    scale = ((learned["W"][:, which] * true).sum(0) / (true**2).sum(0)).mean()
    here = {**learned, "mu": learned["mu"] * scale, "psi": learned["psi"] * scale**2}
    return np.array([float(np.mean(here[name]) / np.mean(truth[name])) - 1 for name in NAMES])


def row_of(name: str, trials: list[Trial], off: np.ndarray) -> Row:
    """How often all is found, and how far off each parameter is at most where all causes are."""
    complete = np.array([trial.found == trial.causes for trial in trials])
    good = complete & (np.abs(off) <= CLOSE).all(1)
    rooted = np.column_stack([off[:, :3], np.sqrt(1 + off[:, 3]) - 1])  # the thesis plots the root of psi
    words = [
        f"all causes in {complete.sum()} of {len(trials)}, all within {CLOSE:.0%} too in {good.sum()}, "
        f"with the root of psi in {(complete & (np.abs(rooted) <= CLOSE).all(1)).sum()}"
    ]
    if complete.any():
        words += [f"{n} within {x:.1%}" for n, x in zip(NAMES, np.abs(off[complete]).max(0), strict=True)]
    judged = "met" if good.sum() >= OFTEN * len(trials) else "worse"
    seconds = float(np.mean([trial.seconds for trial in trials]))
    return Row(name, "all in every run", ", ".join(words), judged, len(trials), seconds)
