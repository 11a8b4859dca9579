"""Round clusters around centres that are drawn at random: what mixtures are made for."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.random import stream
from parallel_et.core.schema import LARGEST, MOST
from parallel_et.data.base import GROUP, DataOptions, Generated

MOST_CENTRES = 1 << 24
"""Numbers in all centres together."""
ASIDE = 0.05
"""How far centres are beside a line, and from their places on it, beside how far they are from each other."""


class ClustersOptions(DataOptions):
    """The keys of [data] for clusters."""

    source: Literal["clusters"] = Field("clusters", description="round clusters")
    points: int = Field(ge=1, le=MOST, description="number of data points, N")
    clusters: int = Field(10, ge=1, le=MOST_CENTRES, description="number of clusters")
    dims: int = Field(2, ge=1, le=MOST_CENTRES, description="dimensions, D")
    apart: float = Field(5.0, gt=0, le=LARGEST, description="standard deviation of the centres, in each dimension")
    line: bool = Field(False, description="whether the centres lie on a line, so far from each other, or nearly so")
    sigma: float = Field(1.0, ge=0, le=LARGEST, description="standard deviation of the points around their centre")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data, by default that of the run")

    def mistakes(self) -> list[tuple[str, str, object]]:
        if self.clusters * self.dims <= MOST_CENTRES:
            return []
        return [("clusters", f"at most {MOST_CENTRES} numbers in all centres together", self.clusters * self.dims)]


class Clusters(Generated):
    """Points around centres of equal weight, drawn in groups that depend on the seed alone."""

    Options = ClustersOptions

    def __init__(self, options: ClustersOptions, seed: int, job: Any) -> None:
        self.options = options
        self.seed = seed if options.seed is None else options.seed
        self.points, self.dims = options.points, options.dims
        self.shape = (options.dims,)
        self.holds = 8 * options.dims * (options.clusters + 2 * GROUP) + GROUP * options.clusters

    def truth(self) -> dict[str, np.ndarray]:
        return {"W": self._centres().T.copy(), "sigma": np.array(self.options.sigma)}

    def group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rng, o = stream(self.seed, "data", index), self.options
        member = rng.integers(o.clusters, size=GROUP)
        points = self._centres()[member] + o.sigma * rng.standard_normal((GROUP, o.dims))
        return points, (member[:, None] == np.arange(o.clusters)).astype(np.uint8)

    def _centres(self) -> np.ndarray:
        o = self.options
        normal = stream(self.seed, "centres").standard_normal((o.clusters + o.line, o.dims))
        if not o.line:
            return o.apart * normal
        direction = normal[-1] / np.linalg.norm(normal[-1])
        places = np.arange(o.clusters) - 0.5 * (o.clusters - 1)
        return o.apart * (places[:, None] * direction + ASIDE * normal[:-1])


SOURCE = Clusters
