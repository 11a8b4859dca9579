"""Every model with every value of its own keys, with data drawn from it: a new model enters by itself."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np

from parallel_et.core.options import initial_value_of
from parallel_et.core.registry import read_source
from parallel_et.core.types import Summary
from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.models import MODELS
from parallel_et.schemes import SCHEMES

D, H = 6, 4
EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = {"inveca": {"rows": 1, "size": 1}, "rmca": {"total": 18.0}}
"""Keys without which a model does not accept these points."""
SCHEME_KEYS = {
    "et": {"candidates": 3, "gamma": 2},
    "tv": {"states": 5, "gamma": 3},
    "hard": {"gamma": 3},
    "sample": {"candidates": 3, "samples": 40, "chains": 4},
}
"""Keys that a scheme needs."""


def names() -> list[str]:
    """Return the names of all models, each once."""
    return sorted(set(MODELS.names()) - set(MODELS.aliases))


def variants(name: str) -> Iterator[dict[str, Any]]:
    """Yield the [model] keys of a model: as it is by default, then with every other value of its own keys."""
    yield {"name": name, **KEYS.get(name, {})}
    for key, field in MODELS.find(name).Options.model_fields.items():
        if get_origin(field.annotation) is Literal:
            for value in get_args(field.annotation):
                if value != field.default:
                    yield {"name": name, **KEYS.get(name, {}), key: value}


def examples() -> Iterator[dict[str, Any]]:
    """Yield the [model] keys of the models that are files of one's own."""
    yield from ({"file": str(EXAMPLES / f"{name}.py")} for name in ("own_model", "ternary"))


def models() -> Iterator[dict[str, Any]]:
    """Yield the [model] keys of every variant of every model that ships, and of every example."""
    for name in names():
        yield from variants(name)
    yield from examples()


def class_of(model: dict[str, Any]) -> Any:
    """Return the class of a model."""
    return (
        MODELS.find(model["name"]) if "name" in model else MODELS.load_text(read_source(model["file"]), model["file"])
    )


def label(model: dict[str, Any]) -> str:
    """Return the name of a model and the values of its keys, for people."""
    return " ".join(Path(value).stem for value in model.values() if isinstance(value, str))


def job(model: dict[str, Any], inference: dict[str, Any], **anneal: Any) -> dict[str, Any]:
    """Return the table of a job."""
    return {
        "model": {"causes": H, **model},
        "data": {"source": "array:given"},
        "inference": inference,
        "anneal": {"temperature": 1.0, **anneal},
    }


def schemes_of(model: dict[str, Any]) -> list[str]:
    """Return the names of the schemes with which a model can be trained."""
    return [name for name in SCHEMES.names() if accepts(job(model, {"scheme": name, **SCHEME_KEYS.get(name, {})}))]


def accepts(table: dict[str, Any]) -> bool:
    """Return whether a job is valid."""
    try:
        check_job(table)
    except UserError:
        return False
    return True


def build(model: dict[str, Any]) -> Any:
    """Build the model itself, for points of D dimensions."""
    scheme = schemes_of(model)[0]
    checked = check_job(job(model, {"scheme": scheme, **SCHEME_KEYS.get(scheme, {})}))
    return checked.Model(checked.model, D)


def begin(model: Any, points: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return parameters as a model draws them for data of the size 6, with a spread of 1."""
    largest_by_dim, std_by_dim = np.full(model.D, 12.0), np.ones(model.D)
    summary = Summary(
        points, model.D, 12.0, 4.0, 6.0, 0.0, spread=1.0, largest_by_dim=largest_by_dim, std_by_dim=std_by_dim
    )
    return model.constrain({key: initial_value_of(model, key, summary, rng) for key in model.params})


@cache
def data(keys: tuple[tuple[str, Any], ...], points: int) -> np.ndarray:
    """Draw points (points, D) from a model, with random parameters similar to its initial values."""
    model, rng = build(dict(keys)), np.random.default_rng(7)
    return model.draw(begin(model, points, rng), rng, points)[0]
