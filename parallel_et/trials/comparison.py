"""Reconstruction errors: that of a trained model, and that of classical NMF with as many fields on the same points."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_et.data.base import Source
from parallel_et.data.stream import rows_of
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import exact_sum
from parallel_et.parallel.shards import Shard
from parallel_et.parallel.threads import Team
from parallel_et.runs.setup import largest_of, size_up
from parallel_et.runs.stored_run import StoredRun

STARTS = 5
STEPS, TOLERANCE = 2000, 1e-5
"""Of a start of classical NMF: most steps, and the change in a step, relative to that in the first, to end with."""
LOSSES = {"squares": {}, "divergence": {"solver": "mu", "beta_loss": "kullback-leibler"}}
"""What classical NMF minimises: the squared error (Lee and Seung 2001), or the divergence (Lee and Seung 1999)."""
ROOM = 1 << 31
"""Bytes of points in double precision that classical NMF is given: it needs them all at once, on the root."""
STRETCH = 256
"""Points side by side, where it gets only some."""


@dataclass(frozen=True)
class Starts:
    """Random starts of classical NMF: how many, the seed of the first, and which of LOSSES they minimise."""

    count: int = STARTS
    seed: int = 1
    loss: str = "squares"


@dataclass(frozen=True)
class Classical:
    """What classical NMF makes of some points.

    Attributes
    ----------
    W : (D, H) the fields of the best start
    errors : of each start, 1/(ND) sum_n |y_n - W s_n|^2 with s_n >= 0
    settled : how many starts came to rest
    points : how many points it was given
    """

    W: np.ndarray
    errors: tuple[float, ...]
    settled: int
    points: int

    @property
    def error(self) -> float:
        """Of the best start."""
        return min(self.errors)


@dataclass(frozen=True)
class Comparison:
    """The reconstruction error of a trained model, and classical NMF."""

    error: float
    classical: Classical

    @property
    def excess(self) -> float:
        """By which share the model's error is above that of classical NMF; may be negative."""
        return self.error / self.classical.error - 1 if self.classical.error > 0 else np.inf


def compare_with_nmf(
    ranks: Ranks,
    run: StoredRun,
    source: Source,
    starts: Starts = Starts(),
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Both errors on the points of ``source``, on every rank; all ranks call this together.

    Parameters
    ----------
    run : what was learned
    source : its data; values below zero are refused, as classical NMF cannot explain them
    starts : of classical NMF, whose best counts
    say : is told on the root what was found
    """
    ranks.from_root(check_sklearn)  # before anything is computed
    error = reconstruction_error(ranks, run, source)

    def alone(root: Ranks) -> Classical:
        say(f"{run.job.model.name}: reconstruction error {error:.6g}, of {source.points} points")
        Y = some_points(source)
        if len(Y) < source.points:
            say(f"classical NMF: as many points as fit in {ROOM >> 20} MiB, {len(Y)} of {source.points}")
        return classical_nmf(Y, run.job.model.causes, starts, say)

    return Comparison(error, ranks.on_root_alone(alone))


def reconstruction_error(ranks: Ranks, run: StoredRun, source: Source) -> float:
    """1/(ND) sum_n |y_n - <mean of y given s>_q|^2 of all points, at temperature 1; all ranks call this together.

    Where causes add up this is |y_n - sum_h W_h <s_h>_q|^2 (ET sec. 4.1.2). The same bits on any number of ranks.
    """
    job, size = run.job, size_up(run.job, source)[2]
    inference = Inference(run.model, run.scheme, run.params, ["reconstruction"])
    with ranks.together():
        shard = Shard.of(source.points, size, ranks.rank, ranks.size)
        rows = rows_of(source, shard, job.data.memory, job.run.threads)
        errors = np.zeros(-(-len(shard) // size))  # of each block

        def work(block: slice, thread: int) -> None:
            Y = np.asarray(rows[block][:, : source.dims], np.float64)
            largest_of(Y, shard.first + block.start, source.name)
            found = inference.block(Y, shard.first + block.start)["reconstruction"]
            errors[block.start // size] = ((Y - found) ** 2).sum()

        Team(job.run.threads).share(shard.blocks(), work)
    return exact_sum(ranks, errors, -(-source.points // size)) / (source.points * source.dims)


def some_points(source: Source) -> np.ndarray:
    """All points, or as many of them, evenly spread, as there is room for; (n, D)."""
    most = ROOM // (8 * source.dims * STRETCH)
    stretches = [(0, source.points)]
    if source.points > most * STRETCH:
        firsts = np.linspace(0, source.points - STRETCH, max(1, most)).astype(int).tolist()
        stretches = [(first, first + STRETCH) for first in firsts]
    return np.concatenate([source.read(*stretch)[:, : source.dims] for stretch in stretches], dtype=np.float64)


def classical_nmf(
    Y: np.ndarray, causes: int, starts: Starts, say: Callable[[str], None] = lambda line: None
) -> Classical:
    """The start of scikit-learn's NMF with the smallest squared error, on points Y (n, D) without negative values."""
    kind = find_nmf()
    if (least := float(Y.min())) < 0:
        raise UserError(f"classical NMF: expected no values below zero, found {least:.4g}")
    runs = []
    for start in range(starts.count):
        seed, loss = (starts.seed + start) % 2**32, LOSSES[starts.loss]
        nmf = kind(causes, init="random", random_state=seed, max_iter=STEPS, tol=TOLERANCE, **loss)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a start that did not settle: it is counted
            shares = nmf.fit_transform(Y)
        runs.append((float(((Y - shares @ nmf.components_) ** 2).mean()), nmf))
        say(f"classical NMF: start {start + 1} of {starts.count}: error {runs[-1][0]:.6g} after {nmf.n_iter_} steps")
    best = min(runs, key=lambda run: run[0])[1]
    errors = tuple(error for error, _ in runs)
    return Classical(best.components_.T.copy(), errors, sum(nmf.n_iter_ < STEPS for _, nmf in runs), len(Y))


def find_nmf() -> Any:
    """The class of scikit-learn, which is needed for this alone."""
    try:
        from sklearn.decomposition import NMF
    except ImportError as error:
        raise UserError(
            f"classical NMF: expected scikit-learn, found none ({error}); pip install scikit-learn"
        ) from None
    return NMF


def check_sklearn() -> None:
    """Refuse to begin without it."""
    find_nmf()
