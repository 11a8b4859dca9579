"""Recordings made ready, segments of them, and their log-spectrograms."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.signal import resample_poly

from parallel_et.errors import UserError
from parallel_et.preprocessing.album import Album, Entry
from parallel_et.preprocessing.filters import Zca
from parallel_et.preprocessing.wave_files import Recording, read_recording
from parallel_et.storage.error_translation import check_room

SILENT = 1e-150
"""Magnitude that stands for none, whose logarithm would be infinite."""


RATIO = 250_000
"""Largest term of the ratio of two sampling rates: the filter between them has twenty times as many taps."""


@dataclass(frozen=True)
class Spectrogram:
    """How a segment becomes a log-spectrogram of (bands, windows); by default as in appendix E.4 of the MCA paper."""

    bands: int = 50
    hertz: tuple[float, float] = (100.0, 4000.0)
    window: int = 200
    hop: int = 100
    windows: int = 9
    decibels: float = 42.8
    scale: tuple[float, float] = (0.0, 10.0)

    @property
    def length(self) -> int:
        """Samples of a segment."""
        return self.window + (self.windows - 1) * self.hop

    def centres(self) -> np.ndarray:
        """Frequencies of the bands in Hz, rising."""
        return np.geomspace(*self.hertz, self.bands)

    def magnitudes(self, segments: np.ndarray, rate: int) -> np.ndarray:
        """Short-time Fourier transforms of segments (n, length) at the bands' frequencies in dB; (n, bands, windows).

        Costs 4 * bands * window * windows operations a segment.
        """
        phases = 2 * np.pi / rate * np.outer(np.arange(self.window), self.centres())
        frames = sliding_window_view(segments, self.window, axis=1)[:, :: self.hop] * np.hamming(self.window)
        magnitudes = np.hypot(frames @ np.cos(phases), frames @ np.sin(phases))
        return 20 * np.log10(np.maximum(magnitudes, SILENT)).transpose(0, 2, 1)

    def scaled(self, decibels: np.ndarray, top: float) -> np.ndarray:
        """The uppermost decibels below ``top`` as values of ``scale``; what is fainter is as if it were just so."""
        low, high = self.scale
        return low + (high - low) * np.clip(1 + (decibels - top) / self.decibels, 0.0, 1.0)


@dataclass(frozen=True)
class SoundSteps:
    """Which steps are taken, in this order: all but the last on whole recordings."""

    channel: int | None = None
    rate: int | None = None
    trim: float | None = None
    scale: float | None = None
    spectrogram: Spectrogram | None = None

    def whole_steps(self) -> list[dict[str, Any]]:
        """The steps on recordings in plain words."""
        steps = {
            "mono": {"of": "mean of the channels" if self.channel is None else f"channel {self.channel}"},
            "resample": None if self.rate is None else {"rate": self.rate},
            "trim": None if self.trim is None else {"decibels below the peak": self.trim},
            "scale": None if self.scale is None else {"peak of each recording": self.scale},
        }
        return [{"step": name, **values} for name, values in steps.items() if values is not None]

    def cut_steps(self, span: tuple[float, float] | None) -> list[dict[str, Any]]:
        """The steps on segments in plain words; ``span``: smallest and largest value in dB."""
        if (to := self.spectrogram) is None:
            return []
        shape = {"bands": to.bands, "hertz": list(to.hertz), "window": to.window, "hop": to.hop, "windows": to.windows}
        values = {"from": [span[1] - to.decibels, span[1]] if span else [], "to": list(to.scale)}
        return [{"step": "log-spectrogram", **shape, "window shape": "Hamming"}, {"step": "scale decibels", **values}]

    def make_ready(self, file: str, recording: Recording) -> tuple[np.ndarray, dict[str, Any]]:
        """Samples (n,) float64 with all steps on recordings taken, and what was done to them."""
        rate, samples = recording
        if self.channel is not None and self.channel > samples.shape[1]:
            raise UserError(f"{file}: expected a channel {self.channel}, found {samples.shape[1]}")
        mono = samples.mean(1) if self.channel is None else samples[:, self.channel - 1]
        notes: dict[str, Any] = {"recorded at": rate}
        if self.rate not in (None, rate):
            check_rates(file, len(mono), rate, self.rate or 0)
            mono, rate = resample(mono, rate, self.rate or 0), self.rate or 0
        peak = float(np.abs(mono).max())
        if not 0 < peak < np.inf and (self.trim is not None or self.scale is not None):
            raise UserError(
                f"{file}: expected sound, found {'silence' if peak == 0 else 'numbers that are not finite'}"
            )
        if self.trim is not None:
            first, last = loud_part(mono, self.trim)
            notes["seconds trimmed"] = [first / rate, (len(mono) - last) / rate]
            mono = mono[first:last]
        if self.scale is not None:
            mono = mono / peak * self.scale  # in this order the peak becomes the scale exactly
            notes["factor"] = self.scale / peak
        return mono, notes


def check_rates(file: str, count: int, rate: int, wanted: int) -> None:
    """Refuse a recording that could not be brought to another rate: what it takes grows with the terms of their ratio.

    The sampling rate of a damaged file may be any number.
    """
    common = gcd(rate, wanted)
    if max(rate, wanted) // common > RATIO:
        expected = f"a sampling rate in a ratio to {wanted} Hz of numbers up to {RATIO}"
        raise UserError(f"{file}: expected {expected}, found {rate} Hz")
    check_room(file, f"a recording at {wanted} Hz", 3 * 8 * (count * wanted // rate))


def resample(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Samples (n,) at another rate, without what it cannot carry."""
    common = gcd(rate, wanted)
    return resample_poly(samples, wanted // common, rate // common)


def loud_part(samples: np.ndarray, decibels: float) -> tuple[int, int]:
    """From the first to behind the last of the samples (n,) that are less than so much below the peak."""
    size = np.abs(samples)
    loud = np.flatnonzero(size >= size.max() * 10 ** (-decibels / 20))
    return int(loud[0]), int(loud[-1]) + 1


class Recordings(Album):
    """Recordings with all steps taken, as images one pixel high, and the segments that are cut from them.

    Parameters
    ----------
    rate : sampling rate of all, once they are made ready
    length : samples of a segment
    npy_rate : sampling rate of .npy files
    """

    kind = "recordings"

    def __init__(
        self, steps: SoundSteps, rate: int, length: int, npy_rate: int | None, between: Callable[[], None]
    ) -> None:
        super().__init__(steps, (1, length), between)
        self.rate, self.length, self.npy_rate = rate, length, npy_rate
        self.to: Spectrogram | None = steps.spectrogram
        self.unit = "spectrograms" if self.to else "segments"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.to.bands, self.to.windows) if self.to else (self.length,)

    @property
    def whitening(self) -> float | None:
        return None

    @property
    def mean_free(self) -> bool:
        return False

    def truth(self) -> dict[str, np.ndarray]:
        return {}

    @property
    def ranging(self) -> str | None:
        return "--spectrogram" if self.to else None

    def open(self, file: str) -> Sequence[Recording]:
        return [read_recording(file, self.npy_rate)]

    def filtered(self, file: str, stored: Recording, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        if self.steps.rate is None and stored.rate != self.rate:
            raise UserError(
                f"{file}: expected {self.rate} Hz as of the first recording, found {stored.rate} Hz; --rate resamples"
            )
        samples, notes = self.steps.make_ready(file, stored)
        if len(samples) < self.length:
            raise UserError(f"{file}: expected at least {self.length} samples, found {len(samples)}")
        with np.errstate(over="ignore"):
            return samples.astype(np.float32)[None], notes

    def prepare(self, patches: np.ndarray, zca: Zca | None, span: tuple[float, float] | None) -> np.ndarray:
        segments = patches[:, 0]
        if self.to is None:
            return segments
        decibels = self.to.magnitudes(segments.astype(np.float64), self.rate)
        return decibels if span is None else self.to.scaled(decibels, span[1])

    def about(self, entry: Entry) -> dict[str, Any]:
        return {"file": entry.file, "samples": entry.width, **entry.notes}

    def about_cut(self) -> dict[str, Any]:
        return {"length": self.length, "milliseconds": 1000 * self.length / self.rate}

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {"sampling rate": self.rate, "milliseconds": 1000 * self.length / self.rate}
        return {**found, "hertz": json.dumps(self.to.hertz)} if self.to else found
