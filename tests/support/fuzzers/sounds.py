"""Damaged recordings."""

import numpy as np
import soundfile
from damage import spoil
from scipy.io import wavfile

from parallel_et.preprocessing.recordings import RecordingCollection, SoundSteps
from parallel_et.preprocessing.wave_files import read_recording

RATES = (4000, 8000, 16000, 44100)


def prepare(folder):
    tone = np.sin(np.arange(400) / 5)
    kinds = {"words": (tone * 2**15).astype(np.int16), "bytes": (127 * (tone + 1)).astype(np.uint8)}
    kinds |= {"single": tone.astype(np.float32), "double": tone, "long": (tone * 2**31).astype(np.int32)}
    kinds |= {"pair": np.stack([tone, -tone], 1).astype(np.float32)}
    for name, samples in kinds.items():
        wavfile.write(folder / f"seed-{name}.wav", 8000, samples)
        np.save(folder / f"seed-{name}.npy", samples)
    for ending in ("flac", "ogg"):
        soundfile.write(folder / f"seed-packed.{ending}", kinds["words"], 8000)


def case(rng, folder):
    seed = rng.choice(sorted(folder.glob("seed-*")))
    raw = seed.read_bytes()
    path = folder / f"spoilt{seed.suffix}"
    path.write_bytes(spoil(rng, raw, 60 if seed.suffix == ".wav" else 128) if rng.random() < 0.95 else raw)
    default_rate = int(rng.choice(RATES))
    rate = read_recording(str(path), default_rate).rate
    wanted = int(rng.choice(RATES)) if rng.random() < 0.5 else None
    trim, scale = (40.0 if rng.random() < 0.5 else None), (5.0 if rng.random() < 0.5 else None)
    steps = SoundSteps(None, wanted, trim, scale, None)
    collection = RecordingCollection(steps, wanted or rate, 20, default_rate, lambda: None)
    (entry,) = collection.inspect(str(path))
    assert entry.width >= 20
    assert np.isfinite(entry.largest)
    collection.set_entries([entry])
    assert np.isfinite(collection.image(0)).all()
