"""How much of the posterior the considered states hold, during learning: Q_n of some points (ET eq. 21, fig. 4C)."""

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

POINTS = 40
"""Whose quality is shown; half of them of at most gamma causes, where that is known."""
MOMENTS = 100
"""Iterations at which it is shown, at most."""
MOST_CAUSES = 16
"""With more, all states of so many points at so many moments would take minutes."""


@dataclass(frozen=True)
class Course:
    """Q_n of some points over a run.

    Attributes
    ----------
    iterations : (k,) how many were done
    quality : (k, n) with the parameters at that time, at temperature 1
    few : (n,) bool, whether at most gamma causes made the point, where the source of the data knows it
    """

    iterations: np.ndarray
    quality: np.ndarray
    few: np.ndarray | None


def course_of(
    model: Model, scheme: Scheme, result: Result, source: Source, rows: np.ndarray, report: Reporter
) -> Course | None:
    """Q_n of some of the ``rows`` of the data at the snapshots of a run and at its end.

    None where there are no snapshots, too many causes, or no truncation.
    """
    snapshots = result.snapshots
    latents = model.latents
    if not snapshots or model.H > MOST_CAUSES or scheme.count == latents.states(latents.atoms, latents.atoms):
        return None
    chosen, few = choose(source, rows, scheme.most, int(result.about["seed"]))
    Y = np.concatenate([source.read(row, row + 1)[:, : source.dims] for row in chosen.tolist()])
    done = {int(n): at(result, int(n), i) for i, n in enumerate(snapshots["iteration"])}
    done[int(result.about["iteration"])] = result.params
    moments = np.linspace(0, len(done) - 1, min(len(done), MOMENTS)).round().astype(int)
    iterations = np.array(list(done))[moments]
    quality = np.empty((len(iterations), len(Y)))
    report.begin(len(iterations), 0, len(Y))
    for i, moment in enumerate(iterations.tolist()):
        quality[i] = Inference(model, scheme, done[moment], ["quality"]).block(Y)["quality"]
        report.step(i + 1, f"quality at {i + 1} of {len(iterations)} moments")
    return Course(iterations, quality, few)


def at(result: Result, iteration: int, snapshot: int) -> Params:
    """The parameters at a snapshot: arrays are stored there, numbers are in the history."""
    return {
        name: result.snapshots[name][snapshot] if value.ndim else np.array(result.history[name][iteration - 1])
        for name, value in result.params.items()
    }


def choose(source: Source, rows: np.ndarray, gamma: int, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    """``POINTS`` of the rows at random, and which of them have at most gamma causes, where that is known: half."""
    rng = stream(seed, "quality")
    if not isinstance(source, Generated):
        return np.sort(rng.permutation(rows)[:POINTS]), None
    stretches = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    active = [s.sum(1) for some in stretches for _, _, s in source.drawn(int(some[0]), int(some[-1]) + 1)]
    few = np.concatenate(active) <= gamma
    chosen = [np.sort(rng.permutation(rows[kind])[: POINTS // 2]) for kind in (few, ~few)]
    return np.concatenate(chosen), np.repeat([True, False], [len(some) for some in chosen])
