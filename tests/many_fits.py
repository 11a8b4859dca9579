"""Several small jobs, for test_bits; run by ranks of its own, the root writes what they learn to one file."""

import sys

import numpy as np
from problems import job_table, random_data, random_params

from parallel_et import fit
from parallel_et.parallel.ranks import Ranks

ANNEAL = {
    "iterations": 6,
    "temperature": [[0.2, 4.0], [0.8, 1.1]],
    "cut": {"schedule": [[0.3, 0.0], [0.7, 1.0]], "share": 0.8},
    "noise": {"W": 0.05},
}
ET = {"candidates": 4, "gamma": 2, "singletons": True}
JOBS = {
    # model, scheme, points, dtype, anneal
    "linca": ("linca", ET, 403, "float64", ANNEAL),
    "nmf": ("nmf", ET, 403, "float64", ANNEAL),
    "mca": ("mca", ET, 403, "float64", ANNEAL),
    "linca in float32": ("linca", ET, 403, "float32", ANNEAL),
    "mca in float32": ("mca", ET, 403, "float32", ANNEAL),
    "exact": ("linca", {"scheme": "exact"}, 150, "float64", ANNEAL),
    "fewer points than ranks": ("linca", ET, 3, "float64", ANNEAL),
    "a single point": ("mca", ET, 1, "float64", {"iterations": 2}),
    "until it has settled": ("nmf", ET, 211, "float64", {"iterations": 200, "stop": {"change": 0.01, "iterations": 2}}),
}


def fits(threads, comm=None):
    """All that these jobs learn, by name."""
    found = {}
    for name, (model, inference, points, dtype, anneal) in JOBS.items():
        truth = random_params(model, 9, 7, seed=len(name))
        data = random_data(model, points, truth, seed=5).astype(dtype)
        table = job_table({"name": model, "causes": 7}, inference, anneal, seed=11)
        table["run"]["threads"] = threads
        result = fit(table, data, comm=comm)
        found |= {f"{name}/{key}": value for key, value in result.params.items()}
        found[f"{name}/free_energy"] = result.history.get("free_energy", np.empty(0))
        found[f"{name}/fingerprint"] = np.array(result.about["data fingerprint"])
    return found


if __name__ == "__main__":
    learned = fits(1)
    if Ranks().is_root:
        np.savez(sys.argv[1], **learned)
