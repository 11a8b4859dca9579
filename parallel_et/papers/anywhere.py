"""Objects at any place of a scene: recovery of the objects, and errors of their places (TH fig. 4.6 and 4.7)."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from parallel_et.control.signals import EXIT_STOPPED
from parallel_et.core.latent_states import on_grid
from parallel_et.core.scheme import initial_point_states_of
from parallel_et.data.base import GROUP_POINTS, Source
from parallel_et.data.objects import Objects, Scenes
from parallel_et.em.e_step import inference_context
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.inference.recovery import causes_of, objects_by_cause, recovery
from parallel_et.papers.variants import draw_nothing
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import encode_png
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.setup import open_on_all_ranks
from parallel_et.runs.stored_run import StoredRun, read_on_all_ranks
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.storage.atomic import write_atomically
from parallel_et.trials.runner import TrialsOptions

VISIBLE_FRACTION = 0.5
"""Smallest visible fraction of the objects whose places are compared."""
TOLERANCE_PIXELS = 1
"""Largest error of a correct place, in pixels."""
SELECTION_POINTS = 100
"""Points whose candidates are selected at once."""


class PlacesOutcome(NamedTuple):
    """Objects and places that a trained model infers in scenes with known objects.

    Attributes
    ----------
    found, objects : number of represented objects, and of all objects
    selected : (m,) distance in pixels of each object that is at least half visible to the nearest candidate cause
        that represents it; -1 if there is none
    best : (m,) the same distance to the nearest cause in the MAP state
    seconds : processor time of the selection for all scenes
    course : (iterations,) free energy per point
    training : seconds of the training
    """

    found: int
    objects: int
    selected: np.ndarray
    best: np.ndarray
    seconds: float
    course: np.ndarray
    training: float


def fraction_near(gaps: np.ndarray) -> float:
    """Return the fraction of distances ``gaps`` (m,) within ``TOLERANCE_PIXELS``."""
    return float(((gaps >= 0) & (gaps <= TOLERANCE_PIXELS)).mean())


def run_anywhere(
    ranks: Ranks, options: TrialsOptions, variants: Mapping[str, Sequence[str]], place: Path, seeds: range
) -> dict[str, list[PlacesOutcome]] | None:
    """Train each variant once for each seed, and evaluate the places of all objects; collective.

    The outcomes of all variants are drawn in one picture.

    Returns
    -------
    dict : outcomes of each variant, one a seed; None if stopped
    """
    found: dict[str, list[PlacesOutcome]] = {}
    for name, settings in variants.items():
        for seed in seeds:
            path = place.with_name(f"{place.name}-{name}") / str(seed)
            all_settings = [*options.set, *settings, f"run.seed={seed}"]
            run = TrainOptions(options.job, all_settings, str(path), max_time=options.max_time, quiet=True)
            if train_job(ranks, run, draw_nothing) == EXIT_STOPPED:
                return None
            stored = read_on_all_ranks(ranks, RunDirectory(str(path)), {})
            source = open_on_all_ranks(stored.job, ranks)
            found.setdefault(name, []).append(ranks.from_root(partial(evaluate_places, stored, source)))
    picture = place.with_name("-".join([place.name, *found]) + ".png")
    ranks.from_root(lambda: write_atomically(picture, encode_png(draw_outcomes(found))))
    return found


def evaluate_places(run: StoredRun, source: Source) -> PlacesOutcome:
    """Compare the inferred places of the objects of all scenes with the true places."""
    model, N = run.model, source.points
    if model.grid is None or not isinstance(source, Objects):
        raise UserError(f"{run.job.name}: expected a model and data of objects at any place, found others")
    objects = causes_of(run.result.truth, model.D)
    outcome = recovery(model, run.scheme, run.params, objects)
    scenes = [source.scenes(index) for index in range(-(-N // GROUP_POINTS))]
    true = Scenes(*(np.concatenate(parts)[:N] for parts in zip(*scenes, strict=True)))
    step, inference = (
        inference_context(model, run.scheme, run.params),
        Inference(model, run.scheme, run.params, ("map",)),
    )
    picked, best, seconds = [], [], 0.0
    for first in range(0, N, SELECTION_POINTS):
        Y = source.read(first, min(first + SELECTION_POINTS, N))
        block, start_time = inference.as_block(Y, first), process_time()
        view, states = step.evaluator.observe(block), initial_point_states_of(run.scheme, len(block))
        candidates = run.scheme.selection.select(step, view, states, run.scheme.candidates)
        seconds += process_time() - start_time
        picked.append(on_grid(candidates, model.H, model.grid))
        best.append(inference.block(Y, first)["map_places"])
    stands_for, offsets = objects_by_cause(model, run.scheme, run.params, objects)
    visible = true.visible >= VISIBLE_FRACTION
    selected, mapped = (
        nearest_distances(np.concatenate(places), true.corners, stands_for, offsets, model.grid)[visible]
        for places in (picked, best)
    )
    history = run.result.history
    training = sum(float(values.sum()) for name, values in history.items() if name.startswith("seconds_"))
    found = int(outcome.found.sum())
    return PlacesOutcome(found, len(outcome.found), selected, mapped, seconds, history["free_energy"], training)


def nearest_distances(
    found: np.ndarray, corners: np.ndarray, stands_for: np.ndarray, place: np.ndarray, grid: tuple[int, int]
) -> np.ndarray:
    """Return the distances (n, b) in pixels of objects to the nearest representing cause; -1 if there is none.

    Parameters
    ----------
    found : (n, H, 2) places of the causes; negative if a cause is absent
    corners : (n, b, 2) places of the objects
    stands_for : (b, H) bool, True if the cause represents the object
    place : (b, H, 2) offset of the object in the field of the cause
    grid : rows and columns of the places, which are cyclic
    """
    gaps = distances(found[:, None], corners[:, :, None] + place, grid)
    far = max(grid)
    least = np.where(stands_for & (gaps >= 0), gaps, far).min(-1)
    return np.where(least < far, least, -1)


def distances(found: np.ndarray, true: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Return the larger of both distances of cyclic places (..., 2), in pixels; -1 for absent causes."""
    gap = np.abs(found - true) % np.array(grid)
    return np.where(found[..., 0] < 0, -1, np.minimum(gap, np.array(grid) - gap).max(-1))


def format_outcomes(trials: Sequence[PlacesOutcome]) -> str:
    """Format the outcomes of all trials for the table."""
    complete = sum(one.found == one.objects for one in trials)
    best = fraction_near(np.concatenate([one.best for one in trials]))
    worst = min(fraction_near(one.best) for one in trials)
    selected = fraction_near(np.concatenate([one.selected for one in trials]))
    return (
        f"all {trials[0].objects} objects in {complete} of {len(trials)}; within {TOLERANCE_PIXELS} pixel {best:.1%} "
        f"of those half visible ({worst:.1%} in the worst trial), {selected:.1%} of their candidates; free energy "
        f"{np.mean([one.course[-1] for one in trials]):.1f}; selection in {max(o.seconds for o in trials):.2g} s"
    )


def draw_outcomes(variants: Mapping[str, Sequence[PlacesOutcome]]) -> Figure:
    """Draw the distances of candidates from the objects in all trials, and the mean free energy over iterations."""
    figure = Figure((8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    gaps = {name: np.concatenate([one.selected for one in trials]) for name, trials in variants.items()}
    beyond = max(int(values.max()) for values in gaps.values()) + 2  # bar of the objects that are not found
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
    right.set_ylabel("free energy per point")
    right.legend()
    return figure
