"""Quality Q_n of the truncated posterior of some points during training (ET eq. 21, fig. 4C)."""

from dataclasses import dataclass

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.core.model import Model
from parallel_et.core.random import stream
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Params
from parallel_et.data.base import Generated, Source
from parallel_et.inference.posterior import Inference
from parallel_et.runs.result import Result

QUALITY_POINTS = 40
"""Number of points whose quality is shown. Half of these points have at most gamma true causes, if known."""
QUALITY_ITERATIONS = 100
"""Maximum number of iterations at which the quality is computed."""
LARGEST_CAUSE_COUNT = 16
"""Largest H for which the quality is computed. All 2^H states of each point are enumerated."""


@dataclass(frozen=True)
class QualityCourse:
    """Quality Q_n of n points over a run.

    Attributes
    ----------
    iterations : (k,) numbers of finished iterations
    quality : (k, n) Q_n with the parameters after these iterations, at temperature 1
    within_gamma : (n,) bool, True if the point has at most gamma true causes; None if the causes are unknown
    """

    iterations: np.ndarray
    quality: np.ndarray
    within_gamma: np.ndarray | None


def compute_quality(
    model: Model, scheme: Scheme, result: Result, source: Source, rows: np.ndarray, report: Reporter
) -> QualityCourse | None:
    """Compute Q_n of some of the ``rows`` of the data, at the snapshots and at the end of a run.

    Return None without snapshots, without truncation, or with too many causes.
    """
    snapshots = result.snapshots
    latents = model.latents
    if not snapshots or model.H > LARGEST_CAUSE_COUNT or scheme.count == latents.states(latents.atoms, latents.atoms):
        return None
    chosen, within_gamma = choose_points(source, rows, scheme.max_active, int(result.metadata["seed"]))
    Y = np.concatenate([source.read(row, row + 1)[:, : source.dims] for row in chosen.tolist()])
    done = {int(n): params_at_snapshot(result, int(n), i) for i, n in enumerate(snapshots["iteration"])}
    done[int(result.metadata["iteration"])] = result.params
    moments = np.linspace(0, len(done) - 1, min(len(done), QUALITY_ITERATIONS)).round().astype(int)
    iterations = np.array(list(done))[moments]
    quality = np.empty((len(iterations), len(Y)))
    report.start(len(iterations), 0, len(Y))
    for i, moment in enumerate(iterations.tolist()):
        quality[i] = Inference(model, scheme, done[moment], ["quality"]).block(Y)["quality"]
        report.update(i + 1, f"quality at {i + 1} of {len(iterations)} moments")
    return QualityCourse(iterations, quality, within_gamma)


def params_at_snapshot(result: Result, iteration: int, snapshot: int) -> Params:
    """Return the parameters at a snapshot. Arrays are in the snapshot, numbers in the history."""
    return {
        name: result.snapshots[name][snapshot] if value.ndim else np.array(result.history[name][iteration - 1])
        for name, value in result.params.items()
    }


def choose_points(source: Source, rows: np.ndarray, gamma: int, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Choose ``QUALITY_POINTS`` random rows. Return the rows, and which rows have at most gamma true causes, or None.

    If the true causes are known, half of the rows have at most gamma causes.
    """
    rng = stream(seed, "quality")
    if not isinstance(source, Generated):
        return np.sort(rng.permutation(rows)[:QUALITY_POINTS]), None
    stretches = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    active = [s.sum(1) for some in stretches for _, _, s in source.draw_groups(int(some[0]), int(some[-1]) + 1)]
    within_gamma = np.concatenate(active) <= gamma
    chosen = [np.sort(rng.permutation(rows[kind])[: QUALITY_POINTS // 2]) for kind in (within_gamma, ~within_gamma)]
    return np.concatenate(chosen), np.repeat([True, False], [len(some) for some in chosen])
