"""Synthetic recordings: ten male voices that speak one sentence, and six phonemes of one voice."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from parallel_et.errors import UserError
from parallel_et.preprocessing.recordings import find_loud_part, resample
from parallel_et.preprocessing.wave_files import read_recording, write_wave
from parallel_et.storage.atomic import write_atomically

SENTENCE = "Don't ask me to carry an oily rag like that."
"""Sentence that all speakers of TIMIT read, used in ET sec. 4.3.2."""
VOICE_RATE_HZ = 16000
SPEECH_PROGRAM = "espeak-ng"
HEADROOM = 0.8
"""Factor on all samples, because resampling can create samples above the peak."""


class Voice(NamedTuple):
    """A voice of espeak-ng: accent, male variant, pitch from 0 to 99, and speed in words per minute."""

    accent: str
    variant: str
    pitch: int
    speed: int

    @property
    def file(self) -> str:
        """Name of the recording of this voice."""
        return f"{self.accent}-{self.variant}.wav"


VOICES = (
    Voice("en-us", "m1", 35, 157),
    Voice("en-gb", "m2", 45, 149),
    Voice("en-gb-scotland", "m3", 50, 162),
    Voice("en-us", "m4", 30, 154),
    Voice("en-gb-x-rp", "m5", 40, 166),
    Voice("en-gb-x-gbclan", "m6", 55, 157),
    Voice("en-029", "m7", 45, 149),
    Voice("en-gb-x-gbcwmd", "m8", 35, 162),
    Voice("en-us", "m3", 60, 171),
    Voice("en-gb", "m7", 25, 154),
)
"""The ten voices. They need 25 s for the sentence, with silence trimmed at 40 dB."""
PHONEMES = ("aU", "i:", "OI", "k", "s", "p")
"""Three vowels and three consonants, as espeak-ng writes them.

MCA App. E.4 has t in place of s. The burst of t in espeak-ng is almost equal to that of k."""
PHONEME_RATE_HZ = 8000
PHONEME_SAMPLES = 1000


def record_voices(
    folder: Path | str,
    sentence: str = SENTENCE,
    speed: float = 1.0,
    after_voice: Callable[[Voice], None] = lambda voice: None,
) -> list[Path]:
    """Write ten wave files of 16 kHz, one per voice.

    Parameters
    ----------
    speed : factor on the speed of all voices
    after_voice : called after each recording

    Returns
    -------
    list : paths of the recordings
    """
    check_speech_program()
    paths = []
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for voice in VOICES:
            paths.append(Path(folder) / voice.file)
            record_sentence(voice, sentence, speed, paths[-1])
            after_voice(voice)
    except OSError as error:
        raise UserError(f"{folder}: expected a folder to write to, found {error.strerror}") from None
    return paths


def check_speech_program() -> None:
    """Raise UserError if espeak-ng is not installed."""
    if shutil.which(SPEECH_PROGRAM) is None:
        raise UserError(f"{SPEECH_PROGRAM}: expected this program, found none; apt-get install {SPEECH_PROGRAM}")


def record_phonemes(voice: Voice = VOICES[-1]) -> np.ndarray:
    """Record six phonemes of one voice, (6, 1000) at 8000 Hz, of power 1."""
    check_speech_program()
    waves = []
    with TemporaryDirectory() as place:
        for name in PHONEMES:
            path = Path(place, "phoneme.wav")
            record_sentence(voice, f"[[{name}]]", 1.0, path)
            waves.append(crop_phoneme(read_recording(str(path)).samples[:, 0], VOICE_RATE_HZ))
    return np.array(waves)


def crop_phoneme(samples: np.ndarray, rate: int) -> np.ndarray:
    """Resample a recording (n,) to 8000 Hz and crop it to an eighth of a second, of power 1.

    The ends are trimmed at 40 dB below the peak. A shorter recording is padded with zeros.
    """
    slow = resample(samples, rate, PHONEME_RATE_HZ)
    first, last = find_loud_part(slow, 40.0)
    found = np.zeros(PHONEME_SAMPLES)
    part = slow[first:last][:PHONEME_SAMPLES]
    found[: len(part)] = part
    return found / np.sqrt(np.mean(found**2))


def record_sentence(voice: Voice, sentence: str, speed: float, path: Path) -> None:
    """Record one sentence of one voice in a wave file."""
    with TemporaryDirectory() as place:
        raw, ready = Path(place, "raw.wav"), Path(place, "ready.wav")
        how = ["-v", f"{voice.accent}+{voice.variant}", "-p", voice.pitch, "-s", round(speed * voice.speed), "-w", raw]
        done = subprocess.run(
            [SPEECH_PROGRAM, *map(str, how), "--stdin"],
            input=sentence,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C stops only this process
        )
        if done.returncode or not raw.exists():
            why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
            raise UserError(f"{SPEECH_PROGRAM}: expected {voice.file}, found {why}")
        recording = read_recording(str(raw))
        write_wave(ready, VOICE_RATE_HZ, HEADROOM * resample(recording.samples[:, 0], recording.rate, VOICE_RATE_HZ))
        write_atomically(path, ready.read_bytes())
