"""Random fields, and points that the model of the job draws from them: a test of whether the fields are recovered."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.model import shape_of
from parallel_et.core.options import options_class
from parallel_et.core.random import stream
from parallel_et.core.schema import MAX_COUNT, MAX_MAGNITUDE
from parallel_et.data.base import DataOptions
from parallel_et.data.model import DrawnFromModel
from parallel_et.errors import UserError

DENSITY = 0.3
"""Fraction of non-zero values of a sparse field."""
MAX_DIMS = 1 << 20


class PlantedOptions(DataOptions):
    """The keys of [data] for planted fields."""

    source: Literal["planted"] = Field(
        "planted", description="points drawn from the model that is trained, with random fields"
    )
    points: int = Field(ge=1, le=MAX_COUNT, description="number of data points, N")
    dims: int = Field(30, ge=1, le=MAX_DIMS, description="dimensions, D")
    fields: Literal["gauss", "sparse"] = Field(
        description=f'"gauss": standard normal values; "sparse": normal magnitudes, {DENSITY:.0%} of them nonzero'
    )
    sigma: float = Field(0.1, gt=0, le=MAX_MAGNITUDE, description="standard deviation of the noise")
    pi: float = Field(0.2, gt=0, lt=1, description="probability that a cause is active")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data; default: run.seed")


class Planted(DrawnFromModel):
    """Points with the number of causes of the job, drawn in groups that depend only on the seed."""

    Options = PlantedOptions

    def __init__(self, options: PlantedOptions, seed: int, job: Any) -> None:
        params = job.Model(job.model, options.dims).params
        if set(params) != {"W", "sigma", "pi"}:
            expected, found = "a model with W, sigma and pi alone", ", ".join(params)
            raise UserError(f'data.source: "planted": expected {expected}, found {found}')
        seed = seed if options.seed is None else options.seed
        model = job.Model(options_class(job.Model)(name=job.model.name, causes=job.model.causes), options.dims)
        rng = stream(seed, "planted")
        W = rng.standard_normal(shape_of(model, "W"))
        if options.fields == "sparse":
            W = np.abs(W) * (rng.random(W.shape) < DENSITY)
        truth = {"W": W, "sigma": np.array(options.sigma), "pi": np.array(options.pi)}
        super().__init__(model, truth, options.points, seed)


SOURCE = Planted
