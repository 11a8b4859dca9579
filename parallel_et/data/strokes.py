"""Patches of one image of straight strokes that occlude each other, as objects in images do (TH sec. 3.4.2)."""

from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.random import stream
from parallel_et.core.schema import MAX_MAGNITUDE
from parallel_et.data.base import GROUP_POINTS, DataOptions, Source
from parallel_et.kernels.rows import new_table

WIDTHS_PIXELS = (2, 4)
LENGTHS_PIXELS = (8.0, 64.0)
"""Smallest and largest width and length of a stroke."""
MAX_GREY = 255
"""Largest grey value; the smallest is 1."""


class StrokesOptions(DataOptions):
    """The keys of [data] for strokes."""

    source: Literal["strokes"] = Field("strokes", description="patches of an image of strokes that hide each other")
    points: int = Field(61009, ge=1, description="number of patches, evenly spread over all positions")
    image: int = Field(256, ge=4, le=4096, description="pixels per side of the image")
    size: int = Field(9, ge=2, le=64, description="pixels per side of a patch")
    strokes: int = Field(300, ge=1, le=100_000, description="number of strokes, each drawn over the earlier strokes")
    sigma: float = Field(25.0, ge=0, le=MAX_MAGNITUDE, description="standard deviation of the noise of each patch")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data; default: run.seed")

    def inconsistencies(self) -> list[tuple[str, str, object]]:
        most = max(0, self.image - self.size) ** 2
        return [] if self.points <= most else [("points", f"at most {most}, the number of positions", self.points)]


class Strokes(Source):
    """Strokes of random position, direction, length, width and grey value. Each patch has its own noise."""

    Options = StrokesOptions

    def __init__(self, options: StrokesOptions, seed: int, job: Any) -> None:
        self.options, self.seed = options, seed if options.seed is None else options.seed
        self.points, self.dims, self.shape = options.points, options.size**2, (options.size, options.size)
        self.working_bytes = 20 * options.image**2

    @cached_property
    def image(self) -> tuple[np.ndarray, np.ndarray]:
        """Return grey values, and the number of the visible stroke from 1 on or 0, both (image, image)."""
        size, rng = self.options.image, stream(self.seed, "strokes")
        grey, visible = np.zeros((size, size)), np.zeros((size, size), np.int32)
        pixels = np.moveaxis(np.indices((size, size)), 0, -1)
        for number in range(1, self.options.strokes + 1):
            start, angle = rng.random(2) * size, 2 * np.pi * rng.random()
            along = np.array([np.sin(angle), np.cos(angle)])
            length = rng.uniform(*LENGTHS_PIXELS)
            width = rng.integers(*WIDTHS_PIXELS, endpoint=True)
            value = rng.integers(MAX_GREY)
            projection = np.clip((pixels - start) @ along, 0.0, length)
            covered = np.linalg.norm(pixels - start - projection[..., None] * along, axis=-1) <= width / 2
            grey[covered], visible[covered] = 1 + value, number
        return grey, visible

    def corners(self, first: int, last: int) -> np.ndarray:
        """Return row and column of the upper left corners of patches [first, last), (last - first, 2)."""
        side = self.options.image - self.options.size
        position = np.arange(first, last) * side**2 // self.points
        return np.stack(np.divmod(position, side), 1)

    def clean(self, first: int, last: int) -> np.ndarray:
        """Return patches [first, last) without noise, (last - first, D)."""
        return self._cut(self.image[0], first, last)

    def counts(self, first: int, last: int) -> np.ndarray:
        """Return the number of visible strokes in each patch, (last - first,)."""
        rows = np.sort(self._cut(self.image[1], first, last), 1)
        return ((np.diff(rows, axis=1, prepend=0) > 0) & (rows > 0)).sum(1)

    def _cut(self, image: np.ndarray, first: int, last: int) -> np.ndarray:
        within = np.arange(self.options.size)
        row, column = self.corners(first, last).T
        return image[row[:, None, None] + within[:, None], column[:, None, None] + within].reshape(-1, self.dims)

    def read(self, first: int, last: int) -> np.ndarray:
        rows = new_table(last - first, self.dims, np.float64)
        rows[:, : self.dims] = self.clean(first, last)
        for index in range(first // GROUP_POINTS, -(-last // GROUP_POINTS)):
            low, high = max(first, index * GROUP_POINTS), min(last, (index + 1) * GROUP_POINTS)
            noise = stream(self.seed, "noise of patches", index).standard_normal((GROUP_POINTS, self.dims))
            rows[low - first : high - first, : self.dims] += (
                self.options.sigma * noise[low - index * GROUP_POINTS : high - index * GROUP_POINTS]
            )
        return rows


SOURCE = Strokes
