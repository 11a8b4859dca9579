"""Learn short waves whose sum is a sound: linear components of segments of 12.5 ms (ET sec. 4.3.2).

``python sound.py speech.wav`` takes one to two minutes. Without a file, it uses synthetic chirps.
On several ranks: ``mpirun -n 4 python -m mpi4py sound.py speech.wav --points 100000 --causes 200``.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import numpy as np
from mpi4py import MPI
from scipy.io import wavfile

from parallel_et import fit
from parallel_et.preprocessing.datasets import cut
from parallel_et.preprocessing.sounds import Sounds
from parallel_et.reports.pictures import draw_fields

parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
parser.add_argument("wave", nargs="?", help="a wave file, or a folder of them")
parser.add_argument("--points", type=int, default=10000, help="number of segments, at random positions")
parser.add_argument("--causes", type=int, default=40)
parser.add_argument("--iterations", type=int, default=100)
parser.add_argument("--output", default="sound", help="folder for the segments, the run and the picture")
args = parser.parse_args()


def chirps(rng, rate=8000, seconds=20):
    """Generate sweeps of 8 ms that rise or fall between 300 and 2000 Hz, 150 a second, at random times."""
    sound, t = np.zeros(rate * seconds), np.arange(0, 0.008, 1 / rate)
    for start in rng.integers(0, len(sound) - len(t), 150 * seconds):
        first, last = rng.choice([300, 700, 1200, 2000], 2, replace=False)
        sweep = np.sin(2 * np.pi * (first * t + (last - first) / 0.016 * t**2))
        sound[start : start + len(t)] += np.sin(np.pi * t / 0.008) ** 2 * sweep
    return (10000 * sound / np.abs(sound).max()).astype(np.int16)


recording, segments = args.wave or f"{args.output}/chirps.wav", f"{args.output}/segments.h5"
if MPI.COMM_WORLD.rank == 0:
    Path(args.output).mkdir(parents=True, exist_ok=True)
    if not args.wave:
        wavfile.write(recording, 8000, chirps(np.random.default_rng(1)))
cut(Sounds([recording], segments, count=args.points, scale=5.0, fresh=True))

job = {
    "model": {"name": "linca", "causes": args.causes, "sigma": 0.5, "pi": 2 / args.causes},
    "data": {"source": f"{segments}:/segments"},
    "inference": {"candidates": 8, "gamma": 4, "singletons": True},
    "anneal": {"iterations": args.iterations, "temperature": [[0.1, 5.0], [0.8, 1.0]], "noise": {"W": 0.01}},
}


def show(params, settings, info):
    """Print one line every tenth iteration. Only the root calls this function."""
    if settings.iteration % 10 == 0:
        print(
            f"iteration {settings.iteration}: T {settings.temperature:.2f}, free energy {info.free_energy:.1f}",
            flush=True,
        )


result = fit(job, output=f"{args.output}/run", watch=show)
if result.history:  # only the root has it
    title = f"{args.causes} fields of {args.points} segments of 12.5 ms"
    draw_fields(result.W, (len(result.W),), Path(args.output, "fields.png"), title)
    print(f"fields: {args.output}/fields.png; more of them: python -m parallel_et report {args.output}/run")
