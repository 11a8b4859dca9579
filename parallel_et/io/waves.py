"""Recordings as arrays: wave files, and .npy files whose sampling rate is told."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.io import wavfile

from parallel_et.errors import UserError
from parallel_et.io.find import ending, find_files

WAVES = (".wav", ".wave")
ENDINGS = (*WAVES, ".npy")


class Recording(NamedTuple):
    """Samples (n, channels) float64 and how many there are in a second.

    Integers of a wave file become numbers from -1 to 1; what a .npy file holds, and floating point, stays as it is.
    """

    rate: int
    samples: np.ndarray


def find_recordings(names: Sequence[str]) -> list[str]:
    """The files that are meant by files, folders (their recordings by name) and patterns; each once."""
    return find_files(names, ENDINGS, "recordings")


def read_recording(name: str, npy_rate: int | None = None) -> Recording:
    """A recording; ``npy_rate`` is the sampling rate of .npy files, (samples,) or (samples, channels)."""
    kind = ending(name)
    if kind not in ENDINGS:
        raise UserError(f"{name}: expected a recording ({' '.join(ENDINGS)}), found {kind or 'no such ending'}")
    if kind == ".npy" and npy_rate is None:
        raise UserError(f"{name}: expected --npy-rate to tell its sampling rate, found none")
    try:
        rate, stored = _read_wave(name) if kind in WAVES else (npy_rate or 0, np.asarray(np.load(name)))
    except MemoryError:
        raise
    except Exception as error:  # what the libraries say of a damaged file has no common kind
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{name}: expected a recording, found what cannot be read ({why})") from None
    if stored.ndim not in (1, 2) or stored.dtype.kind not in "fiub" or not stored.size or rate < 1:
        found = f"the shape {stored.shape} of {stored.dtype} at {rate} Hz"
        raise UserError(f"{name}: expected samples, or samples x channels, of numbers, found {found}")
    samples = np.asarray(stored, np.float64).reshape(len(stored), -1)
    return Recording(int(rate), samples if kind == ".npy" else _to_unit(samples, stored.dtype))


def write_wave(path: Path, rate: int, samples: np.ndarray) -> None:
    """One channel, numbers from -1 to 1, as 16 bits."""
    wavfile.write(path, rate, np.clip(np.round(samples * 2**15), -(2**15), 2**15 - 1).astype(np.int16))


def _read_wave(name: str) -> tuple[int, np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks that are not sound
        warnings.filterwarnings("error", "Reached EOF prematurely", wavfile.WavFileWarning)
        return wavfile.read(name)


def _to_unit(samples: np.ndarray, stored: np.dtype) -> np.ndarray:
    """Integers as numbers from -1 to 1; 8 bits are without a sign, 24 bits come in the upper part of 32."""
    if stored.kind == "f":
        return samples
    half = 2.0 ** (8 * stored.itemsize - 1)
    return samples / half - (1.0 if stored.kind == "u" else 0.0)
