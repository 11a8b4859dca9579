"""Compare full EM with minibatches from the same initial values: free energy of all points, passes and seconds.

    python examples/minibatches.py [--points 1000000] [--batch 10000] [--passes 50]
    mpirun -n 4 python -m mpi4py examples/minibatches.py

The data are sums of 128 fields with noise, in 64 dimensions. The runs are in minibatches/, and resume.
"""

import argparse
from time import perf_counter

import numpy as np
from mpi4py import MPI

from parallel_et import fit

CHUNK_POINTS = 10_000


def draw(points: int, causes: int, dims: int, rng: np.random.Generator) -> np.ndarray:
    """Draw points with two causes each on average."""
    fields = rng.normal(0, 2, (causes, dims))
    Y = np.empty((points, dims), np.float32)
    for first in range(0, points, CHUNK_POINTS):
        some = Y[first : first + CHUNK_POINTS]
        states = rng.random((len(some), causes)) < 2 / causes
        some[:] = states @ fields + rng.normal(0, 1, some.shape)
    return Y


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--points", type=int, default=1_000_000)
parser.add_argument("--causes", type=int, default=128)
parser.add_argument("--dims", type=int, default=64)
parser.add_argument("--batch", type=int, default=10_000)
parser.add_argument("--passes", type=int, default=50, help="passes of full EM; minibatches make a fifth of them")
parser.add_argument("--seed", type=int, default=1, help="seed of the data and of the initial values")
args = parser.parse_args()

Y = draw(args.points, args.causes, args.dims, np.random.default_rng(args.seed))
learn = ["W", "sigma", "pi"]
job = {
    "model": {"name": "linca", "causes": args.causes, "sigma": 2.0, "pi": 2 / args.causes, "learn": learn},
    "inference": {"candidates": 6, "gamma": 3},
    "run": {"seed": args.seed},
}
fifth = args.passes // 5
kinds = {
    "full EM": (args.passes, {"iterations": args.passes}),
    "minibatches": (fifth, {"iterations": fifth * -(-args.points // args.batch), "batch": args.batch}),
}
for name, (passes, anneal) in kinds.items():
    directory = f"minibatches/{name.replace(' ', '-')}"
    start = perf_counter()
    fit({**job, "anneal": anneal}, Y, output=directory)
    seconds = perf_counter() - start
    learned = {key: {"file": f"{directory}/result.h5", "dataset": f"params/{key}"} for key in learn}
    once = {**job, "model": {**job["model"], "init": learned}, "anneal": {"iterations": 1}}
    check = fit(once, Y)  # the free energy of its first iteration is that of the learned parameters
    if MPI.COMM_WORLD.rank == 0:
        energy = check.history["free_energy"][0]
        print(f"{name}: free energy {energy:.4f} after {passes} passes, {seconds:.0f} s", flush=True)
