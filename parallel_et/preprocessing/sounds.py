"""Options of ``sounds``, which cuts a file of segments or spectrograms from recordings."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.cutting import FLOAT32_MAX, check_options, format_command, inspect_files, write_patches
from parallel_et.preprocessing.image_collection import PatchPlaces
from parallel_et.preprocessing.recordings import RecordingCollection, SoundSteps, Spectrogram
from parallel_et.preprocessing.wave_files import find_recordings, read_recording
from parallel_et.storage.row_pass import RowPass

DEFAULT_LENGTH = "12.5ms"
SPECTROGRAM_OPTIONS = ("bands", "hertz", "window", "hop", "windows", "top", "range")
"""Options that are valid only for spectrograms."""
NUMBER_OPTIONS = ("count", "npy_rate", "channel", "rate", "trim", "scale", "bands", "window", "hop", "windows", "top")
SECONDS_PER_UNIT = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Sounds:
    """Options of the command ``sounds``, in its order. Invalid values raise UserError.

    Parameters
    ----------
    inputs : files, folders or patterns of recordings
    output : the file of segments
    length : length of a segment, e.g. "12.5ms", "0.1s" or "200" (samples)
    step : distance between segments, in the same units
    count : number of segments at random positions, instead of all segments
    npy_rate : sampling rate of .npy files in Hz
    seed : seed of the random positions
    bad : ``fatal``: a bad recording is an error; ``skip``: it is reported and skipped
    channel : number of the channel, from 1; by default the mean of all channels
    rate : sampling rate in Hz to which recordings are resampled
    trim : both ends are removed up to the first sample above this many dB below the peak
    scale : largest magnitude of each recording after scaling
    spectrogram : write log-spectrograms instead of segments
    bands, hertz, window, hop, windows, top, range : settings of ``Spectrogram``
    fresh : replace an existing output
    max_time : seconds after which the command stops, to be resumed
    """

    inputs: Sequence[str]
    output: str = "sounds.h5"
    length: str | None = None
    step: str | None = None
    count: int | None = None
    npy_rate: int | None = None
    seed: int = 1
    bad: str = "fatal"
    channel: int | None = None
    rate: int | None = None
    trim: float | None = None
    scale: float | None = None
    spectrogram: bool = False
    bands: int | None = None
    hertz: Sequence[float] | None = None
    window: int | None = None
    hop: int | None = None
    windows: int | None = None
    top: float | None = None
    range: Sequence[float] | None = None
    fresh: bool = False
    quiet: bool = False
    max_time: float | None = None

    def __post_init__(self) -> None:
        given = vars(self)
        low, high = self.hertz or (1, 2)
        bottom, top = self.range or (0, 1)
        times = {"length": "a time as 12.5ms, 0.1s or 200 (samples)", "step": "a time as 1ms, 0.1s or 20 (samples)"}
        free = self.length is None or not self.spectrogram
        checks = [
            *((name, given[name] is None or 0 < given[name] < np.inf, "a positive number") for name in NUMBER_OPTIONS),
            *(
                (name, given[name] is None or count_samples(given[name], 10**6) > 0, words)
                for name, words in times.items()
            ),
            ("seed", 0 <= self.seed < 2**63, "a number from 0 to 2^63 - 1"),
            ("hertz", 0 < low < high < np.inf, "a positive number and a larger one"),
            ("range", -FLOAT32_MAX <= bottom < top <= FLOAT32_MAX, "a number and a larger one"),
            ("length", free, "none, as with --spectrogram it follows from --windows"),
            *((name, given[name] is None or self.spectrogram, "--spectrogram with it") for name in SPECTROGRAM_OPTIONS),
        ]
        check_options(self, checks)

    @property
    def spectrogram_settings(self) -> Spectrogram | None:
        """Settings of the spectrograms, or None for segments."""
        if not self.spectrogram:
            return None
        names = {"top": "decibels", "range": "scale"}
        given = {names.get(option, option): vars(self)[option] for option in SPECTROGRAM_OPTIONS}
        stated: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if v is not None}
        return Spectrogram(**stated)

    def cut(self, ranks: Ranks) -> int:
        """Inspect the recordings, then cut, prepare and write the segments; collective. Return the exit code."""
        row_pass = RowPass(ranks, self.output, self.fresh, self.quiet, self.max_time)
        return row_pass.run(lambda: self._work(row_pass))

    def _work(self, row_pass: RowPass) -> str:
        ranks, to = row_pass.ranks, self.spectrogram_settings
        files = ranks.from_root(lambda: find_recordings(self.inputs))
        ranks.from_root(row_pass.refuse_existing)
        rate = self.rate or ranks.from_root(lambda: self._first_rate(files))
        length = to.length if to else parse_samples("--length", self.length or DEFAULT_LENGTH, rate)
        step = parse_samples("--step", self.step, rate) if self.step else to.hop if to else 1
        if to and 2 * to.hertz[1] > rate:
            raise UserError(f"--hertz: expected at most half of the sampling rate of {rate} Hz, found {to.hertz[1]:g}")
        steps = SoundSteps(self.channel, self.rate, self.trim, self.scale, to)
        collection = RecordingCollection(steps, rate, length, self.npy_rate, row_pass.give_up_if_stopping)
        inspect_files(row_pass, collection, files, self.bad == "skip", self.inputs)
        for line in summarise_steps(collection):
            row_pass.reporter.log(line)
        places = PatchPlaces(collection, self.count, 1 if self.count else step, self.seed)
        words = f"of {length} samples ({1000 * length / rate:g} ms at {rate} Hz)"
        return write_patches(row_pass, collection, places, format_command("sounds", self), words)

    def _first_rate(self, files: Sequence[str]) -> int:
        """Return the sampling rate of the first file, or of the first good file if bad files are skipped."""
        for file in files:
            try:
                return read_recording(file, self.npy_rate).rate
            except UserError:
                if self.bad == "fatal":
                    raise
        raise UserError(f"{' '.join(self.inputs)}: expected recordings, found only bad files: {len(files)}")


def count_samples(time: str, rate: int) -> int:
    """Convert a time, e.g. "12.5ms", "0.1s" or "200", to samples. Return 0 if it is invalid."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+) ?(ms|s)", time)
    if found is None:
        plain = re.fullmatch(r"(\d+)( samples?)?", time)
        return int(plain[1]) if plain else 0
    return round(float(found[1]) * SECONDS_PER_UNIT[found[2]] * rate)


def parse_samples(option: str, time: str, rate: int) -> int:
    """Convert a time on the command line to samples. Raise UserError if it is invalid."""
    if not (samples := count_samples(time, rate)):
        raise UserError(f"{option}: expected at least one sample, which takes {1000 / rate:g} ms, found {time}")
    return samples


def summarise_steps(collection: RecordingCollection) -> list[str]:
    """Summarise the steps on the recordings in lines for the log."""
    lines, notes, seconds = (
        [],
        [entry.metadata for entry in collection.entries],
        [e.width / collection.rate for e in collection.entries],
    )
    if others := sorted({n["recorded at"] for n in notes} - {collection.rate}):
        count = sum(n["recorded at"] != collection.rate for n in notes)
        lines.append(
            f"{count} of {len(notes)} recordings resampled from {', '.join(map(str, others))} to {collection.rate} Hz"
        )
    if collection.steps.trim is not None:
        ends = np.array([n["seconds trimmed"] for n in notes])
        each = ends.sum(1)
        lines.append(
            f"{ends.sum():.3g} s of silence trimmed, {ends[:, 0].sum():.3g} s of it before the sound; "
            f"{each.min():.3g} to {each.max():.3g} s per recording; {sum(seconds):.4g} s are left"
        )
    if collection.steps.scale is not None:
        factors = [n["factor"] for n in notes]
        lines.append(f"each recording multiplied, by {min(factors):.3g} to {max(factors):.3g}")
    return lines
