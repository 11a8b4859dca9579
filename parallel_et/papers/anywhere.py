"""Objects that stand anywhere: whether all are found, and how far from their places they are (TH fig. 4.6 and 4.7)."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from parallel_et.control.signals import STOPPED
from parallel_et.core.latent_states import on_grid
from parallel_et.core.scheme import vacant_point_states
from parallel_et.data.base import GROUP, Source
from parallel_et.data.objects import Objects, Scenes
from parallel_et.em.e_step import context_at_rest
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.inference.recovery import causes_for, causes_of, recovery
from parallel_et.papers.variants import without_picture
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import png
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.setup import open_together
from parallel_et.runs.stored_run import StoredRun, read_together
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.storage.atomic import write_whole
from parallel_et.trials.runner import TrialsOptions

HALF, NEAR = 0.5, 1
"""Share of an object that is to be seen, and pixels by which its place may be off."""
BLOCK = 100
"""Points that are selected for at a time."""


class Places(NamedTuple):
    """What a trained model makes of scenes whose objects are known.

    Attributes
    ----------
    found : how many of the objects are represented, of ``objects``
    selected, best : (m,) pixels between the place of each object that is at least half visible and the nearest of a
        cause that stands for it, among the candidates or in the MAP state; -1 if there is none
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


def share_near(gaps: np.ndarray) -> float:
    """Of the objects with such ``gaps`` (m,), those whose place is right but for ``NEAR`` pixels."""
    return float(((gaps >= 0) & (gaps <= NEAR)).mean())


def run_anywhere(
    ranks: Ranks, options: TrialsOptions, variants: Mapping[str, Sequence[str]], place: Path, seeds: range
) -> dict[str, list[Places]] | None:
    """Train each variant once for each seed, and look for the objects of all scenes; None if stopped.

    Draws what came out, of all variants beside each other.
    """
    found: dict[str, list[Places]] = {}
    for name, settings in variants.items():
        for seed in seeds:
            path = place.with_name(f"{place.name}-{name}") / str(seed)
            told = [*options.set, *settings, f"run.seed={seed}"]
            run = TrainOptions(options.job, told, str(path), max_time=options.max_time, quiet=True)
            if train_job(ranks, run, without_picture) == STOPPED:
                return None
            stored = read_together(ranks, RunDirectory(str(path)), {})
            source = open_together(stored.job, ranks)
            found.setdefault(name, []).append(ranks.from_root(partial(places_of, stored, source)))
    picture = place.with_name("-".join([place.name, *found]) + ".png")
    ranks.from_root(lambda: write_whole(picture, png(drawn(found))))
    return found


def places_of(run: StoredRun, source: Source) -> Places:
    """Look for the objects of all scenes."""
    model, N = run.model, source.points
    if model.grid is None or not isinstance(source, Objects):
        raise UserError(f"{run.job.name}: expected a model of objects anywhere, and such data, found others")
    objects = causes_of(run.result.truth, model.D)
    outcome = recovery(model, run.scheme, run.params, objects)
    scenes = [source.scenes(index) for index in range(-(-N // GROUP))]
    true = Scenes(*(np.concatenate(parts)[:N] for parts in zip(*scenes, strict=True)))
    step, inference = context_at_rest(model, run.scheme, run.params), Inference(model, run.scheme, run.params, ("map",))
    picked, best, seconds = [], [], 0.0
    for first in range(0, N, BLOCK):
        Y = source.read(first, min(first + BLOCK, N))
        block, begun = inference.rows_as_block(Y, first), process_time()
        view, states = step.evaluator.observe(block), vacant_point_states(run.scheme, len(block))
        candidates = run.scheme.selection.select(step, view, states, run.scheme.candidates)
        seconds += process_time() - begun
        picked.append(on_grid(candidates, model.H, model.grid))
        best.append(inference.block(Y, first)["map_places"])
    standing, shown = causes_for(model, run.scheme, run.params, objects), true.visible >= HALF
    selected, mapped = (
        nearest(np.concatenate(where), true.corners, *standing, model.grid)[shown] for where in (picked, best)
    )
    history = run.result.history
    training = sum(float(values.sum()) for name, values in history.items() if name.startswith("seconds_"))
    found = int(outcome.found.sum())
    return Places(found, len(outcome.found), selected, mapped, seconds, history["free_energy"], training)


def nearest(
    found: np.ndarray, corners: np.ndarray, like: np.ndarray, place: np.ndarray, grid: tuple[int, int]
) -> np.ndarray:
    """Pixels (n, b) between objects and the nearest of the causes, at (n, H, 2), that stand for them; -1 if none is."""
    gaps = distances(found[:, None], corners[:, :, None] + place, grid)
    far = max(grid)
    least = np.where(like & (gaps >= 0), gaps, far).min(-1)
    return np.where(least < far, least, -1)


def distances(found: np.ndarray, true: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Pixels, in the direction in which it is more, between places (..., 2) that go round; -1 for places of none."""
    gap = np.abs(found - true) % np.array(grid)
    return np.where(found[..., 0] < 0, -1, np.minimum(gap, np.array(grid) - gap).max(-1))


def in_words(trials: Sequence[Places]) -> str:
    """The figures of all trials."""
    complete = sum(one.found == one.objects for one in trials)
    best, worst = share_near(np.concatenate([one.best for one in trials])), min(share_near(o.best) for o in trials)
    selected = share_near(np.concatenate([one.selected for one in trials]))
    return (
        f"all {trials[0].objects} objects in {complete} of {len(trials)}; within {NEAR} pixel {best:.1%} of those half "
        f"visible ({worst:.1%} in the worst trial), {selected:.1%} of their candidates; free energy "
        f"{np.mean([one.course[-1] for one in trials]):.1f}; selection in {max(o.seconds for o in trials):.2g} s"
    )


def drawn(variants: Mapping[str, Sequence[Places]]) -> Figure:
    """The distances of candidates from their places in all trials, and the mean free energy on the way."""
    figure = Figure((8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    gaps = {name: np.concatenate([one.selected for one in trials]) for name, trials in variants.items()}
    beyond = max(int(values.max()) for values in gaps.values()) + 2  # where those stand that are not found, of all
    width = 0.8 / len(variants)
    for number, (name, trials) in enumerate(variants.items()):
        values, counts = np.unique(np.where(gaps[name] < 0, beyond, gaps[name]), return_counts=True)
        offset = width * (number - (len(variants) - 1) / 2)
        left.bar(values + offset, 100 * counts / len(gaps[name]), width, label=name)
        right.plot(np.mean([one.course for one in trials], 0), label=name)
    left.set_yscale("log")
    left.set_xlabel("pixels from the true place; the last: not found")
    left.set_ylabel("% of the objects")
    right.set_xlabel("iteration")
    right.set_ylabel("free energy a point")
    right.legend()
    return figure
