"""Data drawn from a model with given parameters, such as the result of an earlier run."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.capabilities import KeysInArrays
from parallel_et.core.latent_states import binary, places_by_atom
from parallel_et.core.limits import check_arrays, limits_of
from parallel_et.core.model import Model
from parallel_et.core.options import options_class
from parallel_et.core.random import stream
from parallel_et.core.schema import MAX_COUNT
from parallel_et.core.types import Params
from parallel_et.data.base import GROUP_POINTS, DataOptions, Generated
from parallel_et.errors import UserError
from parallel_et.models import MODELS
from parallel_et.storage.checksum import check_checksum
from parallel_et.storage.hdf5 import read_group


class ModelOptions(DataOptions):
    """The keys of [data] for data drawn from a model."""

    source: Literal["model"] = Field("model", description="data drawn from a model")
    points: int = Field(ge=1, le=MAX_COUNT, description="number of data points, N")
    params: str = Field(description='file with a group /params, such as "runs/demo/result.h5"')
    model: str | None = Field(None, description="model to draw from, by default the model that is trained")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data; default: run.seed")

    def inconsistencies(self) -> list[tuple[str, str, object]]:
        if self.model is None or self.model in MODELS.names():
            return []
        return [("model", " or ".join(MODELS.names()), self.model)]


class DrawnFromModel(Generated):
    """Points of a model with known parameters. Points of different ``purpose`` are independent.

    ``mean`` (D,) is added to all points, if given.
    """

    def __init__(
        self,
        model: Model,
        params: Params,
        points: int,
        seed: int,
        purpose: str = "data",
        mean: np.ndarray | None = None,
    ) -> None:
        self.model, self.params, self.points, self.seed, self.purpose = model, params, points, seed, purpose
        self.mean = mean
        self.dims = model.D
        self.shape = (self.dims,)

    def truth(self) -> dict[str, np.ndarray]:
        return dict(self.params)

    def group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        points, states = self.model.draw(self.params, stream(self.seed, self.purpose, index), GROUP_POINTS)
        latents = self.model.latents
        written = places_by_atom(states, latents.atoms) if latents.ordered else binary(states, latents.atoms)
        return points if self.mean is None else points + self.mean, written


class DrawnFromFile(DrawnFromModel):
    """Points of a model with parameters from a file."""

    Options = ModelOptions

    def __init__(self, options: ModelOptions, seed: int, job: Any) -> None:
        check_checksum(options.params)
        arrays = read_group(options.params, "params")
        model = model_for(job.Model if options.model is None else MODELS.find(options.model), arrays, options.params)
        wanted = limits_of(model)
        if "sigma" in wanted:
            wanted["sigma"] = wanted["sigma"]._replace(low=0.0)  # data without noise are allowed
        check_arrays(arrays, wanted, f"{options.params}: /params")
        params = {name: arrays[name] for name in wanted}
        super().__init__(model, params, options.points, seed if options.seed is None else options.seed)


def model_for(kind: Any, arrays: Mapping[str, np.ndarray], path: str) -> Model:
    """Return a model of the size of the parameters in ``arrays``."""
    name, axes = next((name, param.axes) for name, param in kind.params.items() if len(param.axes) == 2)
    if name not in arrays or arrays[name].ndim != len(axes) or 0 in arrays[name].shape:
        found = f"the shape {arrays[name].shape}" if name in arrays else "nothing there"
        raise UserError(f"{path}: /params/{name}: expected dimensions x causes, found {found}")
    sizes = dict(zip(axes, arrays[name].shape, strict=True))
    each = [name for name, param in kind.params.items() if param.each and arrays.get(name, np.empty(())).ndim]
    keys: Any = options_class(kind)
    found_keys = kind.keys_in(arrays) if issubclass(kind, KeysInArrays) else {}
    dims = sizes["D"] if "D" in sizes else sizes["P"] * found_keys.get("channels", 3)
    return kind(keys(name="model", causes=sizes["H"], each=each, **found_keys), dims)


SOURCE = DrawnFromFile
