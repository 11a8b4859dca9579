"""Patches of one image of straight strokes that hide each other, as occlusions in images do (TH sec. 3.4.2)."""

from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.random import stream
from parallel_et.core.schema import LARGEST
from parallel_et.data.base import GROUP, DataOptions, Source
from parallel_et.kernels.rows import new_table

WIDTHS, LENGTHS, BRIGHTEST = (2, 4), (8.0, 64.0), 255
"""Least and largest width and length of a stroke in pixels; largest grey value, the least being 1."""


class StrokesOptions(DataOptions):
    """The keys of [data] for strokes."""

    source: Literal["strokes"] = Field("strokes", description="patches of an image of strokes that hide each other")
    points: int = Field(61009, ge=1, description="number of patches, evenly spread over all places in turn")
    image: int = Field(256, ge=4, le=4096, description="pixels a side of the image")
    size: int = Field(9, ge=2, le=64, description="pixels a side of a patch")
    strokes: int = Field(300, ge=1, le=100_000, description="how many are drawn, one over the other")
    sigma: float = Field(25.0, ge=0, le=LARGEST, description="standard deviation of the noise of each patch")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data, by default that of the run")

    def mistakes(self) -> list[tuple[str, str, object]]:
        most = max(0, self.image - self.size) ** 2
        return [] if self.points <= most else [("points", f"at most {most}, as many as there are places", self.points)]


class Strokes(Source):
    """Strokes of any place, direction, length, width and grey value, each over those before; a patch has its noise."""

    Options = StrokesOptions

    def __init__(self, options: StrokesOptions, seed: int, job: Any) -> None:
        self.options, self.seed = options, seed if options.seed is None else options.seed
        self.points, self.dims, self.shape = options.points, options.size**2, (options.size, options.size)
        self.holds = 20 * options.image**2

    @cached_property
    def image(self) -> tuple[np.ndarray, np.ndarray]:
        """Grey values and, from 1 on, the number of the stroke that is seen, both (image, image); 0 where none is."""
        size, rng = self.options.image, stream(self.seed, "strokes")
        grey, who = np.zeros((size, size)), np.zeros((size, size), np.int32)
        place = np.moveaxis(np.indices((size, size)), 0, -1)
        for number in range(1, self.options.strokes + 1):
            start, angle = rng.random(2) * size, 2 * np.pi * rng.random()
            along = np.array([np.sin(angle), np.cos(angle)])
            length, width, value = rng.uniform(*LENGTHS), rng.integers(*WIDTHS, endpoint=True), rng.integers(BRIGHTEST)
            way = np.clip((place - start) @ along, 0.0, length)
            near = np.linalg.norm(place - start - way[..., None] * along, axis=-1) <= width / 2
            grey[near], who[near] = 1 + value, number
        return grey, who

    def corners(self, first: int, last: int) -> np.ndarray:
        """Where the patches of these numbers begin in the image, (last - first, 2)."""
        side = self.options.image - self.options.size
        place = np.arange(first, last) * side**2 // self.points
        return np.stack(np.divmod(place, side), 1)

    def clean(self, first: int, last: int) -> np.ndarray:
        """Patches without noise, (last - first, D)."""
        return self._cut(self.image[0], first, last)

    def counts(self, first: int, last: int) -> np.ndarray:
        """How many strokes are seen in each patch, (last - first,)."""
        rows = np.sort(self._cut(self.image[1], first, last), 1)
        return ((np.diff(rows, axis=1, prepend=0) > 0) & (rows > 0)).sum(1)

    def _cut(self, image: np.ndarray, first: int, last: int) -> np.ndarray:
        within = np.arange(self.options.size)
        row, column = self.corners(first, last).T
        return image[row[:, None, None] + within[:, None], column[:, None, None] + within].reshape(-1, self.dims)

    def read(self, first: int, last: int) -> np.ndarray:
        rows = new_table(last - first, self.dims, np.float64)
        rows[:, : self.dims] = self.clean(first, last)
        for index in range(first // GROUP, -(-last // GROUP)):
            low, high = max(first, index * GROUP), min(last, (index + 1) * GROUP)
            noise = stream(self.seed, "noise of patches", index).standard_normal((GROUP, self.dims))
            rows[low - first : high - first, : self.dims] += (
                self.options.sigma * noise[low - index * GROUP : high - index * GROUP]
            )
        return rows


SOURCE = Strokes
