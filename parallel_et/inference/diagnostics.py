"""Diagnostics of a run: job and data that do not fit, limits of double precision, and signs of a poor optimum."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from parallel_et.core.capabilities import pictures_of
from parallel_et.core.model import Model
from parallel_et.core.random import stream
from parallel_et.core.types import Limited, Params
from parallel_et.em.kmeans_plus_plus import fetch
from parallel_et.em.problem import Problem
from parallel_et.em.restart_fields import by_chance, skewed_directions
from parallel_et.inference.posterior import Inference
from parallel_et.parallel.communicator import Ranks

NOISE = (0.01, 20.0)
"""Where sigma begins, in units of the spread of the data: below and above it does not fit."""
FIELDS = (1 / 30, 30.0)
"""The root mean square of the fields at the beginning, in units of that of the data."""
SHARED, SHARED_BELOW_ZERO = 3.0, 1.0
"""What all points share, in units of their spread, above which it is too much: for fields that cannot be negative, and
for those that can, which explain points on both sides of zero."""
HALF = 0.5


def notes(problem: Problem, params: Params, name: str) -> Iterator[str]:
    """All that does not fit, for a model of that name with the parameters that it begins with."""
    data, model = problem.summary, problem.model
    if data.points < data.dims:
        yield (
            f"note: {data.points} points are fewer than the {data.dims} dimensions; points are along the first axis, "
            "is the table transposed?"
        )
    if data.spread == 0:
        yield "note: all points are the same"
        return
    if data.constant:
        yield f"note: {of(data.constant, data.dims)} have the same value, not zero, in all points"
    if data.empty > HALF * data.dims:
        yield f"note: {of(data.empty, data.dims)} are zero in all points"
    signed = "W" not in model.params or model.params["W"].low < 0
    if not signed and data.negative > HALF:
        yield f"warning: {data.negative:.0%} of the data is negative, the fields of {name} cannot be"
    if "sigma" not in model.params:  # nothing else has the unit of the data for sure
        return
    most = SHARED_BELOW_ZERO if signed else SHARED
    if data.offset > most * data.spread:
        way = "data.centre = true subtracts it" if signed else "subtract it, or a part of it, as causes are to add it"
        yield (
            f"note: what all points share, {data.offset:.3g}, is more than {f'{most:g} times ' if most > 1 else ''}"
            f"their spread of {data.spread:.3g}; {way}"
        )
    sigma = float(params["sigma"])
    if not NOISE[0] * data.spread <= sigma <= NOISE[1] * data.spread:
        yield f"note: sigma is {sigma:.3g}, the data have a spread of {data.spread:.3g}; left out, it begins with that"
    size = float(np.sqrt((pictures_of(model, params) ** 2).mean()))
    if not FIELDS[0] * data.rms <= size <= FIELDS[1] * data.rms:
        yield (
            f"note: W begins with values of about {size:.3g}, the data have some of about {data.rms:.3g}; without "
            "model.init it begins at their scale"
        )


def of(count: int, dims: int) -> str:
    """Some of the dimensions."""
    return f"{count} of the {dims} dimensions"


CLOSE = 1e-8
"""Rounding error of a log joint, in nats, from which on it is reported."""


def limits(problem: Problem, params: Params, evidence: float) -> str:
    """Return the floors and limits that act on the parameters, in one line; empty if there are none.

    ``evidence`` is the mean log evidence of a point.
    """
    model = problem.model
    limited = model if isinstance(model, Limited) else model.noise
    clauses = [*limited.at_limits(params, problem.summary)] if isinstance(limited, Limited) else []
    rounding = abs(evidence) * float(np.finfo(float).eps)
    if rounding > CLOSE:
        learned = ", ".join(problem.model.options.learn)
        clauses.append(
            f"the evidence of a point is {evidence:.3g}, so far is the model from the data: log joints are exact to "
            f"{rounding:.1g} nats, as are the posterior and what is learned from it: {learned}"
        )
    return "; ".join(clauses)


SOME = 2000
"""Points that are looked at, of the data and of the model."""
PIECE = 256
"""Of which so many at a time."""
ALIKE = 0.95
"""Cosine from which on two fields are one."""
TOGETHER = 0.2
"""Distance between a field and what two others make, beside its length, below which it stands for both."""
NEAR = 8
"""Of how many fields, the nearest, pairs are looked at for each."""
MORE = 1.5
"""How much more than points of the model itself what is left of the data must be skewed."""
TOLD = 3
"""Signs of a kind that are told one by one."""
WAY_OUT = 'another seed, init = { W = { moments = "third" } } or anneal.renew may find a better optimum'


def doubts(problem: Problem, ranks: Ranks, params: Params) -> str:
    """Why the parameters may not be the best ones, in a line; empty if nothing speaks against them. All ranks call it.

    Of models whose causes are active together: fields that are alike, fields that stand for two others at once, and
    what the model leaves of points being more skewed than of points that it has drawn itself, by the same inference.
    """
    model, N = problem.model, problem.shard.points
    if "W" not in model.params or model.params["W"].axes != "DH" or model.latents.most == 1:
        return ""
    points = fetch(problem, ranks, np.linspace(0, N - 1, min(N, SOME)).astype(int))

    def found(root: Ranks) -> str:
        signs = [*alike(params["W"]), *sums(model, params), *skewed(problem, root, params, points)]
        return ", ".join(signs)

    return ranks.on_root_alone(found)


def alike(W: np.ndarray) -> Iterator[str]:
    """Fields (D, H) of the same direction."""
    length = np.linalg.norm(W, axis=0)
    unit = W / np.where(length > 0, length, 1.0)
    pairs = np.argwhere(np.triu(unit.T @ unit, 1) > ALIKE)
    yield from few([f"fields {i} and {j} are alike" for i, j in pairs.tolist()])


def sums(model: Model, params: Params) -> Iterator[str]:
    """Fields that are what two others make together."""
    W = pictures_of(model, params)
    length = np.linalg.norm(W, axis=0)
    unit = W / np.where(length > 0, length, 1.0)
    cosines, said = unit.T @ unit, list[str]()
    for h in np.flatnonzero(length > 0).tolist():
        others = [i for i in np.argsort(-cosines[h], kind="stable").tolist() if i != h and length[i] > 0][:NEAR]
        pairs = list(combinations(sorted(others), 2))
        if pairs:
            gaps = np.linalg.norm(model.mean(params, np.array(pairs, np.int32)) - W[:, h], axis=1)
            i, j = pairs[int(gaps.argmin())]
            apart = max(length[i], length[j]) < (1 - TOGETHER) * length[h]  # else it is one of them
            if gaps.min() < TOGETHER * length[h] and apart:
                said.append(f"field {h} is what {i} and {j} make together")
    yield from few(said)


def skewed(problem: Problem, root: Ranks, params: Params, points: np.ndarray) -> Iterator[str]:
    """Whether what is left of points (n, D) is more skewed than what is left of points of the model."""
    rng = stream(problem.seed, "doubts")
    drawn, _ = problem.model.draw(params, rng, len(points))
    inference = Inference(problem.model, problem.scheme, params, ["reconstruction"])

    def most(Y: np.ndarray) -> float:
        rest = np.empty(Y.shape)
        for start in range(0, len(Y), PIECE):
            some = slice(start, start + PIECE)
            rest[some] = Y[some] - inference.block(np.asarray(Y[some], np.float64), start)["reconstruction"]
        return float(skewed_directions(rest, rng, root)[1].max(initial=0.0))

    if (here := most(points)) > MORE * max(by_chance(len(points)), most(drawn)):
        yield f"what is left of the points has a skewness of {here:.2g}: a cause may be missing"


def few(signs: list[str]) -> list[str]:
    """The first ones, and how many there are besides."""
    return signs if len(signs) <= TOLD else [*signs[:TOLD], f"{len(signs) - TOLD} more of these"]
