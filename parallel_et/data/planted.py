"""Fields that are drawn at random, and points that a model makes of them: whether it finds what is there."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.model import shape_of
from parallel_et.core.options import keys_of
from parallel_et.core.random import stream
from parallel_et.core.schema import LARGEST, MOST
from parallel_et.data.base import DataOptions
from parallel_et.data.model import Drawn
from parallel_et.errors import UserError

DENSITY = 0.3
"""Share of the values of a sparse field that are not zero."""
MOST_DIMS = 1 << 20


class PlantedOptions(DataOptions):
    """The keys of [data] for planted fields."""

    source: Literal["planted"] = Field("planted", description="points of the model that is trained, of random fields")
    points: int = Field(ge=1, le=MOST, description="number of data points, N")
    dims: int = Field(30, ge=1, le=MOST_DIMS, description="dimensions, D")
    fields: Literal["gauss", "sparse"] = Field(
        description=f"standard normal values, or the magnitudes of such, of which {DENSITY:.0%} are not zero"
    )
    sigma: float = Field(0.1, gt=0, le=LARGEST, description="standard deviation of the noise")
    pi: float = Field(0.2, gt=0, lt=1, description="probability that a cause is active")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data, by default that of the run")


class Planted(Drawn):
    """Points of as many causes as the job has, drawn in groups that depend on the seed alone."""

    Options = PlantedOptions

    def __init__(self, options: PlantedOptions, seed: int, job: Any) -> None:
        params = job.Model(job.model, options.dims).params
        if set(params) != {"W", "sigma", "pi"}:
            expected, found = "a model with W, sigma and pi alone", ", ".join(params)
            raise UserError(f'data.source: "planted": expected {expected}, found {found}')
        seed = seed if options.seed is None else options.seed
        model = job.Model(keys_of(job.Model)(name=job.model.name, causes=job.model.causes), options.dims)
        rng = stream(seed, "planted")
        W = rng.standard_normal(shape_of(model, "W"))
        if options.fields == "sparse":
            W = np.abs(W) * (rng.random(W.shape) < DENSITY)
        truth = {"W": W, "sigma": np.array(options.sigma), "pi": np.array(options.pi)}
        super().__init__(model, truth, options.points, seed)


SOURCE = Planted
