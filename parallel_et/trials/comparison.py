"""Comparison of a trained model with classical NMF: reconstruction errors on the same points."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_et.data.base import Source
from parallel_et.data.stream import open_rows
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import exact_sum
from parallel_et.parallel.shards import Shard
from parallel_et.parallel.threads import ThreadTeam
from parallel_et.runs.setup import largest_magnitudes, model_and_block_size
from parallel_et.runs.stored_run import StoredRun

STARTS = 5
"""Default number of random starts of classical NMF."""
MAX_STEPS = 2000
"""Maximum number of steps per start of classical NMF."""
TOLERANCE = 1e-5
"""Change in a step, relative to that in the first step, at which classical NMF has converged."""
LOSSES = {"squares": {}, "divergence": {"solver": "mu", "beta_loss": "kullback-leibler"}}
"""Loss of classical NMF: the squared error (Lee and Seung 2001), or the divergence (Lee and Seung 1999)."""
NMF_DATA_BYTES = 1 << 31
"""Largest size of the points of classical NMF, in double precision, on the root."""
STRETCH_POINTS = 256
"""Number of adjacent points in a stretch, if classical NMF uses only some of the points."""


@dataclass(frozen=True)
class Starts:
    """Random starts of classical NMF: their number, the seed of the first, and a key of LOSSES."""

    count: int = STARTS
    seed: int = 1
    loss: str = "squares"


@dataclass(frozen=True)
class Classical:
    """The result of classical NMF.

    Attributes
    ----------
    W : (D, H) the fields of the best start
    errors : 1/(ND) sum_n |y_n - W s_n|^2 with s_n >= 0, of each start
    converged : number of starts that converged
    points : number of points
    """

    W: np.ndarray
    errors: tuple[float, ...]
    converged: int
    points: int

    @property
    def error(self) -> float:
        """Error of the best start."""
        return min(self.errors)


@dataclass(frozen=True)
class Comparison:
    """The reconstruction error of a trained model, and the result of classical NMF."""

    error: float
    classical: Classical

    @property
    def excess(self) -> float:
        """Relative excess of the error of the model over that of classical NMF; may be negative."""
        return self.error / self.classical.error - 1 if self.classical.error > 0 else np.inf


def compare_with_nmf(
    ranks: Ranks,
    run: StoredRun,
    source: Source,
    starts: Starts = Starts(),
    log: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Compute both errors on all ranks. Collective.

    Parameters
    ----------
    run : trained model
    source : its data; negative values are refused, because classical NMF cannot explain them
    starts : random starts of classical NMF; the best is used
    log : prints a line, on the root
    """
    ranks.from_root(check_sklearn)  # before any computation
    error = reconstruction_error(ranks, run, source)

    def run_nmf(root: Ranks) -> Classical:
        log(f"{run.job.model.name}: reconstruction error {error:.6g}, of {source.points} points")
        Y = spread_points(source)
        if len(Y) < source.points:
            log(f"classical NMF: uses the points that fit in {NMF_DATA_BYTES >> 20} MiB, {len(Y)} of {source.points}")
        return classical_nmf(Y, run.job.model.causes, starts, log)

    return Comparison(error, ranks.run_on_root(run_nmf))


def reconstruction_error(ranks: Ranks, run: StoredRun, source: Source) -> float:
    """Return 1/(ND) sum_n |y_n - <mean of y given s>_q|^2 of all points, at temperature 1. Collective.

    For linear models, the term of a point is |y_n - sum_h W_h <s_h>_q|^2 (ET sec. 4.1.2).
    The result is bit-identical on any number of ranks.
    """
    job, size = run.job, model_and_block_size(run.job, source)[2]
    inference = Inference(run.model, run.scheme, run.params, ["reconstruction"])
    with ranks.synchronise_errors():
        shard = Shard.of(source.points, size, ranks.rank, ranks.size)
        rows = open_rows(source, shard, job.data.memory, job.run.threads)
        errors = np.zeros(-(-len(shard) // size))  # of each block

        def work(block: slice, thread: int) -> None:
            Y = np.asarray(rows[block][:, : source.dims], np.float64)
            largest_magnitudes(Y, shard.first + block.start, source.name)
            found = inference.block(Y, shard.first + block.start)["reconstruction"]
            errors[block.start // size] = ((Y - found) ** 2).sum()

        ThreadTeam(job.run.threads).map_blocks(shard.blocks(), work)
    return exact_sum(ranks, errors, -(-source.points // size)) / (source.points * source.dims)


def spread_points(source: Source) -> np.ndarray:
    """Return all points (n, D), or evenly spread points if all would exceed ``NMF_DATA_BYTES``."""
    most = NMF_DATA_BYTES // (8 * source.dims * STRETCH_POINTS)
    stretches = [(0, source.points)]
    if source.points > most * STRETCH_POINTS:
        firsts = np.linspace(0, source.points - STRETCH_POINTS, max(1, most)).astype(int).tolist()
        stretches = [(first, first + STRETCH_POINTS) for first in firsts]
    return np.concatenate([source.read(*stretch)[:, : source.dims] for stretch in stretches], dtype=np.float64)


def classical_nmf(
    Y: np.ndarray, causes: int, starts: Starts, log: Callable[[str], None] = lambda line: None
) -> Classical:
    """Run scikit-learn's NMF from random starts on non-negative points Y (n, D); return the start of smallest error."""
    kind = find_nmf()
    if (least := float(Y.min())) < 0:
        raise UserError(f"classical NMF: expected no negative values, found {least:.4g}")
    runs = []
    for start in range(starts.count):
        seed, loss = (starts.seed + start) % 2**32, LOSSES[starts.loss]
        nmf = kind(causes, init="random", random_state=seed, max_iter=MAX_STEPS, tol=TOLERANCE, **loss)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # starts that did not converge are counted below
            strengths = nmf.fit_transform(Y)
        runs.append((float(((Y - strengths @ nmf.components_) ** 2).mean()), nmf))
        log(f"classical NMF: start {start + 1} of {starts.count}: error {runs[-1][0]:.6g} after {nmf.n_iter_} steps")
    best = min(runs, key=lambda run: run[0])[1]
    errors = tuple(error for error, _ in runs)
    return Classical(best.components_.T.copy(), errors, sum(nmf.n_iter_ < MAX_STEPS for _, nmf in runs), len(Y))


def find_nmf() -> Any:
    """Return the class NMF of scikit-learn; raise UserError if it is not installed."""
    try:
        from sklearn.decomposition import NMF
    except ImportError as error:
        raise UserError(
            f"classical NMF: expected scikit-learn, found none ({error}); pip install scikit-learn"
        ) from None
    return NMF


def check_sklearn() -> None:
    """Raise UserError if scikit-learn is not installed."""
    find_nmf()
