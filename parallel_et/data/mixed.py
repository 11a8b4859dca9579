"""Sounds that are mixed as waves and seen as log-spectrograms, in which the loudest hides the others (MCA App. E.4)."""

from hashlib import sha256
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.random import stream
from parallel_et.core.schema import LARGEST, MOST
from parallel_et.data.base import GROUP, DataOptions, Generated
from parallel_et.errors import UserError
from parallel_et.storage.raw_reader import open_npy

LOWEST = 1e-300
"""Power below which there is silence."""
MOST_CHANNELS = 10_000


class MixedOptions(DataOptions):
    """The keys of [data] for mixed sounds."""

    source: Literal["mixed"] = Field("mixed", description="sums of sounds, as log-spectrograms")
    points: int = Field(ge=1, le=MOST, description="number of data points, N")
    waves: str = Field(description="a .npy file with the waves of the single sounds, (sounds, samples)")
    rate: float = Field(8000.0, gt=0, le=1e9, description="samples a second")
    probability: float = Field(gt=0, lt=1, description="probability that a sound is in a point")
    channels: int = Field(50, ge=1, le=MOST_CHANNELS, description="frequencies, evenly spaced by their logarithm")
    low: float = Field(100.0, gt=0, le=1e9, description="the lowest of them, in Hz")
    high: float = Field(4000.0, gt=0, le=1e9, description="the highest of them, in Hz")
    window: int = Field(200, ge=2, le=10**6, description="samples of a Hamming window, of which half overlap the next")
    range: float = Field(42.8, gt=0, le=LARGEST, description="decibels below the loudest of all sounds that are seen")
    value: float = Field(10.0, gt=0, le=LARGEST, description="what the loudest is in a point; silence is 0")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data, by default that of the run")

    def mistakes(self) -> list[tuple[str, str, object]]:
        if self.low >= self.high:
            return [("low", f"below data.high = {self.high}", self.low)]
        return [("high", f"at most half of data.rate = {self.rate}", self.high)] if 2 * self.high > self.rate else []


class Mixed(Generated):
    """Log-spectrograms of mixed sounds, drawn in groups of points that depend on the seed alone."""

    Options = MixedOptions

    def __init__(self, options: MixedOptions, seed: int, job: Any) -> None:
        self.options = options
        self.seed = seed if options.seed is None else options.seed
        self.waves = np.array(open_npy(options.waves), np.float64)
        if self.waves.ndim != 2 or self.waves.shape[1] < options.window or not np.abs(self.waves).max(initial=0) > 0:
            expected = f"sounds x {options.window} samples and more that are not all zero"
            raise UserError(f"{options.waves}: expected {expected}, found the shape {self.waves.shape}")
        if not np.isfinite(self.waves).all():
            raise UserError(f"{options.waves}: expected numbers, found others")
        self.starts = np.arange(0, self.waves.shape[1] - options.window + 1, options.window // 2)
        self.points, self.shape = options.points, (options.channels, len(self.starts))
        self.dims = options.channels * len(self.starts)
        self.holds = 16 * GROUP * (self.dims + self.waves.shape[1] * 2)
        time = np.arange(options.window) / options.rate
        hertz = np.geomspace(options.low, options.high, options.channels)
        self._tones = np.exp(-2j * np.pi * np.outer(time, hertz)) * np.hamming(options.window)[:, None]
        self._loudest = self._power(self.waves).max()

    def state(self) -> str:
        return f"waves {sha256(self.waves.tobytes()).hexdigest()[:16]}"

    def truth(self) -> dict[str, np.ndarray]:
        sounds = len(self.waves)
        return {"W": self.seen(self.waves).T.copy(), "pi": np.full(sounds, self.options.probability)}

    def group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        s = stream(self.seed, "data", index).random((GROUP, len(self.waves))) < self.options.probability
        return self.seen(s @ self.waves), s

    def seen(self, waves: np.ndarray) -> np.ndarray:
        """Log-spectrograms (n, D) of waves (n, samples): frequencies by windows; single sounds fill the range."""
        decibels = 10 * np.log10(np.maximum(self._power(waves) / self._loudest, LOWEST))
        values = self.options.value * (1 + decibels / self.options.range)
        return np.maximum(values, 0.0).reshape(len(waves), -1)

    def _power(self, waves: np.ndarray) -> np.ndarray:
        """(n, channels, windows)."""
        pieces = waves[:, self.starts[:, None] + np.arange(self.options.window)]
        return np.abs(pieces @ self._tones).transpose(0, 2, 1) ** 2


SOURCE = Mixed
