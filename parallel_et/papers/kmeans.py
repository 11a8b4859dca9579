"""Comparison of hard EM with k-means of scikit-learn, on the same data with the same initial centres (TV Prop. 8)."""

import numpy as np

from parallel_et.errors import UserError
from parallel_et.job.job import read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import open_source, set_up
from parallel_et.trials.table import Trial

SAME_CENTRES = 1e-10
"""Largest difference of equal centres, relative to the largest value in the centres."""


def differences_to_kmeans(root: Ranks, path: str, trials: list[Trial]) -> np.ndarray:
    """Return the largest relative difference between the centres of each trial and of k-means, (trials,)."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise UserError(f"k-means: expected scikit-learn, found none ({error}); pip install scikit-learn") from None
    differences = []
    for trial in trials:
        job = read_job(path, [f"run.seed={trial.seed}"])
        problem, params, _ = set_up(job, open_source(job), root)
        means = KMeans(problem.model.H, init=params["W"].T, n_init=1, max_iter=job.anneal.iterations, tol=0.0)
        found = means.fit(problem.rows[:][:, : problem.model.D]).cluster_centers_
        centres = trial.params["W"].T
        differences.append(np.abs(centres - found).max() / np.abs(found).max())
    return np.array(differences)
