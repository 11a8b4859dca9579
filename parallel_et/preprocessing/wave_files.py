"""Recordings as arrays: wave files, FLAC and OGG where soundfile is installed, .npy files whose rate is told."""

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
from parallel_et.preprocessing.find_files import ending, find_files
from parallel_et.storage.error_translation import check_room, gate
from parallel_et.storage.raw_reader import open_npy
from parallel_et.storage.subprocess_reader import Apart

WAVES = (".wav", ".wave")
COMPRESSED = (".flac", ".ogg")
ENDINGS = (*WAVES, *COMPRESSED, ".npy")
LAST = 4
"""Flag of the last page of an OGG file."""
TURNED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Each byte with its bits in the other order."""


class Recording(NamedTuple):
    """Samples (n, channels) float64 and how many there are in a second.

    Integers of a wave or FLAC file become numbers from -1 to 1; what a .npy file holds, and floating point, stays.
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
    with gate(name, "a recording"):
        if kind in COMPRESSED:
            find_soundfile(name)
            stored, (rate,) = _reader().ask(name, __name__, "read_compressed")
        else:
            rate, stored = _read_wave(name) if kind in WAVES else (npy_rate or 0, open_npy(name))
    if stored.ndim not in (1, 2) or stored.dtype.kind not in "fiub" or not stored.size or rate < 1:
        found = f"the shape {stored.shape} of {stored.dtype} at {rate} Hz"
        raise UserError(f"{name}: expected samples, or samples x channels, of numbers, found {found}")
    check_room(name, "a recording", 2 * 8 * stored.size)
    with gate(name, "a recording"):
        samples = np.array(stored, np.float64).reshape(len(stored), -1)
    return Recording(int(rate), samples if kind == ".npy" else _to_unit(samples, stored.dtype))


def find_soundfile(name: str) -> Any:
    """The package that reads what is compressed."""
    try:
        import soundfile
    except (ImportError, OSError) as error:  # or the library that it is made of
        wanted = "expected the package soundfile to read it"
        raise UserError(f"{name}: {wanted}, found none ({error}); pip install 'parallel_et[sounds]'") from None
    return soundfile


@cache
def _reader() -> Apart:
    """The process that reads what may crash it; it goes with this one."""
    return Apart()


def read_compressed(name: str) -> list[np.ndarray]:
    """Samples (n, channels) of a FLAC or OGG file and, as an array of one, the rate; in this process."""
    with gate(name, "a recording"):
        if ending(name) == ".ogg":
            _check_pages(name)
        with find_soundfile(name).SoundFile(name) as file:
            check_room(name, "a recording", 2 * 8 * file.frames * file.channels)
            samples = file.read(file.frames, "float64", always_2d=True)
            if len(samples) != file.frames:
                raise UserError(f"{name}: expected {file.frames} samples, found {len(samples)}")
            return [samples, np.array([file.samplerate])]


def _check_pages(name: str) -> None:
    """Refuse an OGG file of which a page is missing or damaged: the library goes on without it.

    A page ends with its segments, whose lengths stand before them; only the last page says that it is the last.
    """
    flags = 0
    with open(name, "rb") as file:
        while len(head := file.read(27)) == 27 and head[:4] == b"OggS":
            lengths = file.read(head[26])
            page = head[:22] + bytes(4) + head[26:] + lengths + file.read(sum(lengths))
            turned = zlib.crc32(page.translate(TURNED), 0xFFFFFFFF) ^ 0xFFFFFFFF  # as OGG has all bits the other way
            if int(f"{turned:032b}"[::-1], 2) != int.from_bytes(head[22:26], "little"):
                raise UserError(f"{name}: expected a whole OGG file, found a damaged page")
            flags = head[5]
    if not flags & LAST:
        raise UserError(f"{name}: expected a whole OGG file, found one without its last page")


def write_wave(path: Path, rate: int, samples: np.ndarray) -> None:
    """One channel, numbers from -1 to 1, as 16 bits."""
    wavfile.write(path, rate, np.clip(np.round(samples * 2**15), -(2**15), 2**15 - 1).astype(np.int16))


def _read_wave(name: str) -> tuple[int, np.ndarray]:
    _check_whole(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks that are not sound
        warnings.filterwarnings("error", "Reached EOF prematurely", wavfile.WavFileWarning)
        return wavfile.read(name)


def _check_whole(name: str) -> None:
    """Refuse a wave file that ends before its sound does; SciPy gives what is there."""
    size = Path(name).stat().st_size
    with open(name, "rb") as file:
        kind = file.read(12)[:4]
        order, long = ">" if kind == b"RIFX" else "<", 0
        while len(head := file.read(8)) == 8:
            (length,) = struct.unpack(f"{order}I", head[4:])
            if head[:4] == b"ds64":  # of files of more than 4 GB: here are the lengths that have no place elsewhere
                _, long = struct.unpack("<QQ", file.read(16))
                length -= 16
            if head[:4] == b"data":
                length = long if kind == b"RF64" and length == 2**32 - 1 else length
                if length > size - file.tell():
                    raise UserError(f"{name}: expected {length} bytes of sound, found {size - file.tell()}")
                return
            file.seek(length + length % 2, os.SEEK_CUR)


def _to_unit(samples: np.ndarray, stored: np.dtype) -> np.ndarray:
    """Integers as numbers from -1 to 1; 8 bits are without a sign, 24 bits come in the upper part of 32."""
    if stored.kind == "f":
        return samples
    half = 2.0 ** (8 * stored.itemsize - 1)
    return samples / half - (1.0 if stored.kind == "u" else 0.0)
