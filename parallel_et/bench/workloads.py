"""The workloads of the benchmark: problems of published sizes, drawn from the models themselves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parallel_et.core.capabilities import filled
from parallel_et.core.model import shape_of
from parallel_et.core.random import stream
from parallel_et.data.model import DrawnFromModel
from parallel_et.job.job import Job, check_job
from parallel_et.models import MODELS, Params

LEARNED = {
    "linca": ["W", "sigma", "pi"],
    "gsc": ["W", "sigma", "pi", "mu", "psi"],
    "oca": ["W", "T", "sigma", "pi"],
    "inveca": ["W", "T", "sigma", "pi"],
    "ssmca": ["W", "sigma", "pi", "mu", "psi"],
}
"""Learned parameters of models that learn more than their fields."""
ACTIVE = 2.0
"""Mean number of active causes per point."""
SIGMA = 2.0
"""Standard deviation of the noise, as in the bars test."""
LENGTH = 500.0**0.5
"""Length of a field, as in the bars test: five pixels of 10."""
NONZERO_FRACTION = 0.2
"""Fraction of the dimensions in which a field of a non-negative model is not zero, as in the bars test."""
CLUSTER_SPREAD = 0.7
"""Standard deviation of the means of clusters in each dimension, relative to that of the points of a cluster."""
SEED = 1
SEARCH = {"states": 60, "select": 20, "flip": 20, "cross": 20}
CLUSTER_SEARCH = {"states": 10, "near": 3}
POISSON = {"noise": "poisson"}
CHANNELS = 3
COLOUR = {"channels": CHANNELS}
EACH = {"each": ["pi", "mu", "psi"]}
NS_PER_PIXEL = 25.0
"""Nanoseconds that a draw of a strength may take for each dimension."""


@dataclass(frozen=True)
class Workload:
    """A problem of the benchmark.

    Attributes
    ----------
    id : name in the table
    model : name of the model
    points, dims, causes : N, D and H
    candidates, gamma : H' and the largest number of active causes; no gamma for clusters
    singletons, temperature : keys of the job
    most : target for the ratio to one matrix product. For a learned selection it counts the phases ``SELECTING``
        of an iteration in which no kernel is fitted
    most_ns : target in nanoseconds per state if the ratio has no meaning: for all dimensions up to 100, else for each
        100. With ``samples`` it counts the phase of the states, for each sample
    what : description
    search : stored states and proposals of each kind, for the scheme tv
    keys : further keys of the model
    samples, chains : numbers of samples and of chains per point, for the scheme sample
    block : points per block; default: follows from the sizes
    rank : rank of the learned selection
    """

    id: str
    model: str
    points: int
    dims: int
    causes: int
    candidates: int
    gamma: int | None = None
    singletons: bool = False
    temperature: float = 1.0
    most: float | None = None
    most_ns: float | None = None
    what: str = ""
    search: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 0
    chains: int = 20
    block: int | None = None
    rank: int = 0

    def job(self, threads: int = 1) -> Job:
        """Return the job of the workload."""
        model: dict[str, Any] = {"name": self.model, "causes": self.causes, **self.keys}
        inference: dict[str, Any] = {"candidates": self.candidates, **self._scheme()}
        if self.gamma is None:
            model["init"] = {"W": 0.0}  # the parameters begin near the true ones, so no points have to be chosen
        else:
            inference |= {} if self.samples else {"gamma": self.gamma}
            learn = LEARNED.get(self.model, ["W"])
            model |= {"pi": min(0.5, ACTIVE / self.causes), "learn": learn}
            model |= {"sigma": SIGMA} if self.keys != POISSON else {}
        table = {
            "model": model,
            "data": {"source": "array:drawn"},
            "inference": inference,
            "anneal": {"temperature": self.temperature},
            "run": {"seed": SEED, "threads": threads, **({"block": self.block} if self.block else {})},
        }
        return check_job(table, self.id)

    def _scheme(self) -> dict[str, Any]:
        if self.samples:
            return {"scheme": "sample", "samples": self.samples, "chains": self.chains}
        if self.rank:
            return {"selection": "gp", "gp": {"rank": self.rank}}
        if not self.search:
            return {"singletons": self.singletons}
        kinds = dict(self.search)
        return {"scheme": "tv", "states": kinds.pop("states"), "propose": kinds}


WORKLOADS = (
    Workload("W1", "linca", 2000, 25, 10, 5, 3, most_ns=8.0, what="the bars test"),
    Workload("W2", "linca", 20000, 256, 200, 8, 4, most=2.0, what="16 x 16 patches"),
    Workload("W3", "linca", 20000, 676, 800, 10, 4, most=1.25, what="26 x 26 patches"),
    Workload("W4", "linca", 4000, 1600, 1600, 12, 4, most=1.25, what="40 x 40 patches"),
    Workload("K2", "linca", 200000, 256, 200, 8, 4, most=3.0, what="16 x 16 patches, learned selection", rank=256),
    Workload("S4", "linca", 2000, 1600, 1600, 34, 34, most_ns=5.0, what="40 x 40 patches, sampled", samples=6800),
    Workload(
        "X2", "ssmca", 1000, 81, 100, 10, 10, most_ns=81 * NS_PER_PIXEL, what="9 x 9 patches", samples=400, chains=1
    ),
    Workload("L1", "linca", 40000, 200, 200, 10, 4, True, most=4.0, what="sound"),
    Workload("F2", "nmf", 20000, 256, 200, 8, 4, most=6.0, what="16 x 16 patches"),
    Workload("G2", "gsc", 5000, 100, 100, 8, 4, most=30.0, what="10 x 10 patches, causes with values", keys=EACH),
    Workload("M2", "mca", 10000, 100, 100, 5, 3, True, 1.05, most=12.0, what="10 x 10 patches"),
    Workload("M3", "mca", 5000, 256, 200, 8, 4, True, 1.05, most=15.0, what="16 x 16 patches"),
    Workload("M4", "mca", 2000, 400, 600, 12, 10, True, 1.05, most_ns=60.0, what="20 x 20 patches, on a cluster"),
    Workload("P2", "mca", 10000, 100, 100, 5, 3, True, 1.05, most=18.0, what="M2 with Poisson noise", keys=POISSON),
    Workload("O2", "oca", 8000, 3675, 30, 6, 3, True, 1.05, most=60.0, what="35 x 35 pixels in colour", keys=COLOUR),
    Workload("I2", "inveca", 2000, 2700, 16, 7, 4, most_ns=40.0, what="objects in 30 x 30 pixels", keys=COLOUR),
    Workload("V2", "gmm", 100000, 50, 1000, 10, most=3.0, what="1000 clusters"),
    Workload("V3", "gmm", 100000, 50, 1000, 10, most=0.34, what="1000 clusters, stored states", search=CLUSTER_SEARCH),
    Workload("T2", "linca", 20000, 256, 200, 6, 8, most=8.0, what="16 x 16 patches, stored states", search=SEARCH),
    Workload("T3", "mca", 5000, 256, 200, 6, 8, False, 1.05, most=25.0, what="the same with maxima", search=SEARCH),
)


def draw_points(workload: Workload, points: int) -> DrawnFromModel:
    """Draw points from a workload's model: clusters, or random fields with the noise of the bars test."""
    options = workload.job().model
    model = MODELS.find(workload.model)(options, workload.dims)
    rng = stream(SEED, "bench")
    if "T" in model.params:
        return DrawnFromModel(model, draw_objects(model, rng, options.pi), points, SEED)
    W = rng.standard_normal((workload.dims, workload.causes))
    if workload.gamma is None:
        even = {"var": filled(model, "var", 1.0), "pi": filled(model, "pi", 1 / model.H)}
        return DrawnFromModel(model, {"W": np.asfortranarray(CLUSTER_SPREAD * W), **even}, points, SEED)
    if model.params["W"].low == 0:
        W = rng.gamma(2.0, 1.0, W.shape) * (rng.random(W.shape) < NONZERO_FRACTION)
        W[0] += W.sum(0) == 0
    W *= LENGTH / np.linalg.norm(W, axis=0)
    params = {"W": np.asfortranarray(W), "sigma": np.array(SIGMA), **draw_prior(model, rng, options.pi)}
    return DrawnFromModel(model, {name: params[name] for name in model.params}, points, SEED)


def draw_prior(model: Any, rng: np.random.Generator, pi: float) -> dict[str, np.ndarray]:
    """Return the prior of the causes, and of their values around 1 if the model has values."""
    prior = {"pi": filled(model, "pi", pi)}
    if "mu" not in model.params:
        return prior
    if "mu" not in model.options.each:
        return {**prior, "mu": np.array(1.0), "psi": np.array(0.0625)}
    return {**prior, "mu": 0.5 + rng.random(model.H), "psi": 0.25 * (0.5 + rng.random(model.H))}


def draw_objects(model: Any, rng: np.random.Generator, pi: float) -> Params:
    """Draw causes of occlusion: each fills a fraction of the pixels with its own colour."""
    W = (rng.random(shape_of(model, "W")) < NONZERO_FRACTION).astype(np.float64)
    values = len(W) * model.channels
    T = LENGTH / np.sqrt(NONZERO_FRACTION * values) * (0.5 + rng.random(shape_of(model, "T")))
    return {"W": np.asfortranarray(W), "T": np.asfortranarray(T), "sigma": np.array(SIGMA), "pi": np.array(pi)}


def nearby_params(source: DrawnFromModel) -> Params:
    """Return parameters as in the middle of a run: the true W with noise of a tenth of its root mean square."""
    W = source.params["W"]
    off = 0.1 * np.sqrt(np.mean(W**2)) * stream(SEED, "off").standard_normal(W.shape)
    return source.model.constrain({**source.params, "W": W + off})
