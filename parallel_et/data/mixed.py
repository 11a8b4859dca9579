"""Log-spectrograms of mixed sounds, in which the loudest sound hides the others (MCA App. E.4)."""

from hashlib import sha256
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.random import stream
from parallel_et.core.schema import MAX_COUNT, MAX_MAGNITUDE
from parallel_et.data.base import GROUP_POINTS, DataOptions, Generated
from parallel_et.errors import UserError
from parallel_et.storage.raw_reader import open_npy

SILENCE_POWER = 1e-300
"""Relative power of silence."""
MAX_CHANNELS = 10_000


class MixedOptions(DataOptions):
    """The keys of [data] for mixed sounds."""

    source: Literal["mixed"] = Field("mixed", description="sums of sounds, as log-spectrograms")
    points: int = Field(ge=1, le=MAX_COUNT, description="number of data points, N")
    waves: str = Field(description=".npy file with the waveforms of the single sounds, (sounds, samples)")
    rate: float = Field(8000.0, gt=0, le=1e9, description="samples per second")
    probability: float = Field(gt=0, lt=1, description="probability that a sound is in a point")
    channels: int = Field(
        50, ge=1, le=MAX_CHANNELS, description="number of frequencies, evenly spaced on a logarithmic scale"
    )
    low: float = Field(100.0, gt=0, le=1e9, description="lowest frequency in Hz")
    high: float = Field(4000.0, gt=0, le=1e9, description="highest frequency in Hz")
    window: int = Field(200, ge=2, le=10**6, description="samples per Hamming window; adjacent windows overlap by half")
    range: float = Field(
        42.8, gt=0, le=MAX_MAGNITUDE, description="dynamic range: decibels from silence to the loudest sound"
    )
    value: float = Field(
        10.0, gt=0, le=MAX_MAGNITUDE, description="value of the loudest sound in a point; silence is 0"
    )
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data; default: run.seed")

    def inconsistencies(self) -> list[tuple[str, str, object]]:
        if self.low >= self.high:
            return [("low", f"below data.high = {self.high}", self.low)]
        return [("high", f"at most half of data.rate = {self.rate}", self.high)] if 2 * self.high > self.rate else []


class Mixed(Generated):
    """Log-spectrograms of mixed sounds, drawn in groups of points that depend only on the seed."""

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
        self.working_bytes = 16 * GROUP_POINTS * (self.dims + self.waves.shape[1] * 2)
        time = np.arange(options.window) / options.rate
        hertz = np.geomspace(options.low, options.high, options.channels)
        self._tones = np.exp(-2j * np.pi * np.outer(time, hertz)) * np.hamming(options.window)[:, None]
        self._loudest = self._power(self.waves).max()

    def version(self) -> str:
        return f"waves {sha256(self.waves.tobytes()).hexdigest()[:16]}"

    def truth(self) -> dict[str, np.ndarray]:
        sounds = len(self.waves)
        return {"W": self.spectrograms(self.waves).T.copy(), "pi": np.full(sounds, self.options.probability)}

    def group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        s = stream(self.seed, "data", index).random((GROUP_POINTS, len(self.waves))) < self.options.probability
        return self.spectrograms(s @ self.waves), s

    def spectrograms(self, waves: np.ndarray) -> np.ndarray:
        """Return the log-spectrograms (n, channels * windows) of waves (n, samples)."""
        decibels = 10 * np.log10(np.maximum(self._power(waves) / self._loudest, SILENCE_POWER))
        values = self.options.value * (1 + decibels / self.options.range)
        return np.maximum(values, 0.0).reshape(len(waves), -1)

    def _power(self, waves: np.ndarray) -> np.ndarray:
        """Return the power of waves (n, samples) as (n, channels, windows)."""
        pieces = waves[:, self.starts[:, None] + np.arange(self.options.window)]
        return np.abs(pieces @ self._tones).transpose(0, 2, 1) ** 2


SOURCE = Mixed
