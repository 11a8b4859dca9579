"""Reading of recordings as arrays: wave files, .npy files, and FLAC and OGG if soundfile is installed."""

import os
import struct
import warnings
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.io import wavfile

from parallel_et.errors import UserError
from parallel_et.preprocessing.find_files import file_suffix, find_files
from parallel_et.storage.error_translation import check_fits_memory, translate_errors
from parallel_et.storage.raw_reader import open_npy
from parallel_et.storage.subprocess_reader import SubprocessReader

WAVE_SUFFIXES = (".wav", ".wave")
COMPRESSED_SUFFIXES = (".flac", ".ogg")
RECORDING_SUFFIXES = (*WAVE_SUFFIXES, *COMPRESSED_SUFFIXES, ".npy")
LAST_PAGE_FLAG = 4
"""Flag of the last page of an OGG file."""
REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Each byte with its bits in reverse order."""


class Recording(NamedTuple):
    """Sampling rate in Hz, and samples (n, channels) float64.

    Integers of a wave or FLAC file are scaled to [-1, 1]. Floating-point samples and .npy files are not scaled.
    """

    rate: int
    samples: np.ndarray


def find_recordings(names: Sequence[str]) -> list[str]:
    """Return the recordings that files, folders and patterns name, each once."""
    return find_files(names, RECORDING_SUFFIXES, "recordings")


def read_recording(name: str, npy_rate: int | None = None) -> Recording:
    """Read a recording.

    Parameters
    ----------
    npy_rate : sampling rate of .npy files in Hz; their shape is (samples,) or (samples, channels)
    """
    kind = file_suffix(name)
    if kind not in RECORDING_SUFFIXES:
        raise UserError(
            f"{name}: expected a recording ({' '.join(RECORDING_SUFFIXES)}), found {kind or 'no file name suffix'}"
        )
    if kind == ".npy" and npy_rate is None:
        raise UserError(f"{name}: expected its sampling rate, --npy-rate, found none")
    with translate_errors(name, "a recording"):
        if kind in COMPRESSED_SUFFIXES:
            import_soundfile(name)
            stored, (rate,) = _reader().call(name, __name__, "read_compressed")
        else:
            rate, stored = _read_wave(name) if kind in WAVE_SUFFIXES else (npy_rate or 0, open_npy(name))
    if stored.ndim not in (1, 2) or stored.dtype.kind not in "fiub" or not stored.size or rate < 1:
        found = f"the shape {stored.shape} of {stored.dtype} at {rate} Hz"
        raise UserError(f"{name}: expected samples, or samples x channels, of numbers, found {found}")
    check_fits_memory(name, "a recording", 2 * 8 * stored.size)
    with translate_errors(name, "a recording"):
        samples = np.array(stored, np.float64).reshape(len(stored), -1)
    return Recording(int(rate), samples if kind == ".npy" else _scale_to_unit(samples, stored.dtype))


def import_soundfile(name: str) -> Any:
    """Load the package that reads compressed recordings."""
    try:
        import soundfile
    except (ImportError, OSError) as error:  # or its shared library
        wanted = "expected the package soundfile"
        raise UserError(f"{name}: {wanted}, found none ({error}); pip install 'parallel_et[sounds]'") from None
    return soundfile


@cache
def _reader() -> SubprocessReader:
    """Start the subprocess that reads files. The subprocess ends with this process."""
    return SubprocessReader()


def read_compressed(name: str) -> list[np.ndarray]:
    """Read a FLAC or OGG file in this process. Return samples (n, channels), and the rate as an array of length 1."""
    with translate_errors(name, "a recording"):
        if file_suffix(name) == ".ogg":
            _check_pages(name)
        with import_soundfile(name).SoundFile(name) as file:
            check_fits_memory(name, "a recording", 2 * 8 * file.frames * file.channels)
            samples = file.read(file.frames, "float64", always_2d=True)
            if len(samples) != file.frames:
                raise UserError(f"{name}: expected {file.frames} samples, found {len(samples)}")
            return [samples, np.array([file.samplerate])]


def _check_pages(name: str) -> None:
    """Refuse an OGG file with missing or damaged pages, which the library ignores.

    A page contains a header, the lengths of its segments, and its segments. Only the last page has the flag of the end.
    """
    flags = 0
    with open(name, "rb") as file:
        while len(head := file.read(27)) == 27 and head[:4] == b"OggS":
            lengths = file.read(head[26])
            page = head[:22] + bytes(4) + head[26:] + lengths + file.read(sum(lengths))
            turned = (
                zlib.crc32(page.translate(REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
            )  # OGG has the bits in reverse order
            if int(f"{turned:032b}"[::-1], 2) != int.from_bytes(head[22:26], "little"):
                raise UserError(f"{name}: expected a complete OGG file, found a damaged page")
            flags = head[5]
    if not flags & LAST_PAGE_FLAG:
        raise UserError(f"{name}: expected a complete OGG file, found no last page")


def write_wave(path: Path, rate: int, samples: np.ndarray) -> None:
    """Write samples (n,) from -1 to 1 as a wave file of 16 bits."""
    wavfile.write(path, rate, np.clip(np.round(samples * 2**15), -(2**15), 2**15 - 1).astype(np.int16))


def _read_wave(name: str) -> tuple[int, np.ndarray]:
    _check_wave_length(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks without sound
        warnings.filterwarnings("error", "Reached EOF prematurely", wavfile.WavFileWarning)
        return wavfile.read(name)


def _check_wave_length(name: str) -> None:
    """Refuse a wave file with missing samples. SciPy would return the existing samples."""
    size = Path(name).stat().st_size
    with open(name, "rb") as file:
        kind = file.read(12)[:4]
        order, long = ">" if kind == b"RIFX" else "<", 0
        while len(head := file.read(8)) == 8:
            (length,) = struct.unpack(f"{order}I", head[4:])
            if head[:4] == b"ds64":  # lengths of files above 4 GB
                _, long = struct.unpack("<QQ", file.read(16))
                length -= 16
            if head[:4] == b"data":
                length = long if kind == b"RF64" and length == 2**32 - 1 else length
                if length > (left := size - file.seek(0, os.SEEK_CUR)):
                    raise UserError(f"{name}: expected {length} bytes of sound, found {left}")
                return
            file.seek(length + length % 2, os.SEEK_CUR)


def _scale_to_unit(samples: np.ndarray, stored: np.dtype) -> np.ndarray:
    """Scale integers to [-1, 1]. Integers of 8 bits are unsigned, and 24 bits are the upper bits of 32."""
    if stored.kind == "f":
        return samples
    half = 2.0 ** (8 * stored.itemsize - 1)
    return samples / half - (1.0 if stored.kind == "u" else 0.0)
