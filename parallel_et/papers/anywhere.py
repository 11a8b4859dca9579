"""Objects that stand anywhere: whether all are found, and how far from their places they are (TH fig. 4.6 and 4.7)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from parallel_et.control.listening import STOPPED
from parallel_et.core.expectation import at_rest
from parallel_et.core.states import on_grid
from parallel_et.data.base import GROUP, Source
from parallel_et.data.objects import Objects, Scenes
from parallel_et.errors import UserError
from parallel_et.io.whole import write_whole
from parallel_et.papers.variants import without_picture
from parallel_et.parallel.ranks import Ranks
from parallel_et.report.picture import png
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.inference import Inference
from parallel_et.runs.reading import StoredRun, read_together
from parallel_et.runs.recovery import causes_of, recovery
from parallel_et.runs.repeat import TrialsOptions
from parallel_et.runs.setup import open_together
from parallel_et.runs.train import TrainOptions, train_job

HALF, NEAR = 0.5, 1
"""Share of an object that is to be seen, and pixels by which its place may be off."""
BLOCK = 100
"""Points that are selected for at a time."""


class Places(NamedTuple):
    """What a trained model makes of scenes whose objects are known.

    Attributes
    ----------
    found : how many of the objects are represented, of ``objects``
    selected, best : (m,) pixels between the place of each object that is at least half visible and that of its
        candidate, or in the MAP state; -1 if it has none
    seconds : of processor, for the candidates of all scenes
    course : (iterations,) the free energy a point
    training : seconds
    """

    found: int
    objects: int
    selected: np.ndarray
    best: np.ndarray
    seconds: float
    course: np.ndarray
    training: float

    def share(self, gaps: np.ndarray) -> float:
        """Of the objects whose place is right but for ``NEAR`` pixels."""
        return float(((gaps >= 0) & (gaps <= NEAR)).mean())


def run_anywhere(
    ranks: Ranks, options: TrialsOptions, settings: Sequence[str], place: Path, seeds: range
) -> list[Places] | None:
    """Train once for each seed, and look for the objects of all scenes; draws what came out; None if stopped."""
    found = []
    for seed in seeds:
        path, told = place / str(seed), [*options.set, *settings, f"run.seed={seed}"]
        run = TrainOptions(options.job, told, str(path), max_time=options.max_time, quiet=True)
        if train_job(ranks, run, without_picture) == STOPPED:
            return None
        stored = read_together(ranks, RunDirectory(str(path)), {})
        source = open_together(stored.job, ranks)
        found.append(ranks.from_root(partial(places_of, stored, source)))
    ranks.from_root(lambda: write_whole(place.with_suffix(".png"), png(drawn(found))))
    return found


def places_of(run: StoredRun, source: Source) -> Places:
    """Look for the objects of all scenes."""
    model, N = run.model, source.points
    if model.grid is None or not isinstance(source, Objects):
        raise UserError(f"{run.job.name}: expected a model of objects anywhere, and such data, found others")
    outcome = recovery(model, run.scheme, run.params, causes_of(run.result.truth, model.D))
    scenes = [source.scenes(index) for index in range(-(-N // GROUP))]
    true = Scenes(*(np.concatenate(parts)[:N] for parts in zip(*scenes, strict=True)))
    step, inference = at_rest(model, run.scheme, run.params), Inference(model, run.scheme, run.params, ("map",))
    picked, best, seconds = [], [], 0.0
    for first in range(0, N, BLOCK):
        Y = source.read(first, min(first + BLOCK, N))
        block, begun = inference.rows_as_block(Y, first), process_time()
        seen, kept = model.observe(step.ready, block, False), run.scheme.vacant(len(block))
        candidates = run.scheme.selection.select(step, block, seen, kept, run.scheme.candidates)
        seconds += process_time() - begun
        picked.append(on_grid(candidates, model.H, model.grid))
        best.append(inference.block(Y, first)["map_places"])
    shift = np.column_stack(np.divmod(outcome.atom // model.H, model.grid[1]))  # of a mask, in its square
    shown = (true.visible >= HALF) & outcome.found
    gaps = [
        distances(np.concatenate(where)[:, outcome.unit], true.corners + shift, model.grid) for where in (picked, best)
    ]
    missed = ((true.visible >= HALF) & ~outcome.found).sum()  # of objects that no cause stands for
    selected, mapped = (np.append(gap[shown], np.full(missed, -1)) for gap in gaps)
    history = run.result.history
    training = sum(float(values.sum()) for name, values in history.items() if name.startswith("seconds_"))
    found = int(outcome.found.sum())
    return Places(found, len(outcome.found), selected, mapped, seconds, history["free_energy"], training)


def distances(found: np.ndarray, true: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Pixels, in the direction in which it is more, between places (n, b, 2) that go round; -1 for places of none."""
    gap = np.abs(found - true) % np.array(grid)
    return np.where(found[..., 0] < 0, -1, np.minimum(gap, np.array(grid) - gap).max(-1))


def in_words(trials: Sequence[Places]) -> str:
    """The figures of all trials."""
    complete = sum(one.found == one.objects for one in trials)
    selected, best = (min(one.share(getattr(one, name)) for one in trials) for name in ("selected", "best"))
    return (
        f"all {trials[0].objects} objects in {complete} of {len(trials)}; within {NEAR} pixel at least {best:.1%} of "
        f"those half visible, {selected:.1%} of their candidates; selection in {max(o.seconds for o in trials):.2g} s"
    )


def drawn(trials: Sequence[Places]) -> Figure:
    """The distances of all trials, and the free energy of each on its way."""
    figure = Figure((8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    kinds = [np.concatenate(gaps) for gaps in ([one.selected for one in trials], [one.best for one in trials])]
    beyond = max(int(gaps.max()) for gaps in kinds) + 2  # where those stand that are not found, of both
    for gaps, offset, label in zip(kinds, (-0.2, 0.2), ("candidates", "MAP states"), strict=True):
        values, counts = np.unique(np.where(gaps < 0, beyond, gaps), return_counts=True)
        left.bar(values + offset, 100 * counts / len(gaps), 0.4, label=label)
    left.set_yscale("log")
    left.set_xlabel("pixels from the true place; the last: not found")
    left.set_ylabel("% of the objects")
    left.legend()
    for one in trials:
        right.plot(np.arange(len(one.course)), one.course)
    right.set_xlabel("iteration")
    right.set_ylabel("free energy a point")
    return figure
