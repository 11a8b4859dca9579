"""Preparation of recordings, segments of recordings, and their log-spectrograms."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.signal import resample_poly

from parallel_et.errors import UserError
from parallel_et.preprocessing.filters import Zca
from parallel_et.preprocessing.image_collection import ImageCollection, ImageInfo
from parallel_et.preprocessing.wave_files import Recording, read_recording
from parallel_et.storage.error_translation import check_fits_memory

SILENCE_MAGNITUDE = 1e-150
"""Smallest magnitude in a spectrogram: the logarithm of zero is infinite."""
LARGEST_RATE_TERM = 250_000
"""Largest term of the ratio of two sampling rates. The resampling filter has twenty times this number of taps."""


@dataclass(frozen=True)
class Spectrogram:
    """Settings of the log-spectrogram (bands, windows) of a segment. The defaults are those of MCA App. E.4.

    Attributes
    ----------
    bands : number of frequencies
    hertz : lowest and highest frequency in Hz
    window, hop : length of a window and distance between windows, in samples
    windows : number of windows
    decibels : range below the loudest value in dB
    scale : values to which this range is mapped
    """

    bands: int = 50
    hertz: tuple[float, float] = (100.0, 4000.0)
    window: int = 200
    hop: int = 100
    windows: int = 9
    decibels: float = 42.8
    scale: tuple[float, float] = (0.0, 10.0)

    @property
    def length(self) -> int:
        """Length of a segment in samples."""
        return self.window + (self.windows - 1) * self.hop

    def centres(self) -> np.ndarray:
        """Return the frequencies of the bands in Hz, in increasing order."""
        return np.geomspace(*self.hertz, self.bands)

    def compute_decibels(self, segments: np.ndarray, rate: int) -> np.ndarray:
        """Compute short-time Fourier magnitudes of segments (n, length) in dB, (n, bands, windows).

        Costs 4 * bands * window * windows operations per segment.
        """
        phases = 2 * np.pi / rate * np.outer(np.arange(self.window), self.centres())
        frames = sliding_window_view(segments, self.window, axis=1)[:, :: self.hop] * np.hamming(self.window)
        magnitudes = np.hypot(frames @ np.cos(phases), frames @ np.sin(phases))
        return 20 * np.log10(np.maximum(magnitudes, SILENCE_MAGNITUDE)).transpose(0, 2, 1)

    def scale_decibels(self, decibels: np.ndarray, top: float) -> np.ndarray:
        """Map the range of ``self.decibels`` below ``top`` to ``scale``. Fainter values are clipped."""
        low, high = self.scale
        return low + (high - low) * np.clip(1 + (decibels - top) / self.decibels, 0.0, 1.0)


@dataclass(frozen=True)
class SoundSteps:
    """The steps of the preparation, in this order: the spectrogram on segments, the others on whole recordings."""

    channel: int | None = None
    rate: int | None = None
    trim: float | None = None
    scale: float | None = None
    spectrogram: Spectrogram | None = None

    def describe_image_steps(self) -> list[dict[str, Any]]:
        """Describe the steps on whole recordings for the output file."""
        steps = {
            "mono": {"of": "mean of the channels" if self.channel is None else f"channel {self.channel}"},
            "resample": None if self.rate is None else {"rate": self.rate},
            "trim": None if self.trim is None else {"decibels below the peak": self.trim},
            "scale": None if self.scale is None else {"peak of each recording": self.scale},
        }
        return [{"step": name, **values} for name, values in steps.items() if values is not None]

    def describe_patch_steps(self, span: tuple[float, float] | None) -> list[dict[str, Any]]:
        """Describe the steps on segments for the output file; ``span``: smallest and largest value in dB."""
        if (to := self.spectrogram) is None:
            return []
        shape = {"bands": to.bands, "hertz": list(to.hertz), "window": to.window, "hop": to.hop, "windows": to.windows}
        values = {"from": [span[1] - to.decibels, span[1]] if span else [], "to": list(to.scale)}
        return [{"step": "log-spectrogram", **shape, "window shape": "Hamming"}, {"step": "scale decibels", **values}]

    def apply(self, file: str, recording: Recording) -> tuple[np.ndarray, dict[str, Any]]:
        """Apply the steps to a whole recording. Return samples (n,) float64, and metadata of the steps."""
        rate, samples = recording
        if self.channel is not None and self.channel > samples.shape[1]:
            raise UserError(f"{file}: expected a channel {self.channel}, found {samples.shape[1]}")
        mono = samples.mean(1) if self.channel is None else samples[:, self.channel - 1]
        metadata: dict[str, Any] = {"recorded at": rate}
        if self.rate not in (None, rate):
            check_resampling(file, len(mono), rate, self.rate or 0)
            mono, rate = resample(mono, rate, self.rate or 0), self.rate or 0
        peak = float(np.abs(mono).max())
        if not 0 < peak < np.inf and (self.trim is not None or self.scale is not None):
            raise UserError(
                f"{file}: expected sound, found {'silence' if peak == 0 else 'numbers that are not finite'}"
            )
        if self.trim is not None:
            first, last = find_loud_part(mono, self.trim)
            metadata["seconds trimmed"] = [first / rate, (len(mono) - last) / rate]
            mono = mono[first:last]
        if self.scale is not None:
            mono = mono / peak * self.scale  # in this order the largest sample is exactly the scale
            metadata["factor"] = self.scale / peak
        return mono, metadata


def check_resampling(file: str, count: int, rate: int, wanted: int) -> None:
    """Refuse a recording whose resampling needs too much memory. The rate of a damaged file may be any number."""
    common = gcd(rate, wanted)
    if max(rate, wanted) // common > LARGEST_RATE_TERM:
        expected = f"a sampling rate in a ratio to {wanted} Hz of numbers up to {LARGEST_RATE_TERM}"
        raise UserError(f"{file}: expected {expected}, found {rate} Hz")
    check_fits_memory(file, f"a recording at {wanted} Hz", 3 * 8 * (count * wanted // rate))


def resample(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Resample samples (n,) to another rate, with a low-pass filter."""
    common = gcd(rate, wanted)
    return resample_poly(samples, wanted // common, rate // common)


def find_loud_part(samples: np.ndarray, decibels: float) -> tuple[int, int]:
    """Find the range [first, last) of samples (n,) that ends where the sound is ``decibels`` below the peak."""
    size = np.abs(samples)
    loud = np.flatnonzero(size >= size.max() * 10 ** (-decibels / 20))
    return int(loud[0]), int(loud[-1]) + 1


class RecordingCollection(ImageCollection):
    """Prepared recordings as images one pixel high, from which segments are cut.

    Parameters
    ----------
    steps : steps of the preparation
    rate : sampling rate of all recordings after the preparation, in Hz
    length : length of a segment in samples
    npy_rate : sampling rate of .npy files in Hz
    before_image : called before each recording
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
    def output_shape(self) -> tuple[int, ...]:
        return (self.to.bands, self.to.windows) if self.to else (self.length,)

    @property
    def zca_epsilon(self) -> float | None:
        return None

    @property
    def mean_free(self) -> bool:
        return False

    def truth(self) -> dict[str, np.ndarray]:
        return {}

    @property
    def option_that_needs_range(self) -> str | None:
        return "--spectrogram" if self.to else None

    def open(self, file: str) -> Sequence[Recording]:
        return [read_recording(file, self.npy_rate)]

    def apply_image_steps(self, file: str, stored: Recording, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        if self.steps.rate is None and stored.rate != self.rate:
            raise UserError(
                f"{file}: expected {self.rate} Hz as in the first recording, found {stored.rate} Hz; --rate resamples"
            )
        samples, metadata = self.steps.apply(file, stored)
        if len(samples) < self.length:
            raise UserError(f"{file}: expected at least {self.length} samples, found {len(samples)}")
        with np.errstate(over="ignore"):
            return samples.astype(np.float32)[None], metadata

    def apply_patch_steps(self, patches: np.ndarray, zca: Zca | None, span: tuple[float, float] | None) -> np.ndarray:
        segments = patches[:, 0]
        if self.to is None:
            return segments
        decibels = self.to.compute_decibels(segments.astype(np.float64), self.rate)
        return decibels if span is None else self.to.scale_decibels(decibels, span[1])

    def image_metadata(self, entry: ImageInfo) -> dict[str, Any]:
        return {"file": entry.file, "samples": entry.width, **entry.metadata}

    def cut_metadata(self) -> dict[str, Any]:
        return {"length": self.length, "milliseconds": 1000 * self.length / self.rate}

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {"sampling rate": self.rate, "milliseconds": 1000 * self.length / self.rate}
        return {**found, "hertz": json.dumps(self.to.hertz)} if self.to else found
