"""From recordings to a file of segments or spectrograms, written by all ranks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.album import Places
from parallel_et.preprocessing.cutting import SINGLE, command_of, cut, refuse_bad, survey
from parallel_et.preprocessing.recordings import Recordings, SoundSteps, Spectrogram
from parallel_et.preprocessing.wave_files import find_recordings, read_recording
from parallel_et.storage.row_pass import Sweep

LENGTH = "12.5ms"
SPECTROGRAM = ("bands", "hertz", "window", "hop", "windows", "top", "range")
"""Options that make sense for spectrograms alone."""
NUMBERS = ("count", "npy_rate", "channel", "rate", "trim", "scale", "bands", "window", "hop", "windows", "top")
UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Sounds:
    """Segments to be cut; the options are those of the command, in its order, and refused if they make no sense.

    Parameters
    ----------
    inputs : files, folders or patterns of recordings
    output : the file
    length : of a segment, as 12.5ms, 0.1s or 200 (samples)
    step : from one segment to the next, alike; or ``count`` segments at random places
    bad : whether a bad recording is ``fatal``, or named and skipped: ``skip``
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
            *((name, given[name] is None or 0 < given[name] < np.inf, "a positive number") for name in NUMBERS),
            *(
                (name, given[name] is None or samples_of(given[name], 10**6) > 0, words)
                for name, words in times.items()
            ),
            ("seed", 0 <= self.seed < 2**63, "a number from 0 to 2^63 - 1"),
            ("hertz", 0 < low < high < np.inf, "a positive number and a larger one"),
            ("range", -SINGLE <= bottom < top <= SINGLE, "a number and a larger one"),
            ("length", free, "none, as with --spectrogram it follows from --windows"),
            *((name, given[name] is None or self.spectrogram, "--spectrogram with it") for name in SPECTROGRAM),
        ]
        refuse_bad(self, checks)

    @property
    def spectrograms(self) -> Spectrogram | None:
        """How spectrograms are made, if they are wanted."""
        if not self.spectrogram:
            return None
        names = {"top": "decibels", "range": "scale"}
        given = {names.get(option, option): vars(self)[option] for option in SPECTROGRAM}
        stated: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if v is not None}
        return Spectrogram(**stated)

    def cut(self, ranks: Ranks) -> int:
        """Look at the recordings, then cut, prepare and write the segments; collective. Returns the exit code."""
        sweep = Sweep(ranks, self.output, self.fresh, self.quiet, self.max_time)
        return sweep.run(lambda: self._work(sweep))

    def _work(self, sweep: Sweep) -> str:
        ranks, to = sweep.ranks, self.spectrograms
        files = ranks.from_root(lambda: find_recordings(self.inputs))
        ranks.from_root(sweep.refuse_taken)
        rate = self.rate or ranks.from_root(lambda: self._first_rate(files))
        length = to.length if to else in_samples("--length", self.length or LENGTH, rate)
        step = in_samples("--step", self.step, rate) if self.step else to.hop if to else 1
        if to and 2 * to.hertz[1] > rate:
            raise UserError(f"--hertz: expected at most half of the sampling rate of {rate} Hz, found {to.hertz[1]:g}")
        steps = SoundSteps(self.channel, self.rate, self.trim, self.scale, to)
        album = Recordings(steps, rate, length, self.npy_rate, sweep.between)
        survey(sweep, album, files, self.bad == "skip", self.inputs)
        for line in told(album):
            sweep.report.say(line)
        places = Places(album, self.count, 1 if self.count else step, self.seed)
        words = f"of {length} samples ({1000 * length / rate:g} ms at {rate} Hz)"
        return cut(sweep, album, places, command_of("sounds", self), words)

    def _first_rate(self, files: Sequence[str]) -> int:
        """The sampling rate of the first file; of the first good one, if bad ones are skipped."""
        for file in files:
            try:
                return read_recording(file, self.npy_rate).rate
            except UserError:
                if self.bad == "fatal":
                    raise
        raise UserError(f"{' '.join(self.inputs)}: expected recordings, found {len(files)} bad files alone")


def samples_of(time: str, rate: int) -> int:
    """A time as samples; 0 if it is none."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+) ?(ms|s)", time)
    if found is None:
        plain = re.fullmatch(r"(\d+)( samples?)?", time)
        return int(plain[1]) if plain else 0
    return round(float(found[1]) * UNITS[found[2]] * rate)


def in_samples(option: str, time: str, rate: int) -> int:
    """A time of the command line as samples."""
    if not (samples := samples_of(time, rate)):
        raise UserError(f"{option}: expected at least one sample, which takes {1000 / rate:g} ms, found {time}")
    return samples


def told(album: Recordings) -> list[str]:
    """What was done to the recordings, for people."""
    lines, notes, seconds = [], [entry.notes for entry in album.entries], [e.width / album.rate for e in album.entries]
    if others := sorted({n["recorded at"] for n in notes} - {album.rate}):
        count = sum(n["recorded at"] != album.rate for n in notes)
        lines.append(
            f"{count} of {len(notes)} recordings resampled to {album.rate} Hz, from {', '.join(map(str, others))}"
        )
    if album.steps.trim is not None:
        ends = np.array([n["seconds trimmed"] for n in notes])
        each = ends.sum(1)
        lines.append(
            f"{ends.sum():.3g} s of silence trimmed, {ends[:, 0].sum():.3g} s of it before the sound; "
            f"{each.min():.3g} to {each.max():.3g} s of a recording; {sum(seconds):.4g} s are left"
        )
    if album.steps.scale is not None:
        factors = [n["factor"] for n in notes]
        lines.append(f"each recording multiplied, by {min(factors):.3g} to {max(factors):.3g}")
    return lines
