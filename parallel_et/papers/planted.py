"""Whether fields that were planted in data are found: each beside the learned one that is assigned to it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from parallel_et.job.job import read_job
from parallel_et.papers.variants import run_each
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source
from parallel_et.trials.runner import TrialsOptions
from parallel_et.trials.table import Trial

CLOSE = 0.95
"""Cosine between a planted field and a learned one from which on it is found."""


def run_planted(
    ranks: Ranks, options: TrialsOptions, variants: Mapping[str, Sequence[str]], place: Path, seeds: range
) -> dict[str, tuple[list[Trial], np.ndarray]] | None:
    """Run every variant of a job, settings by name, for every seed; None if stopped.

    Returns
    -------
    dict : name -> trials, and the share of the fields that each has found, (trials,)
    """

    def look(path: Path, told: list[str], trials: list[Trial]) -> tuple[list[Trial], np.ndarray]:
        def share(trial: Trial) -> float:
            truth = open_source(read_job(options.job, [*told, f"run.seed={trial.seed}"])).truth()["W"]
            return float((cosines(truth, trial.params["W"]) > CLOSE).mean())

        return trials, ranks.from_root(lambda: np.array([share(trial) for trial in trials]))

    return run_each(ranks, options, variants, place, seeds, look)


def cosines(planted: np.ndarray, learned: np.ndarray) -> np.ndarray:
    """Of each planted field (D, b) with a learned one (D, H) of its own, such that their sum is largest; (b,)."""
    from scipy.optimize import linear_sum_assignment  # takes its time to load

    lengths = [np.linalg.norm(fields, axis=0) for fields in (planted, learned)]
    unit = [f / np.where(length > 0, length, 1.0) for f, length in zip((planted, learned), lengths, strict=True)]
    table = unit[0].T @ unit[1]
    rows, columns = linear_sum_assignment(-table)
    best = np.full(planted.shape[1], -1.0)
    best[rows] = table[rows, columns]
    return best
