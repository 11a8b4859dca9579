"""Recovery of fields that are planted in data: each planted field is compared with the learned field assigned to it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from parallel_et.job.job import read_job
from parallel_et.papers.variants import run_each
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source
from parallel_et.trials.runner import TrialsOptions
from parallel_et.trials.table import Trial

FOUND_COSINE = 0.95
"""Smallest cosine between a planted field that is found and its learned field."""


def run_planted(
    ranks: Ranks, options: TrialsOptions, variants: Mapping[str, Sequence[str]], place: Path, seeds: range
) -> dict[str, tuple[list[Trial], np.ndarray]] | None:
    """Run every variant of a job for every seed.

    Returns
    -------
    dict : trials of each variant, and the fraction of the fields that each trial has found, (trials,); None if stopped
    """

    def evaluate(path: Path, settings: list[str], trials: list[Trial]) -> tuple[list[Trial], np.ndarray]:
        def share(trial: Trial) -> float:
            truth = open_source(read_job(options.job, [*settings, f"run.seed={trial.seed}"])).truth()["W"]
            return float((matched_cosines(truth, trial.params["W"]) > FOUND_COSINE).mean())

        return trials, ranks.from_root(lambda: np.array([share(trial) for trial in trials]))

    return run_each(ranks, options, variants, place, seeds, evaluate)


def matched_cosines(planted: np.ndarray, learned: np.ndarray) -> np.ndarray:
    """Match learned fields (D, H) to planted fields (D, b) with the largest sum of cosines. Return the cosines (b,)."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    lengths = [np.linalg.norm(fields, axis=0) for fields in (planted, learned)]
    unit = [f / np.where(length > 0, length, 1.0) for f, length in zip((planted, learned), lengths, strict=True)]
    table = unit[0].T @ unit[1]
    rows, columns = linear_sum_assignment(-table)
    best = np.full(planted.shape[1], -1.0)
    best[rows] = table[rows, columns]
    return best
