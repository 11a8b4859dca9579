"""Data for mixture models: round clusters around random centres."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.random import stream
from parallel_et.core.schema import MAX_COUNT, MAX_MAGNITUDE
from parallel_et.data.base import GROUP_POINTS, DataOptions, Generated

MAX_CENTRE_VALUES = 1 << 24
"""Largest clusters x dims."""
CENTRE_JITTER = 0.05
"""Standard deviation of centres around their points of a line, relative to the distance of two centres."""


class ClustersOptions(DataOptions):
    """The keys of [data] for clusters."""

    source: Literal["clusters"] = Field("clusters", description="round clusters")
    points: int = Field(ge=1, le=MAX_COUNT, description="number of data points, N")
    clusters: int = Field(10, ge=1, le=MAX_CENTRE_VALUES, description="number of clusters")
    dims: int = Field(2, ge=1, le=MAX_CENTRE_VALUES, description="dimensions, D")
    apart: float = Field(
        5.0, gt=0, le=MAX_MAGNITUDE, description="standard deviation of the centres, in each dimension"
    )
    line: bool = Field(
        False, description="put the centres near evenly spaced points on a line, separated by data.apart"
    )
    sigma: float = Field(
        1.0, ge=0, le=MAX_MAGNITUDE, description="standard deviation of the points around their centre"
    )
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data; default: run.seed")

    def inconsistencies(self) -> list[tuple[str, str, object]]:
        if self.clusters * self.dims <= MAX_CENTRE_VALUES:
            return []
        return [("clusters", f"at most {MAX_CENTRE_VALUES} numbers in all centres together", self.clusters * self.dims)]


class Clusters(Generated):
    """Points around centres of equal weight, drawn in groups that depend only on the seed."""

    Options = ClustersOptions

    def __init__(self, options: ClustersOptions, seed: int, job: Any) -> None:
        self.options = options
        self.seed = seed if options.seed is None else options.seed
        self.points, self.dims = options.points, options.dims
        self.shape = (options.dims,)
        self.working_bytes = 8 * options.dims * (options.clusters + 2 * GROUP_POINTS) + GROUP_POINTS * options.clusters

    def truth(self) -> dict[str, np.ndarray]:
        return {"W": self._centres().T.copy(), "sigma": np.array(self.options.sigma)}

    def group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rng, o = stream(self.seed, "data", index), self.options
        member = rng.integers(o.clusters, size=GROUP_POINTS)
        points = self._centres()[member] + o.sigma * rng.standard_normal((GROUP_POINTS, o.dims))
        return points, (member[:, None] == np.arange(o.clusters)).astype(np.uint8)

    def _centres(self) -> np.ndarray:
        o = self.options
        normal = stream(self.seed, "centres").standard_normal((o.clusters + o.line, o.dims))
        if not o.line:
            return o.apart * normal
        direction = normal[-1] / np.linalg.norm(normal[-1])
        places = np.arange(o.clusters) - 0.5 * (o.clusters - 1)
        return o.apart * (places[:, None] * direction + CENTRE_JITTER * normal[:-1])


SOURCE = Clusters
