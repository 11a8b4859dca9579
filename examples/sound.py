"""Sound as a sum of short waves: linear components of pieces of 12.5 ms.

``python sound.py speech.wav``, or without a file on chirps that are made up; a minute or two. On several ranks:
``mpirun -n 4 python -m mpi4py sound.py speech.wav --points 100000 --causes 200`` (ET sec. 4.3.2).
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.io import wavfile

from parallel_et import fit
from parallel_et.picture import draw_fields

parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
parser.add_argument("wave", nargs="?", help="a wave file; of several channels the mean is taken")
parser.add_argument("--points", type=int, default=10000, help="pieces, at random places")
parser.add_argument("--causes", type=int, default=40)
parser.add_argument("--iterations", type=int, default=100)
parser.add_argument("--output", default="sound", help="folder for the run and the picture")
args = parser.parse_args()


def chirps(rng, rate=8000, seconds=20):
    """Sweeps of 4 ms that rise or fall between 300 and 2000 Hz, 150 of them in a second, at random times."""
    sound, t = np.zeros(rate * seconds), np.arange(-0.004, 0.004, 1 / rate)
    for start in rng.integers(0, len(sound) - len(t), 150 * seconds):
        low, high = rng.choice([300, 700, 1200, 2000], 2, replace=False)
        sweep = np.sin(2 * np.pi * (low + (high - low) * (t + 0.004) / 0.016) * t)
        sound[start : start + len(t)] += np.exp(-0.5 * (t / 0.0015) ** 2) * sweep
    return rate, sound


rng = np.random.default_rng(1)  # the same on all ranks
rate, sound = wavfile.read(args.wave) if args.wave else chirps(rng)
sound = sound.reshape(len(sound), -1).mean(1)
sound *= 5 / np.abs(sound).max()
pieces = sliding_window_view(sound, round(0.0125 * rate))
Y = pieces[rng.integers(0, len(pieces), args.points)]

job = {
    "model": {"name": "linca", "causes": args.causes, "sigma": 0.5, "pi": 2 / args.causes},
    "inference": {"candidates": 8, "gamma": 4, "singletons": True},
    "anneal": {"iterations": args.iterations, "temperature": [[0.1, 5.0], [0.8, 1.0]], "noise": {"W": 0.01}},
}


def show(params, knobs, info):
    """One line every tenth iteration; called on the root."""
    if knobs.iteration % 10 == 0:
        print(
            f"iteration {knobs.iteration:3}  T {knobs.temperature:.2f}  free energy {info.free_energy:.1f}", flush=True
        )


result = fit(job, Y, output=f"{args.output}/run", watch=show)
if result.history:  # only the root has it
    title = f"{args.causes} fields of {len(Y)} pieces of {Y.shape[1]} samples at {rate} Hz"
    draw_fields(result.W, Y.shape[1:], Path(args.output, "fields.png"), title)
    print(f"fields: {args.output}/fields.png")
