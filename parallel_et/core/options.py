"""The keys of [model], which follow from what a model declares: its start, what is learned, limits."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic import Field, create_model, model_validator

from parallel_et.core.capabilities import filled
from parallel_et.core.latent_states import Latents
from parallel_et.core.model import Model, shape_of
from parallel_et.core.schema import LARGEST, Section, number_or
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Param, Rule, Summary
from parallel_et.errors import UserError


class GaussInit(Section):
    """Draw each value from a Gaussian."""

    mean: float = Field(ge=-LARGEST, le=LARGEST, description="mean of the values")
    std: float = Field(ge=0, le=LARGEST, description="their standard deviation")


class UniformInit(Section):
    """Draw each value evenly between two."""

    low: float = Field(ge=-LARGEST, le=LARGEST, description="least value")
    high: float = Field(ge=-LARGEST, le=LARGEST, description="largest value")


class FileInit(Section):
    """Read the values from an HDF5 file."""

    file: str = Field(description="an HDF5 file, such as an earlier result.h5")
    dataset: str | None = Field(None, description="dataset in it, by default the name of the parameter")


class RowsInit(Section):
    """Begin with points of the data, a different one for each cause."""

    rows: Literal["random", "k-means++"] = Field(
        description="which, drawn by the seed of the run: any, or such that are far from each other"
    )


class MomentsInit(Section):
    """Begin with the fields that the third moments of the data tell, as if causes added up."""

    moments: Literal["third"] = Field(description="which: the third, by which rare causes are told from noise")


START = (
    "a number, or a table of mean and std, of low and high, of file and dataset, or for fields "
    'rows = "random" or "k-means++", or moments = "third"'
)
"""What may stand for the start of a parameter."""


class Init(Section):
    """How parameters begin that do not begin as the model has them."""


class ModelOptions(Section):
    """The keys of [model] that all models have."""

    name: str = Field(description="which model; for one of a file, by default the file's name")
    file: str | None = Field(None, description='a Python file with a model of one\'s own, such as "my_model.py"')
    sha256: str | None = Field(None, description="digest of that file, by default that of the one that is there")
    causes: int = Field(ge=1, le=1_000_000, description="number of hidden causes, H")

    @classmethod
    def absent(cls, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Parameters of the model that it does not have with the keys that a job gives."""
        return ()


class SchemeOptions(Section):
    """The keys of [inference] that all schemes have."""

    scheme: str = Field(description="which scheme; for one of a file, by default the file's name")
    file: str | None = Field(None, description="a Python file with a scheme of one's own")
    sha256: str | None = Field(None, description="digest of that file, by default that of the one that is there")

    def mistakes(self, latents: Latents) -> list[tuple[str, str, object]]:
        """What does not fit a model with these states: key, what was expected, what was found."""
        return []


Model.Options = ModelOptions
Scheme.Options = SchemeOptions


@lru_cache
def keys_of(model: Any) -> Any:
    """The class of the keys of [model] for a class of models: its own, and those that its parameters make."""
    each = tuple(name for name, param in model.params.items() if param.each)
    if unknown := [name for name in model.learns if name not in model.params]:
        expected = ", ".join(model.params)
        raise UserError(f"{model.__name__}.learns: expected some of {expected}, found {unknown[0]}")
    any_of: Any = Literal[tuple(model.params)]
    own: Any = Literal[each] if each else str
    numbers: dict[str, Any] = {}
    starts: dict[str, Any] = {}
    for name, param in model.params.items():
        low, high = max(param.low, -LARGEST), min(param.high, LARGEST)
        if isinstance(param.start, Rule):
            does = f"{param.does}; by default {param.start.words}"
            numbers[name] = float | None, Field(None, ge=low, le=high, description=does)
        elif param.start is not None:
            numbers[name] = float, Field(param.start, ge=low, le=high, description=param.does)
        default: Any = RowsInit(rows=param.rows) if param.rows else None
        usual = f'rows = "{param.rows}"' if param.rows else "the model's own rule"
        starts[name] = _start(param) | None, Field(default, description=f"{START}; by default {usual}")
    init: Any = create_model("Init", __base__=Init, **starts)

    def learn_others(given: Any) -> Any:
        if not isinstance(given, dict) or "learn" in given:
            return given
        others = {*given, *model.Options.absent(given)}
        return {**given, "learn": [name for name in model.learns or model.params if name not in others]}

    fill: Any = model_validator(mode="before")(learn_others)
    learn = "the parameters to learn; by default all that this section gives no number for"
    return create_model(
        f"{model.__name__}Options",
        __base__=model.Options,
        __doc__=model.Options.__doc__,
        **numbers,
        __validators__={"learn_others": fill},
        learn=(list[any_of], Field(None, description=learn)),
        each=(
            list[own],
            Field([], max_length=len(each), description="those that are not one for all causes, but one for each"),
        ),
        init=(init, init()),
    )


def _start(param: Param) -> Any:
    """What may stand for the start of a parameter."""
    of_data: list[Any] = [RowsInit, MomentsInit] if param.axes == "DH" else [RowsInit] if param.rows else []
    return number_or(GaussInit, UniformInit, FileInit, *of_data)


def start_of(model: Model, name: str, summary: Summary, rng: np.random.Generator) -> np.ndarray:
    """Where a parameter begins, if that takes neither files nor points."""
    shape, init = shape_of(model, name), getattr(model.options.init, name)
    if isinstance(init, float | int):
        return filled(model, name, float(init))
    if isinstance(init, GaussInit):
        return rng.normal(init.mean, init.std, shape)
    if isinstance(init, UniformInit):
        return init.low + (init.high - init.low) * rng.random(shape)
    if model.params[name].start is not None:
        return np.full(shape, number_of(model, name, summary))
    return rng.normal(*model.initial_value(name, summary), shape)


def number_of(model: Model, name: str, summary: Summary) -> float:
    """What the job, or else its rule, says of a parameter that is a key of [model]."""
    given, start = getattr(model.options, name), model.params[name].start
    return float(start.value(model.H, summary) if given is None and isinstance(start, Rule) else given)
