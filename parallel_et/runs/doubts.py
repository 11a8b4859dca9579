"""Signs that a run has ended in an optimum that is not the best: told at its end, and kept in its result."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from parallel_et.core.contract import Model, Params
from parallel_et.core.first_rows import fetch
from parallel_et.core.problem import Problem
from parallel_et.core.random import stream
from parallel_et.core.renewal import by_chance, skewed_directions
from parallel_et.parallel.ranks import Ranks
from parallel_et.runs.inference import Inference

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
    together = model.latents.most != 1 and model.can("mean") and hasattr(model, "prior") and hasattr(model, "noise")
    if "W" not in model.params or model.params["W"].axes != "DH" or not together:
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
    W = model.pictures(params)
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
