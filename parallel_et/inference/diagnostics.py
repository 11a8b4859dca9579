"""Diagnostics of a run: mismatch of job and data, active limits of parameters, and signs of a poor optimum."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from parallel_et.core.capabilities import cause_images_of
from parallel_et.core.model import Model
from parallel_et.core.random import stream
from parallel_et.core.types import Limited, Params
from parallel_et.em.kmeans_plus_plus import fetch_points
from parallel_et.em.problem import Problem
from parallel_et.em.restart_fields import skewed_directions, skewness_of_noise
from parallel_et.inference.posterior import Inference
from parallel_et.parallel.communicator import Ranks

SIGMA_RANGE = (0.01, 20.0)
"""Plausible initial values of sigma, in units of the spread of the data."""
FIELD_RANGE = (1 / 30, 30.0)
"""Plausible root mean squares of the initial fields, in units of that of the data."""
MAX_OFFSET = 3.0
"""Largest mean of the data, in units of their spread, for fields that cannot be negative."""
MAX_OFFSET_SIGNED = 1.0
"""The same for fields of any sign."""
MAX_FRACTION = 0.5
"""Largest fraction of dimensions that are zero, or of values that are negative."""


def data_warnings(problem: Problem, params: Params, name: str) -> Iterator[str]:
    """Yield a line for each mismatch of the data and a model with these initial parameters."""
    data, model = problem.summary, problem.model
    if data.points < data.dims:
        yield (
            f"note: {data.points} points are fewer than the {data.dims} dimensions; rows must be points; "
            "is the table transposed?"
        )
    if data.spread == 0:
        yield "note: all points are identical"
        return
    if data.constant:
        yield f"note: {dimensions(data.constant, data.dims)} have the same non-zero value in all points"
    if data.empty > MAX_FRACTION * data.dims:
        yield f"note: {dimensions(data.empty, data.dims)} are zero in all points"
    signed = "W" not in model.params or model.params["W"].low < 0
    if not signed and data.negative > MAX_FRACTION:
        yield f"warning: {data.negative:.0%} of the data are negative, but the fields of {name} are not"
    if "sigma" not in model.params:  # no other parameter is known to be in the unit of the data
        return
    limit = MAX_OFFSET_SIGNED if signed else MAX_OFFSET
    if data.offset > limit * data.spread:
        way_out = "data.centre = true subtracts it" if signed else "subtract it or a part of it"
        yield (
            f"note: the mean of the data has a magnitude of {data.offset:.3g}, more than "
            f"{f'{limit:g} times ' if limit > 1 else ''}their spread of {data.spread:.3g}; {way_out}"
        )
    sigma = float(params["sigma"])
    if not SIGMA_RANGE[0] * data.spread <= sigma <= SIGMA_RANGE[1] * data.spread:
        yield f"note: sigma is {sigma:.3g}, but the data have a spread of {data.spread:.3g}, the default of sigma"
    size = float(np.sqrt((cause_images_of(model, params) ** 2).mean()))
    if not FIELD_RANGE[0] * data.rms <= size <= FIELD_RANGE[1] * data.rms:
        yield (
            f"note: the initial W has values of about {size:.3g}, the data of about {data.rms:.3g}; without "
            "model.init, W is initialised at the scale of the data"
        )


def dimensions(count: int, dims: int) -> str:
    """Return a number of dimensions in words."""
    return f"{count} of the {dims} dimensions"


MIN_ROUNDING_ERROR = 1e-8
"""Smallest rounding error of a log joint that is reported, in nats."""


def limits(problem: Problem, params: Params, evidence: float) -> str:
    """Return the active limits of the parameters and of double precision, in one line; empty if there are none.

    ``evidence`` is the mean log evidence of a point.
    """
    model = problem.model
    limited = model if isinstance(model, Limited) else model.noise
    clauses = [*limited.at_limits(params, problem.summary)] if isinstance(limited, Limited) else []
    rounding = abs(evidence) * float(np.finfo(float).eps)
    if rounding > MIN_ROUNDING_ERROR:
        learned = ", ".join(problem.model.options.learn)
        clauses.append(
            f"the mean log evidence is {evidence:.3g}: the model is far from the data, and log joints have "
            f"rounding errors of {rounding:.1g} nats, which affect the posterior and the learned {learned}"
        )
    return "; ".join(clauses)


TEST_POINTS = 2000
"""Number of points of the data, and of points drawn from the model, for diagnostics."""
POINTS_AT_A_TIME = 256
"""Points that are inferred at a time."""
DUPLICATE_COSINE = 0.95
"""Smallest cosine of two duplicate fields."""
COMBINATION_DISTANCE = 0.2
"""Largest distance of a field from the mean of two other active causes, in units of its length."""
NEAREST_FIELDS = 8
"""Number of nearest fields whose pairs are compared with a field."""
SKEWNESS_RATIO = 1.5
"""Smallest ratio of the skewness of residuals of the data and of points drawn from the model."""
MAX_SIGNS = 3
"""Maximum number of signs of one kind that are listed individually."""
WAY_OUT = 'another seed, init = { W = { moments = "third" } } or anneal.renew may find a better optimum'


def diagnostics(problem: Problem, ranks: Ranks, params: Params) -> str:
    """Return the signs of a poor optimum in one line; empty if there are none. Collective.

    Models with several active causes have these signs:

    * duplicate fields
    * fields that combine two other fields
    * residuals of the data that are more skewed than residuals of points drawn from the model
    """
    model, N = problem.model, problem.shard.points
    if "W" not in model.params or model.params["W"].axes != "DH" or model.latents.max_active == 1:
        return ""
    points = fetch_points(problem, ranks, np.linspace(0, N - 1, min(N, TEST_POINTS)).astype(int))

    def found(root: Ranks) -> str:
        signs = [
            *duplicates(params["W"]),
            *combinations_of_two(model, params),
            *skewed_residuals(problem, root, params, points),
        ]
        return ", ".join(signs)

    return ranks.run_on_root(found)


def duplicates(W: np.ndarray) -> Iterator[str]:
    """Yield the pairs of fields (D, H) with the same direction."""
    length = np.linalg.norm(W, axis=0)
    unit = W / np.where(length > 0, length, 1.0)
    pairs = np.argwhere(np.triu(unit.T @ unit, 1) > DUPLICATE_COSINE)
    yield from shorten_list([f"fields {i} and {j} are duplicates" for i, j in pairs.tolist()])


def combinations_of_two(model: Model, params: Params) -> Iterator[str]:
    """Yield the fields that equal the mean of two other active causes."""
    W = cause_images_of(model, params)
    length = np.linalg.norm(W, axis=0)
    unit = W / np.where(length > 0, length, 1.0)
    cosines = unit.T @ unit
    signs: list[str] = []
    for h in np.flatnonzero(length > 0).tolist():
        others = [i for i in np.argsort(-cosines[h], kind="stable").tolist() if i != h and length[i] > 0][
            :NEAREST_FIELDS
        ]
        pairs = list(combinations(sorted(others), 2))
        if pairs:
            gaps = np.linalg.norm(model.mean(params, np.array(pairs, np.int32)) - W[:, h], axis=1)
            i, j = pairs[int(gaps.argmin())]
            distinct = max(length[i], length[j]) < (1 - COMBINATION_DISTANCE) * length[h]  # else a duplicate
            if gaps.min() < COMBINATION_DISTANCE * length[h] and distinct:
                signs.append(f"field {h} combines fields {i} and {j}")
    yield from shorten_list(signs)


def skewed_residuals(problem: Problem, root: Ranks, params: Params, points: np.ndarray) -> Iterator[str]:
    """Yield a sign if the residuals of points (n, D) are more skewed than those of points drawn from the model."""
    rng = stream(problem.seed, "doubts")
    drawn, _ = problem.model.draw(params, rng, len(points))
    inference = Inference(problem.model, problem.scheme, params, ["reconstruction"])

    def skewness(Y: np.ndarray) -> float:
        residual = np.empty(Y.shape)
        for start in range(0, len(Y), POINTS_AT_A_TIME):
            some = slice(start, start + POINTS_AT_A_TIME)
            residual[some] = Y[some] - inference.block(np.asarray(Y[some], np.float64), start)["reconstruction"]
        return float(skewed_directions(residual, rng, root)[1].max(initial=0.0))

    if (found := skewness(points)) > SKEWNESS_RATIO * max(skewness_of_noise(len(points)), skewness(drawn)):
        yield f"the residual of the data has a skewness of {found:.2g}: a cause may be missing"


def shorten_list(signs: list[str]) -> list[str]:
    """Return the first signs, and the number of the others."""
    return signs if len(signs) <= MAX_SIGNS else [*signs[:MAX_SIGNS], f"{len(signs) - MAX_SIGNS} more"]
