"""Ten different male voices, synthesised, that say the same sentence; and six phonemes of one."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from parallel_et.errors import UserError
from parallel_et.preprocessing.recordings import loud_part, resample
from parallel_et.preprocessing.wave_files import read_recording, write_wave
from parallel_et.storage.atomic import write_whole

SENTENCE = "Don't ask me to carry an oily rag like that."
"""One of the two that all speakers of TIMIT say; that of ET sec. 4.3.2."""
RATE = 16000
PROGRAM = "espeak-ng"
HEADROOM = 0.8
"""Factor on all samples: between those of a loud voice, resampled, there are larger ones."""


class Voice(NamedTuple):
    """An accent and a male variant of espeak-ng, its pitch from 0 to 99 and its words a minute."""

    accent: str
    variant: str
    pitch: int
    speed: int

    @property
    def file(self) -> str:
        """The name of its recording."""
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
"""Silence at both ends trimmed at 40 dB, they need 25 s for the sentence."""
PHONEMES = ("aU", "i:", "OI", "k", "s", "p")
"""Three vowels and three consonants as espeak-ng writes them: those of MCA App. E.4, but for s in place of t, whose
burst is almost that of its k."""
PHONEME_RATE, PHONEME_SAMPLES = 8000, 1000


def speak(
    folder: Path | str, sentence: str = SENTENCE, speed: float = 1.0, told: Callable[[Voice], None] = lambda voice: None
) -> list[Path]:
    """Write ten recordings of 16 kHz, a wave file each, and return their paths; ``told`` is called after each.

    Parameters
    ----------
    speed : factor on the words a minute of all voices
    """
    check_program()
    paths = []
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for voice in VOICES:
            paths.append(Path(folder) / voice.file)
            say(voice, sentence, speed, paths[-1])
            told(voice)
    except OSError as error:
        raise UserError(f"{folder}: expected a folder to write to, found {error.strerror}") from None
    return paths


def check_program() -> None:
    """Refuse to go on without it."""
    if shutil.which(PROGRAM) is None:
        raise UserError(f"{PROGRAM}: expected this program to speak, found none; apt-get install {PROGRAM}")


def phonemes(voice: Voice = VOICES[-1]) -> np.ndarray:
    """Six phonemes of one voice at 8000 Hz, (6, 1000), of power 1."""
    check_program()
    waves = []
    with TemporaryDirectory() as place:
        for name in PHONEMES:
            path = Path(place, "phoneme.wav")
            say(voice, f"[[{name}]]", 1.0, path)
            waves.append(of_one_length(read_recording(str(path)).samples[:, 0], RATE))
    return np.array(waves)


def of_one_length(samples: np.ndarray, rate: int) -> np.ndarray:
    """The first eighth of a second of a recording (n,), at 8000 Hz, or all of it with zeros behind; of power 1.

    At its ends what is 40 dB below its peak is left out.
    """
    slow = resample(samples, rate, PHONEME_RATE)
    first, last = loud_part(slow, 40.0)
    found = np.zeros(PHONEME_SAMPLES)
    part = slow[first:last][:PHONEME_SAMPLES]
    found[: len(part)] = part
    return found / np.sqrt(np.mean(found**2))


def say(voice: Voice, sentence: str, speed: float, path: Path) -> None:
    """One recording."""
    with TemporaryDirectory() as place:
        raw, ready = Path(place, "raw.wav"), Path(place, "ready.wav")
        how = ["-v", f"{voice.accent}+{voice.variant}", "-p", voice.pitch, "-s", round(speed * voice.speed), "-w", raw]
        done = subprocess.run(
            [PROGRAM, *map(str, how), "--stdin"],
            input=sentence,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C is for us, who then stop well
        )
        if done.returncode or not raw.exists():
            why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
            raise UserError(f"{PROGRAM}: expected {voice.file}, found {why}")
        recording = read_recording(str(raw))
        write_wave(ready, RATE, HEADROOM * resample(recording.samples[:, 0], recording.rate, RATE))
        write_whole(path, ready.read_bytes())
