"""Several small jobs for test_bits. Run as a program, the root writes the learned parameters to a folder."""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI
from problems import job_table, random_data, random_params

from parallel_et import fit
from parallel_et.em import e_step
from parallel_et.models.components import linear
from parallel_et.parallel import shared_memory
from parallel_et.parallel.communicator import Ranks

ANNEAL = {
    "iterations": 6,
    "temperature": [[0.2, 4.0], [0.8, 1.1]],
    "cut": {"schedule": [[0.3, 0.0], [0.7, 1.0]], "share": 0.8},
    "noise": {"W": 0.05},
}
TRIPLES, PAIRS = {"candidates": 7, "gamma": 3}, {"candidates": 7, "gamma": 2}
RESTRICTED = {"name": "rmca poisson", "total": 18.0, "learn": ["W"]}
RESTARTS = {"iterations": 10, "hold": 2, "renew": 2}
ET = {"candidates": 4, "gamma": 2, "singletons": True}
ROW_INDEPENDENT = {"candidates": 4, "gamma": 2}
HERE = Path(__file__).parent
REAL_NODE_COMMUNICATOR = shared_memory.node_communicator
TERNARY = {"file": str(HERE.parents[1] / "examples/ternary.py")}
OCA = {"name": "oca", "causes": 5, "learn": ["W", "T", "sigma", "pi"]}
INVECA = {"name": "inveca", "causes": 4, "size": 2, "channels": 1, "learn": ["W", "T", "sigma", "pi"]}
GSC = {"name": "gsc", "learn": ["W", "sigma", "pi", "mu", "psi"]}
COUNTS = {"file": str(HERE.parents[1] / "examples/own_model.py")}
SEARCH = {"select": 3, "near": 2, "flip": 3, "toggle": 9, "cross": 3, "marginals": 2, "prior": 2, "blind": 2}
TV = {"scheme": "tv", "states": 9, "gamma": 5, "propose": SEARCH}
MOODY = {"file": str(HERE / "random_temperature.py"), **ET}
LEARNED = {"file": str(HERE / "learned_temperature.py"), **ET}
SLAB = {"file": str(HERE / "slab_model.py"), "causes": 4}
DRAWING = {"file": str(HERE / "slab_model.py"), "candidates": 3, "gamma": 2, "draws": 5}
SAMPLE = {"scheme": "sample", "candidates": 4, "samples": 200, "chains": 10}
GP = {"selection": "gp", "gp": {"rank": 40, "every": 2}}
FULL = {"selection": "gp", "gp": {"rank": 500, "kernel": "rbf", "every": 3}}
STRENGTHS = {"name": "ssmca", "learn": ["W", "sigma", "pi", "mu", "psi"]}
SLABS = {"iterations": 4, "temperature": [[0.2, 2.0], [0.8, 1.1]], "noise": {"W": 0.05}}
JOBS = {
    # keys of [model], scheme, points, dtype, anneal
    "linca": ({"name": "linca"}, ET, 403, "float64", ANNEAL),
    "nmf": ({"name": "nmf"}, ET, 403, "float64", ANNEAL),
    "mca": ({"name": "mca"}, ET, 403, "float64", ANNEAL),
    "maxima of counts": ({"name": "mca poisson", "each": ["pi"]}, ET, 403, "float64", ANNEAL),
    "kept maxima of counts": ({"name": "mca poisson"}, TV, 211, "float32", ANNEAL),
    "sums of counts": ({"name": "nmf poisson"}, ET, 150, "float64", ANNEAL),
    "mca3": ({"name": "mca3 poisson", "each": ["pi"], "learn": ["W", "pi", "alpha"]}, TRIPLES, 403, "float64", ANNEAL),
    "rmca": (RESTRICTED, PAIRS, 211, "float64", {**ANNEAL, "cut": {"schedule": 0.0}}),
    "rmca, a point at a time": (
        {**RESTRICTED, "rate": 0.5},
        PAIRS,
        33,
        "float64",
        {"iterations": 50, "batch": 1, "temperature": 3.0, "noise": {"W": 0.02}},
    ),
    "exact maxima of counts": ({"name": "mca poisson", "each": ["pi"]}, {"scheme": "exact"}, 150, "float64", ANNEAL),
    "linca in float32": ({"name": "linca"}, ET, 403, "float32", ANNEAL),
    "mca in float32": ({"name": "mca"}, ET, 403, "float32", ANNEAL),
    "exact": ({"name": "linca"}, {"scheme": "exact"}, 150, "float64", ANNEAL),
    "fewer points than ranks": ({"name": "linca"}, ET, 3, "float64", ANNEAL),
    "a single point": ({"name": "mca"}, ET, 1, "float64", {"iterations": 2}),
    "until it has settled": (
        {"name": "nmf"},
        ET,
        211,
        "float64",
        {"iterations": 200, "stop": {"change": 0.01, "iterations": 2}},
    ),
    "held out": ({"name": "mca"}, ET, 403, "float32", ANNEAL),
    "held out of batches": ({"name": "linca"}, ET, 403, "float64", {**ANNEAL, "batch": 90}),
    "held out, kept": ({"name": "nmf"}, TV, 211, "float64", {**ANNEAL, "iterations": 4}),
    "held out until they get no better": (
        {"name": "nmf"},
        ET,
        211,
        "float64",
        {"iterations": 200, "stop": {"change": 0.01, "iterations": 2, "holdout": True}},
    ),
    "a pi for each cause": ({"name": "mca", "each": ["pi"]}, ET, 211, "float64", ANNEAL),
    "points for a start": ({"name": "linca", "init": {"W": {"rows": "random"}}}, ET, 211, "float64", ANNEAL),
    "moments for a start": ({"name": "mca", "init": {"W": {"moments": "third"}}}, ET, 211, "float64", ANNEAL),
    "restarted fields": ({"name": "nmf", "init": {"W": {"mean": 3.0, "std": 0.1}}}, TV, 403, "float64", RESTARTS),
    "restarted maxima": ({"name": "mca"}, {"scheme": "exact"}, 211, "float32", RESTARTS),
    "noisyor": ({"name": "noisyor"}, ET, 150, "float64", ANNEAL),
    "occlusion": (OCA, ET, 211, "float64", ANNEAL),
    "occlusion, undisturbed": (OCA, {"scheme": "exact"}, 150, "float64", {"iterations": 3, "temperature": 1.0}),
    "kept occlusion": (OCA, TV, 150, "float32", ANNEAL),
    "objects anywhere": (INVECA, {**ET, "gamma": 3}, 211, "float64", ANNEAL),
    "kept objects anywhere": ({**INVECA, "each": ["pi"]}, {**TV, "gamma": 3}, 150, "float32", ANNEAL),
    "occlusion in batches": (OCA, ET, 211, "float64", {**ANNEAL, "batch": 64}),
    **{
        f"{kind} clusters": ({"name": "gmm", "covariance": kind}, {"candidates": 3}, 211, "float64", ANNEAL)
        for kind in ("spherical", "diagonal", "full", "tied")
    },
    "all clusters in float32": ({"name": "gmm"}, {"scheme": "exact"}, 150, "float32", ANNEAL),
    "kept clusters": ({"name": "gmm"}, {"scheme": "tv", "states": 3}, 211, "float64", ANNEAL),
    "clusters of counts": ({"name": "pmm"}, {"candidates": 3}, 150, "float64", ANNEAL),
    "ternary": (TERNARY, ET, 150, "float64", ANNEAL),
    "counts": (COUNTS, {"scheme": "exact"}, 150, "float64", ANNEAL),
    "a scheme that learns": (
        {"name": "nmf"},
        LEARNED,
        211,
        "float64",
        ANNEAL,
    ),
    "draws": (SLAB, DRAWING, 150, "float64", ANNEAL),
    "values": ({**GSC, "each": ["pi", "mu", "psi"]}, ET, 403, "float64", ANNEAL),
    "kept values": (GSC, TV, 211, "float32", ANNEAL),
    "sample of values": (GSC, {**SAMPLE, "samples": 90}, 150, "float64", ANNEAL),
    "learned selection of values": (GSC, {**ET, **GP}, 150, "float64", ANNEAL),
    "tv": ({"name": "linca"}, TV, 403, "float64", ANNEAL),
    "tv, without memory": ({"name": "mca"}, {**TV, "start": "blind"}, 403, "float64", ANNEAL),
    "tv, ternary": (TERNARY, TV, 150, "float64", ANNEAL),
    "hard": ({"name": "nmf"}, {"scheme": "hard", "gamma": 3, "propose": SEARCH}, 211, "float64", ANNEAL),
    "sample": ({"name": "linca"}, SAMPLE, 403, "float64", ANNEAL),
    "sample, without memory": ({"name": "mca"}, {**SAMPLE, "samples": 90}, 211, "float64", ANNEAL),
    "sample of all": ({"name": "nmf"}, {**SAMPLE, "candidates": 7}, 150, "float32", ANNEAL),
    "sample of clusters": ({"name": "gmm"}, {**SAMPLE, "samples": 90}, 150, "float64", ANNEAL),
    "sample by joint": ({"name": "linca"}, {**SAMPLE, "weights": "joint"}, 150, "float64", ANNEAL),
    "strengths": (STRENGTHS, {**SAMPLE, "samples": 80, "chains": 2}, 150, "float64", SLABS),
    "strengths of all, without memory": (
        {**STRENGTHS, "each": ["pi", "mu", "psi"]},
        {**SAMPLE, "candidates": 7, "samples": 56, "chains": 1},
        97,
        "float32",
        {**SLABS, "batch": 40},
    ),
    "row-independent": ({"name": "linca"}, {**ROW_INDEPENDENT, "random": 1}, 403, "float64", ANNEAL),
    "row-independent, distributed": ({"name": "linca", "causes": 80}, ROW_INDEPENDENT, 403, "float32", ANNEAL),
    "row-independent, distributed to nodes": ({"name": "linca", "causes": 80}, ROW_INDEPENDENT, 403, "float64", ANNEAL),
    "row-independent in batches": ({"name": "linca"}, ROW_INDEPENDENT, 403, "float64", {**ANNEAL, "batch": 90}),
    "random candidates": ({"name": "linca"}, {**ET, "random": 2}, 211, "float64", ANNEAL),
    "random selection": ({"name": "mca"}, {**ET, "selection": "random"}, 150, "float64", ANNEAL),
    "learned selection": ({"name": "linca"}, {**ET, **GP, "random": 1}, 211, "float64", ANNEAL),
    "learned selection, without memory": ({"name": "mca"}, {**ET, **GP}, 211, "float32", ANNEAL),
    "learned selection of all points": ({"name": "nmf"}, {**ET, **FULL}, 150, "float64", ANNEAL),
    "learned selection, a single point": ({"name": "linca"}, {**ET, **GP}, 1, "float64", {"iterations": 2}),
    "learned selection of kept states": ({"name": "linca"}, {**TV, **GP}, 150, "float64", ANNEAL),
    "learned selection of samples": ({"name": "gmm"}, {**SAMPLE, **GP, "samples": 90}, 150, "float64", ANNEAL),
    "learned selection of draws": (SLAB, {**DRAWING, **GP}, 150, "float64", ANNEAL),
    "learned selection of ternary": (TERNARY, {**ET, **FULL}, 150, "float64", ANNEAL),
    "learned selection of places": (INVECA, {**ET, **GP, "gamma": 3}, 150, "float32", ANNEAL),
    "learned selection of occlusion": (OCA, {**ET, **GP}, 150, "float64", ANNEAL),
    "distributed": ({"name": "linca", "causes": 80}, ET, 150, "float64", ANNEAL),
    "distributed to few": ({"name": "nmf"}, ET, 150, "float64", ANNEAL),
    "distributed to nodes": ({"name": "linca", "causes": 80}, ET, 150, "float64", ANNEAL),
    "values, distributed to nodes": ({**GSC, "causes": 30}, ET, 150, "float64", ANNEAL),
    "sample, distributed": ({"name": "linca", "causes": 30}, SAMPLE, 150, "float64", ANNEAL),
    "distributed in batches": ({"name": "linca", "causes": 80}, ET, 150, "float64", {**ANNEAL, "batch": 64}),
    "batches": ({"name": "linca"}, ET, 403, "float64", {**ANNEAL, "batch": 90}),
    "kept in batches": ({"name": "mca"}, {**TV, "start": "blind"}, 403, "float64", {**ANNEAL, "batch": 150}),
    "kept in batches, without memory": ({"name": "linca"}, MOODY, 403, "float64", {**ANNEAL, "batch": 150}),
    "batches of clusters": ({"name": "gmm"}, {"candidates": 3}, 211, "float64", {**ANNEAL, "batch": 64}),
    "a point at a time": ({"name": "nmf"}, ET, 33, "float64", {**ANNEAL, "iterations": 12, "batch": 1}),
    "a scheme that learns in batches": (
        {"name": "nmf"},
        LEARNED,
        211,
        "float64",
        {**ANNEAL, "batch": 64},
    ),
    "cooling that waits": (
        {"name": "mca"},
        ET,
        211,
        "float64",
        {"iterations": 20, "temperature": {"start": 4.0, "steps": 3, "hold": 2, "change": 0.05}},
    ),
    "kept": ({"name": "linca"}, MOODY, 403, "float64", ANNEAL),
    "kept, without memory": ({"name": "mca"}, MOODY, 403, "float64", ANNEAL),
}


THREADED_JOBS = (
    "row-independent",
    "ternary",
    "counts",
    "kept, without memory",
    "sample",
    "values",
    "strengths",
    "learned selection, without memory",
)
"""Jobs that seven ranks also run with threads."""
PARALLEL_JOBS = (
    *THREADED_JOBS,
    "linca",
    "fewer points than ranks",
    "moments for a start",
    "restarted fields",
    "occlusion",
    "objects anywhere",
    "held out, kept",
    "full clusters",
    "a scheme that learns",
    "tv, without memory",
    "distributed in batches",
    "row-independent, distributed to nodes",
    "kept in batches",
    "rmca, a point at a time",
)
"""Jobs that seven ranks run, and ranks in threads: one for each kind of parallel work."""


def table_of(name):
    """Return the table of a job, whose data are given as an array."""
    model, inference, _, _, anneal = JOBS[name]
    table = job_table({"causes": 7, **model}, inference, anneal, seed=11)
    if kind_of(name) in ("noisyor", "own_model"):  # models without sigma
        table["model"] = {**{k: v for k, v in table["model"].items() if k != "sigma"}, "learn": ["W", "pi"]}
    if kind_of(name) in ("gmm", "pmm"):  # with their default initial values and learned parameters
        table["model"] = {"causes": 7, **model}
    table["data"] |= {"holdout": 0.2, "centre": "batches" in name} if name.startswith("held out") else {}
    return table


def kind_of(name):
    """Return the name of the model of a job."""
    model = JOBS[name][0]
    return model.get("name", Path(model.get("file", "")).stem)


def data_of(name):
    """Return the points of a job."""
    _, _, points, dtype, _ = JOBS[name]
    return data_for(kind_of(name), points).astype(dtype)


def fits(threads, comm=None, names=tuple(JOBS)):
    """Return the results of jobs by name."""
    found = {}
    cache_bytes, products = e_step.POSTERIOR_CACHE_BYTES, linear.DISTRIBUTED_M_STEP_PRODUCTS
    for name in names:
        table, data = table_of(name), data_of(name)
        table["run"]["threads"] = threads
        e_step.POSTERIOR_CACHE_BYTES = -(1 << 40) if "without memory" in name else cache_bytes
        linear.DISTRIBUTED_M_STEP_PRODUCTS = 0 if "distributed" in name else products
        try:
            result = fit(table, data, comm=with_nodes(comm) if "nodes" in name else comm)
        finally:
            e_step.POSTERIOR_CACHE_BYTES, linear.DISTRIBUTED_M_STEP_PRODUCTS = cache_bytes, products
        found |= {f"{name}/{key}": value for key, value in result.params.items()}
        found[f"{name}/free_energy"] = result.history.get("free_energy", np.empty(0))
        for more in ("renewed_fields", "holdout_evidence"):
            if more in result.history:
                found[f"{name}/{more}"] = result.history[more]
        found[f"{name}/fingerprint"] = np.array(result.metadata["data fingerprint"])
    return found


def with_nodes(comm):
    """Return a copy of the communicator whose ranks alternate between two nodes."""
    same = (comm or MPI.COMM_WORLD).Dup()
    shared_memory.node_communicator = lambda ranks: ranks.Split(ranks.rank % 2)
    try:
        shared_memory.NodeSharing.of(same)
    finally:
        shared_memory.node_communicator = REAL_NODE_COMMUNICATOR
    return same


def data_for(kind, points):
    """Return data for a model: sums or maxima of fields with noise, binary values, or counts."""
    if kind == "noisyor":
        return (np.random.default_rng(5).random((points, 9)) < 0.4).astype(float)
    if kind in ("own_model", "pmm"):
        return np.random.default_rng(5).poisson(3.0, (points, 9)).astype(float)
    name = kind if kind in ("linca", "nmf", "mca", "mca poisson", "nmf poisson") else "linca"
    name = "mca" if kind == "ssmca" else name
    name = "mca poisson" if kind in ("mca3 poisson", "rmca poisson") else name
    return random_data(name, points, random_params(name, 9, 7, seed=len(kind)), seed=5)


if __name__ == "__main__":
    for threads, names in ((1, PARALLEL_JOBS), (2, THREADED_JOBS)):
        learned = fits(threads, names=names)
        if Ranks().is_root:
            np.savez(f"{sys.argv[1]}/{threads}.npz", **learned)
