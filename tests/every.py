"""Every model with every value of its own keys, and every scheme: one table for the tests that run all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np

from parallel_et.core.options import start_of
from parallel_et.core.registry import read_source
from parallel_et.core.terms import Summary
from parallel_et.models import MODELS

EXAMPLES = Path(__file__).parents[1] / "examples"
KEYS: dict[str, dict[str, Any]] = {"inveca": {"rows": 1, "size": 1}, "rmca": {"total": 18.0}}
"""Keys without which a model does not fit points of a few dimensions."""


def models() -> Iterator[dict[str, Any]]:
    """The [model] of every shipped model, with each value of its own keys, and of every example."""
    for name in sorted(set(MODELS.names()) - set(MODELS.aliases)):
        yield {"name": name, **KEYS.get(name, {})}
        for key, field in MODELS.find(name).Options.model_fields.items():
            if get_origin(field.annotation) is Literal:
                for value in get_args(field.annotation):
                    if value != field.default:
                        yield {"name": name, **KEYS.get(name, {}), key: value}
    yield from ({"file": str(EXAMPLES / f"{name}.py")} for name in ("own_model", "ternary"))


def label(model: dict[str, Any]) -> str:
    """A short name of a [model], for test names and tables."""
    return " ".join(Path(value).stem for value in model.values() if isinstance(value, str))


def class_of(model: dict[str, Any]) -> Any:
    """The class of a [model]."""
    return MODELS.find(model["name"]) if "name" in model else MODELS.of_text(read_source(model["file"]), model["file"])


def begin(model: Any, N: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Parameters as a model draws them for data of the size 6, with a spread of 1."""
    heights, spreads = np.full(model.D, 12.0), np.ones(model.D)
    summary = Summary(N, model.D, 12.0, 4.0, 6.0, 0.0, spread=1.0, heights=heights, spreads=spreads)
    return model.constrain({key: start_of(model, key, summary, rng) for key in model.params})
