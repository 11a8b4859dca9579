"""Measure the bias of pi from Gibbs chains that are stuck: learn pi exactly and from several numbers of samples.

    python examples/sampled_pi.py [--points 1000] [--sigma 2]

The data are ten bars on 5 x 5 pixels that add up, with noise of sigma = 2. The fields and sigma are the true ones.
With sigma = 20 no chain is stuck.
"""

import argparse
from tempfile import TemporaryDirectory

import h5py
import numpy as np

from parallel_et import fit

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--points", type=int, default=1000)
parser.add_argument("--sigma", type=float, default=2.0, help="standard deviation of the noise; bars have the value 10")
parser.add_argument("--seed", type=int, default=1, help="seed of the data and of the samples")
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
side = np.eye(5)
bars = 10 * np.vstack([np.kron(side, np.ones(5)), np.kron(np.ones(5), side)])
Y = (rng.random((args.points, 10)) < 0.2) @ bars + rng.normal(0, args.sigma, (args.points, 25))
sampled = {"scheme": "sample", "samples": 2000}
kinds = {
    "exact": {"scheme": "exact"},
    "2000 samples": sampled,
    "2000 samples, burn_in = 0.6": {**sampled, "burn_in": 0.6},
    "20000 samples": {**sampled, "samples": 20000},
    '2000 samples, weights = "joint"': {**sampled, "weights": "joint"},
}
with TemporaryDirectory() as folder:
    with h5py.File(f"{folder}/bars.h5", "w") as file:
        file["W"] = bars.T
    for name, inference in kinds.items():
        job = {
            "model": {
                "name": "linca",
                "causes": 10,
                "sigma": args.sigma,
                "pi": 0.2,
                "learn": ["pi"],
                "init": {"W": {"file": f"{folder}/bars.h5"}},
            },
            "inference": inference,
            "anneal": {"iterations": 8, "temperature": 1.0},
            "run": {"seed": args.seed},
        }
        print(f"{name}: pi = {float(fit(job, Y).params['pi']):.4f}")
