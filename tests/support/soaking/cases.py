"""The jobs that a soak disturbs: every model with each of its schemes, varied at random, and the jobs of many_fits."""

import random
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from every_model import SCHEME_KEYS, accepts, build, data, examples, job, label, names, schemes_of, variants
from many_fits import ANNEAL, FULL, GP, JOBS, data_of, table_of
from problems import problem_of

from parallel_et.errors import UserError
from parallel_et.job.job import check_job

POINTS, ITERATIONS = 240, 60
VARIATIONS: dict[str, dict[str, dict[str, Any]]] = {
    "learned selection": {"inference": GP},
    "learned selection of all points": {"inference": FULL},
    "minibatches": {"anneal": {"batch": 90}},
    "streamed": {"data": {"memory": "2 KiB"}},
    "held out": {"data": {"holdout": 0.2}},
    "renewed": {"anneal": {"hold": 2, "renew": 3}},
    "annealed": {"anneal": {"temperature": ANNEAL["temperature"]}},
    "cut": {"anneal": {"cut": ANNEAL["cut"]}},
    "noise": {"anneal": {"noise": ANNEAL["noise"]}},
    "distributed": {},
    "without memory": {},
}
"""Keys that vary a job, by section; the hook uses "distributed" and "without memory" in the name of a case."""
_building = Lock()


class Case(NamedTuple):
    """A job: its name, its text and its points."""

    name: str
    job: str
    points: np.ndarray


def all_cases(rng: random.Random) -> list[Any]:
    """Return the (model, scheme) pairs of the registries and the names of many_fits, in random order, pairs first."""
    pairs = [(model, scheme) for name in names() for model in variants(name) for scheme in schemes_of(model)]
    pairs += [(model, scheme) for model in examples() for scheme in schemes_of(model)]
    others = list(JOBS)
    rng.shuffle(pairs)
    rng.shuffle(others)
    return [*pairs, *others]


def make_case(which: Any, rng: random.Random) -> Case:
    """Build a case: a pair is varied at random as far as its model and scheme allow, a job of many_fits is longer."""
    with _building:
        if isinstance(which, str):
            return Case(which, text_of(table_of(which), rng), data_of(which))
        return varied(*which, rng)


def varied(model: dict[str, Any], scheme: str, rng: random.Random) -> Case:
    """Build the job of a model and a scheme, with some of the variations that they allow."""
    points = data(tuple(model.items()), POINTS).astype(rng.choice(["float64", "float32"]))
    inference = {"scheme": scheme, **SCHEME_KEYS.get(scheme, {})}
    table = job({**model, "learn": list(build(model).params)}, inference, iterations=3)
    if not accepts(table):  # a model that cannot learn all of its parameters
        table = job(model, inference, iterations=3)
    chosen = [f"{label(model)}, {scheme}"]
    for name in rng.sample(list(VARIATIONS), 5):
        more = {**table, **{section: {**table[section], **keys} for section, keys in VARIATIONS[name].items()}}
        if accepts(more) and sets_up(more, points):
            table = more
            chosen.append(name)
    return Case(", ".join(chosen), text_of(table, rng), points)


def sets_up(table: dict[str, Any], points: np.ndarray) -> bool:
    """Return whether a valid job can be set up with these points."""
    try:
        problem_of(table, points)
    except UserError:
        return False
    return True


def text_of(table: dict[str, Any], rng: random.Random) -> str:
    """Return the text of a job that is long enough to be disturbed and writes many checkpoints."""
    run = {"picture": False, "snapshots": 20, "checkpoint": {"every": rng.randint(1, 3), "keep": 3}}
    table = {
        **table,
        "data": {**table["data"], "source": "data.npy"},
        "anneal": {**table["anneal"], "iterations": ITERATIONS},
        "run": {**table.get("run", {}), **run},
    }
    return check_job(table).toml()


def write_case(case: Case, place: Path) -> None:
    """Write the files that ``train job.toml`` reads."""
    np.save(place / "data.npy", case.points)
    (place / "job.toml").write_text(case.job)
    (place / "case").write_text(case.name)
