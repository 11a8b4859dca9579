"""The keys of [model], which follow from the declarations of a model, and the initial values of its parameters."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic import Field, create_model, model_validator

from parallel_et.core.capabilities import filled
from parallel_et.core.latent_states import Latents
from parallel_et.core.model import Model, shape_of
from parallel_et.core.schema import MAX_MAGNITUDE, Section, number_or
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Param, Rule, Summary
from parallel_et.errors import UserError


class GaussInit(Section):
    """Random normal values."""

    mean: float = Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE, description="mean of the values")
    std: float = Field(ge=0, le=MAX_MAGNITUDE, description="standard deviation of the values")


class UniformInit(Section):
    """Random values between two limits, evenly distributed."""

    low: float = Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE, description="smallest value")
    high: float = Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE, description="largest value")


class FileInit(Section):
    """Values of a dataset in an HDF5 file."""

    file: str = Field(description="HDF5 file, such as an earlier result.h5")
    dataset: str | None = Field(None, description="dataset in the file; by default the name of the parameter")


class RowsInit(Section):
    """Points of the data, a different point for each cause."""

    rows: Literal["random", "k-means++"] = Field(
        description="choice of the points with the seed of the run: random, or far from each other"
    )


class MomentsInit(Section):
    """Fields along directions in which the data are skewed, computed as for causes that add up."""

    moments: Literal["third"] = Field(description="order of the moments; third moments separate rare causes from noise")


INIT_FORMS = (
    "a number; a table with mean and std, low and high, or file and dataset; or, for fields, "
    'rows = "random" or "k-means++", or moments = "third"'
)
"""Forms of an initial value in a job, for messages."""


class Init(Section):
    """Initial values of parameters that differ from those of the model."""


class ModelOptions(Section):
    """The keys of [model] that all models have."""

    name: str = Field(description="name of the model; with a file, by default the name of the file")
    file: str | None = Field(None, description='Python file with a user-defined model, such as "my_model.py"')
    sha256: str | None = Field(None, description="SHA-256 digest of the file; computed by default")
    causes: int = Field(ge=1, le=1_000_000, description="number of hidden causes, H")

    @classmethod
    def absent(cls, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the parameters that do not exist in a model with these keys."""
        return ()


class SchemeOptions(Section):
    """The keys of [inference] that all schemes have."""

    scheme: str = Field(description="name of the scheme; with a file, by default the name of the file")
    file: str | None = Field(None, description="Python file with a user-defined scheme")
    sha256: str | None = Field(None, description="SHA-256 digest of the file; computed by default")

    def inconsistencies(self, latents: Latents) -> list[tuple[str, str, object]]:
        """Return the keys that do not fit a model with these states: key, expected value, found value."""
        return []


Model.Options = ModelOptions
Scheme.Options = SchemeOptions


@lru_cache
def options_class(model: Any) -> Any:
    """Return the class of the keys of [model] for a class of models: its ``Options`` and keys for its parameters."""
    each = tuple(name for name, param in model.params.items() if param.each)
    if unknown := [name for name in model.learns if name not in model.params]:
        expected = ", ".join(model.params)
        raise UserError(f"{model.__name__}.learns: expected some of {expected}, found {unknown[0]}")
    any_of: Any = Literal[tuple(model.params)]
    own: Any = Literal[each] if each else str
    numbers: dict[str, Any] = {}
    starts: dict[str, Any] = {}
    for name, param in model.params.items():
        low, high = max(param.low, -MAX_MAGNITUDE), min(param.high, MAX_MAGNITUDE)
        if isinstance(param.start, Rule):
            text = f"{param.description}; by default {param.start.description}"
            numbers[name] = float | None, Field(None, ge=low, le=high, description=text)
        elif param.start is not None:
            numbers[name] = float, Field(param.start, ge=low, le=high, description=param.description)
        default: Any = RowsInit(rows=param.rows) if param.rows else None
        usual = f'rows = "{param.rows}"' if param.rows else "the model's own rule"
        starts[name] = _init_type(param) | None, Field(default, description=f"{INIT_FORMS}; by default {usual}")
    init: Any = create_model("Init", __base__=Init, **starts)

    def learn_others(given: Any) -> Any:
        if not isinstance(given, dict) or "learn" in given:
            return given
        others = {*given, *model.Options.absent(given)}
        return {**given, "learn": [name for name in model.learns or model.params if name not in others]}

    fill: Any = model_validator(mode="before")(learn_others)
    learn = "parameters to learn; by default all parameters without a number in this section"
    return create_model(
        f"{model.__name__}Options",
        __base__=model.Options,
        __doc__=model.Options.__doc__,
        **numbers,
        __validators__={"learn_others": fill},
        learn=(list[any_of], Field(None, description=learn)),
        each=(
            list[own],
            Field([], max_length=len(each), description="parameters with one value for each cause"),
        ),
        init=(init, init()),
    )


def _init_type(param: Param) -> Any:
    """Return the type of the initial value of a parameter in a job."""
    of_data: list[Any] = [RowsInit, MomentsInit] if param.axes == "DH" else [RowsInit] if param.rows else []
    return number_or(GaussInit, UniformInit, FileInit, *of_data)


def initial_value_of(model: Model, name: str, summary: Summary, rng: np.random.Generator) -> np.ndarray:
    """Return the initial value of a parameter that needs neither a file nor points."""
    shape, init = shape_of(model, name), getattr(model.options.init, name)
    if isinstance(init, float | int):
        return filled(model, name, float(init))
    if isinstance(init, GaussInit):
        return rng.normal(init.mean, init.std, shape)
    if isinstance(init, UniformInit):
        return init.low + (init.high - init.low) * rng.random(shape)
    if model.params[name].start is not None:
        return np.full(shape, initial_number(model, name, summary))
    return rng.normal(*model.initial_value(name, summary), shape)


def initial_number(model: Model, name: str, summary: Summary) -> float:
    """Return the initial value of a parameter that is a key of [model]: from the job, or else from its rule."""
    given, start = getattr(model.options, name), model.params[name].start
    return float(start.value(model.H, summary) if given is None and isinstance(start, Rule) else given)
