"""The bars test (Foeldiak 1990) in the variants of the papers: bars on a grid that add up or hide each other."""

from colorsys import hsv_to_rgb
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.random import stream
from parallel_et.core.schema import MAX_COUNT, MAX_MAGNITUDE, Numbers, Section
from parallel_et.data.base import GROUP_POINTS, DataOptions, Generated, show_nearest

MAX_BARS = 10_000
MAX_POISSON_MEAN = 1e15
"""Largest mean of a Poisson count."""


class BarsNoise(Section):
    """Noise of the pixels: none, Gaussian noise, or Poisson counts of the clean pixels."""

    kind: Literal["none", "gauss", "poisson"] = Field("gauss", description="kind of the noise")
    sigma: float = Field(2.0, ge=0, le=MAX_MAGNITUDE, description='standard deviation, for "gauss"')


class BarsOptions(DataOptions):
    """The keys of [data] for bars."""

    source: Literal["bars"] = Field("bars", description="the bars test")
    points: int = Field(ge=1, le=MAX_COUNT, description="number of data points, N")
    grid: int = Field(5, ge=1, le=MAX_BARS, description="pixels per side of the grid")
    width: Numbers = Field(1, description="width of the bars; with a list, bars of these widths are side by side")
    length: int | None = Field(None, ge=1, le=MAX_BARS, description="length of the bars, by default the whole grid")
    value: float = Field(10.0, ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE, description="grey value of a bar")
    std: float = Field(
        0.0, ge=0, le=MAX_MAGNITUDE, description="standard deviation of the grey value of a bar across data points"
    )
    negative: float = Field(0.0, ge=0, le=1, description="fraction of the bars whose value is negative")
    probability: Numbers = Field(
        0.2, description="probability that a bar appears: one number, or a list with one number per bar"
    )
    overlap: Literal["sum", "max", "nearest"] = Field(
        "sum",
        description='value of pixels in two bars; "nearest" shows the front bar; the order is drawn for each point',
    )
    colours: Literal["none", "white", "hues", "dealt"] = Field(
        "none",
        description='"none": grey bars; otherwise three channels, with white bars or with evenly spaced hues: '
        'in order ("hues"), or shuffled ("dealt")',
    )
    at_least: int = Field(0, ge=0, le=MAX_BARS, description="points with fewer bars than this are drawn again")
    noise: BarsNoise = BarsNoise()
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data; default: run.seed")

    @property
    def bars(self) -> int:
        """Return the number of different bars."""
        places = len(self.width) if isinstance(self.width, list) else self.grid - self.width + 1
        return 2 * places * (self.grid - (self.length or self.grid) + 1)

    def inconsistencies(self) -> list[tuple[str, str, object]]:
        wrong: list[tuple[str, str, object]] = []
        widths = self.width if isinstance(self.width, list) else [self.width]
        if not all(isinstance(width, int) for width in widths) or min(widths) < 1 or sum(widths) > self.grid:
            wrong.append(("width", f"whole numbers of 1 and more that fit on the grid of {self.grid}", self.width))
        elif (self.length or 1) > self.grid:
            wrong.append(("length", f"at most data.grid = {self.grid}", self.length))
        elif self.bars > MAX_BARS:
            wrong.append(("grid", f"at most {MAX_BARS} bars", self.bars))
        else:
            bars, p = self.bars, np.atleast_1d(np.asarray(self.probability, np.float64))
            if p.size not in (1, bars) or p.min() <= 0 or p.max() >= 1:
                wrong.append(
                    ("probability", f"a number in (0, 1), or one for each of the {bars} bars", self.probability)
                )
            elif self.at_least > 0 and probability_of_at_least(np.broadcast_to(p, bars), self.at_least) < 1e-3:
                wrong.append(("at_least", "a number of bars that at least one point in 1000 contains", self.at_least))
            if self.overlap == "nearest" and self.negative > 0:
                wrong.append(("negative", 'none with overlap = "nearest"', self.negative))
            if self.std > 0 and (self.overlap == "nearest" or self.value == 0):
                wrong.append(("std", 'none with overlap = "nearest" or value = 0', self.std))
            if self.noise.kind == "poisson" and (self.negative > 0 or self.value < 0 or self.std > 0):
                wrong.append(("noise.kind", '"gauss" or "none" with negative bars, or with std > 0', "poisson"))
            elif self.noise.kind == "poisson" and self.value * bars > MAX_POISSON_MEAN:
                wrong.append(
                    ("value", f"at most {MAX_POISSON_MEAN:g} in all bars together, for Poisson counts", self.value)
                )
        return wrong


def bar_fields(options: BarsOptions) -> np.ndarray:
    """Return all bars as (b, D): horizontal bars, then vertical bars. Negative bars are spread evenly."""
    grid = options.grid
    length = options.length or grid
    if isinstance(options.width, list):
        places = [(sum(options.width[:i]), width) for i, width in enumerate(options.width)]
    else:
        places = [(start, options.width) for start in range(grid - options.width + 1)]
    images = []
    for start, width in places:
        for offset in range(grid - length + 1):
            image = np.zeros((grid, grid))
            image[start : start + width, offset : offset + length] = options.value
            images.append(image)
    bars = np.array([image.ravel() for image in images] + [image.T.ravel() for image in images])
    negative = round(options.negative * len(bars))
    bars[np.arange(len(bars)) * negative // len(bars) != (np.arange(len(bars)) + 1) * negative // len(bars)] *= -1
    return bars


def probability_of_at_least(probability: np.ndarray, least: int) -> float:
    """Return the probability that ``least`` or more bars appear; ``probability`` is that of each bar."""
    count = np.ones(1)
    for p in probability:
        count = np.convolve(count, [1 - p, p])
    return float(count[least:].sum())


class Bars(Generated):
    """Bars data, drawn in groups of points that depend only on the seed."""

    Options = BarsOptions

    def __init__(self, options: BarsOptions, seed: int, job: Any) -> None:
        self.options = options
        self.seed = seed if options.seed is None else options.seed
        self.channels = 1 if options.colours == "none" else 3
        self.points, self.dims = options.points, options.grid**2 * self.channels
        self.shape = (options.grid, options.grid, *((self.channels,) if self.channels > 1 else ()))
        self.working_bytes = 8 * (2 * options.bars * self.dims + GROUP_POINTS * (options.bars + 4 * self.dims))

    @cached_property
    def features(self) -> np.ndarray:
        """Return the colours of the bars, (b, channels)."""
        o = self.options
        if self.channels == 1:
            return np.full((o.bars, 1), o.value)
        if o.colours == "white":
            return np.full((o.bars, 3), o.value)
        hue = np.arange(o.bars) / o.bars
        if o.colours == "dealt":
            hue = stream(self.seed, "hues").permutation(hue)
        return o.value * np.array([hsv_to_rgb(h, 1.0, 1.0) for h in hue])

    @cached_property
    def fields(self) -> np.ndarray:
        """Return the bars, (b, D)."""
        bars = bar_fields(self.options)
        return bars if self.channels == 1 else self._in_colour(bars != 0)

    def _in_colour(self, masks: np.ndarray) -> np.ndarray:
        return (masks[:, :, None] * self.features[:, None]).reshape(len(masks), -1)

    def truth(self) -> dict[str, np.ndarray]:
        o = self.options
        pi = np.broadcast_to(np.asarray(o.probability, np.float64), len(self.fields))
        sigma = o.noise.sigma if o.noise.kind == "gauss" else 0.0
        others = {"pi": pi.copy(), "sigma": np.array(sigma)}
        if o.overlap == "nearest":
            masks = (bar_fields(o) != 0).T.astype(np.float64)
            return {"W": masks, "T": self.features.T.copy(), **others}
        if o.std > 0:
            others |= {"mu": np.array(1.0), "psi": np.array((o.std / o.value) ** 2)}
        return {"W": self.fields.T.copy(), **others}

    def group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        o = self.options
        rng = stream(self.seed, "data", index)
        s = rng.random((GROUP_POINTS, len(self.fields))) < o.probability
        while (few := s.sum(1) < o.at_least).any():
            s[few] = rng.random((int(few.sum()), len(self.fields))) < o.probability
        if o.overlap == "nearest":
            clean = show_nearest(s, 1 - rng.random(s.shape), bar_fields(o) != 0, self.features)
        else:
            strength = s if o.std == 0 else s * rng.normal(1.0, abs(o.std / o.value), s.shape)
            clean = strength @ self.fields if o.overlap == "sum" else _strongest(strength, self.fields)
        if o.noise.kind == "poisson":
            return rng.poisson(clean).astype(np.float64), s
        return clean + (o.noise.sigma * rng.standard_normal(clean.shape) if o.noise.kind == "gauss" else 0.0), s


def _strongest(s: np.ndarray, bars: np.ndarray) -> np.ndarray:
    """Return points whose pixels show the bar of largest magnitude; strengths (n, b), bars (b, D) -> (n, D)."""
    shown = np.zeros((len(s), bars.shape[1]))
    for strength, bar in zip(s.T, bars, strict=True):
        image = strength[:, None] * bar
        shown = np.where(np.abs(image) > np.abs(shown), image, shown)
    return shown


SOURCE = Bars
