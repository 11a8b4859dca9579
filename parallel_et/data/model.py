"""Data drawn from a model's own parameters, such as those that an earlier run has learned."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.data.base import GROUP, DataOptions, Generated
from parallel_et.io.files import read_group
from parallel_et.io.sealed import check_seal
from parallel_et.models import known
from parallel_et.models.base import Model, Params
from parallel_et.random import stream
from parallel_et.schema import MOST


class ModelOptions(DataOptions):
    """The keys of [data] for data drawn from a model."""

    source: Literal["model"] = Field("model", description="data drawn from a model")
    points: int = Field(ge=1, le=MOST, description="number of data points, N")
    params: str = Field(description='file with /params/W, /params/sigma and /params/pi, such as "runs/demo/result.h5"')
    model: str | None = Field(None, description="model to draw from, by default the one that is trained")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data, by default that of the run")

    def mistakes(self) -> list[tuple[str, str, object]]:
        if self.model is None or self.model in known():
            return []
        return [("model", " or ".join(sorted(known())), self.model)]


class Drawn(Generated):
    """Points of a model with known parameters; those of another ``purpose`` are independent of them."""

    def __init__(self, model: Model, params: Params, points: int, seed: int, purpose: str = "data") -> None:
        self.model, self.params, self.points, self.seed, self.purpose = model, params, points, seed, purpose
        self.dims = len(params.W)
        self.shape = (self.dims,)

    def truth(self) -> dict[str, np.ndarray]:
        return dict(vars(self.params))

    def group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.model.generate(self.params, stream(self.seed, self.purpose, index), GROUP)


class DrawnFromFile(Drawn):
    """Points of a model whose parameters a file holds."""

    Options = ModelOptions

    def __init__(self, options: ModelOptions, seed: int, job: Any) -> None:
        from parallel_et.sound import check_arrays, parameters  # which knows jobs, and these know us

        check_seal(options.params)
        arrays = read_group(options.params, "params")
        kind = known()[options.model or job.model.name]
        wanted = parameters(kind, None, None)
        wanted["sigma"] = wanted["sigma"]._replace(low=0.0)  # no noise at all will do here
        check_arrays(arrays, wanted, f"{options.params}: /params")
        params = Params(**{name: arrays[name] for name in wanted})
        D, H = params.W.shape
        model = kind(kind.Options.model_construct(name="model", causes=H), D)
        super().__init__(model, params, options.points, seed if options.seed is None else options.seed)


SOURCE = DrawnFromFile
