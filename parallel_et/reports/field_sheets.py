"""Sheets of fields and points: the fields, their course, examples explained by them, and data drawn from the model."""

from collections.abc import Sequence
from math import isqrt

import numpy as np
from matplotlib.figure import Figure

from parallel_et.core.latent_states import in_order, listed
from parallel_et.core.random import stream
from parallel_et.inference.posterior import Inference
from parallel_et.reports.pictures import WIDEST, Cell, Look, draw_sheet, grid
from parallel_et.reports.run_data import Sample, Study

MOST_FIELDS = 400
"""On one sheet."""
COURSES, MOMENTS = 8, 10
"""Fields whose course is shown, and at how many iterations."""
EXAMPLES, CAUSES = 8, 6
"""Points that are explained, and by how many causes at most."""
UNEVEN = 4.0
"""How much stronger than most the strongest fields are, for each to be drawn to its own scale at first."""
DRAWN = 20
"""Points drawn from the model."""


WANTED = ("map", "reconstruction", "evidence", "means")
"""What is asked of points that are explained."""


def look_of(study: Study) -> Look:
    """How the fields and points of a run are drawn."""
    return Look.of(study.shape, signed=study.signed, sound=study.sound)


def evenly(items: Sequence[int] | np.ndarray, count: int) -> list[int]:
    """At most ``count`` of the items, the first and the last among them, evenly spread."""
    picked = np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int))
    return [int(items[i]) for i in picked]


def uneven(fields: np.ndarray) -> bool:
    """Whether some fields (D, H) are so much stronger than most that one scale for all would hide these."""
    largest = np.abs(fields).max(0)
    return bool(np.quantile(largest, 0.98) > UNEVEN * np.median(largest))


def fields(study: Study, own: bool) -> Figure:
    """The fields in their order, each with its number and usage or norm, all to one scale or each to its own."""
    order, W = study.order[:MOST_FIELDS], study.fields
    if study.sample is None:
        labels = [f"{h}: {np.linalg.norm(W[:, h]):.3g}" for h in order]
    else:
        labels = [f"{h}: {percent(study.sample.usage[h])}" for h in order]
    return draw_sheet(grid(W.T[order], labels), look_of(study), own=own)


def percent(share: float) -> str:
    """A share, for a label."""
    return "0" if share == 0 else "<0.1 %" if share < 0.001 else f"{share:.1%}".replace("%", " %")


def course(study: Study) -> Figure:
    """Some fields, from the first to the last of their order, a row each: the snapshots, and where they are now."""
    snapshots = study.result.snapshots
    fields, look = [*snapshots["W"], study.params["W"]], look_of(study)
    if len(study.params["W"]) < study.model.D:
        look = Look.of(shape_of_masks(study), study.signed)
    iterations = [*map(int, snapshots["iteration"]), study.iterations]
    if iterations[-1] == iterations[-2]:
        fields, iterations = fields[:-1], iterations[:-1]
    moments = evenly(range(len(fields)), MOMENTS)
    causes = evenly(study.order, COURSES)
    cells = [
        Cell(row, column, fields[moment][:, h], f"iteration {iterations[moment]}" if row == 0 else "")
        for row, h in enumerate(causes)
        for column, moment in enumerate(moments)
    ]
    return draw_sheet(cells, look, names=[f"cause {h}" for h in causes])


def parts(study: Study) -> Figure:
    """Masks and features in the order of the fields, side by side."""
    order, W, T = study.order[:MOST_FIELDS], study.params["W"], study.params["T"]
    size = shape_of_masks(study)
    masks, cells = Look.of(size, study.signed), []
    look = look_of(study) if study.model.grid is None else Look.of((*size, len(T) // len(W)), study.signed)
    for place, h in enumerate(order):
        row, column = divmod(place, WIDEST // 2)
        flat = T[:, h] if study.model.grid else np.broadcast_to(T[:, h], (*size, len(T)))
        cells.append(Cell(row, 2 * column, W[:, h], f"{h}: mask", masks))
        cells.append(Cell(row, 2 * column + 1, flat.reshape(-1), "feature"))
    return draw_sheet(cells, look)


def shape_of_masks(study: Study) -> tuple[int, ...]:
    """That of an image, or of an object that stands anywhere in one, which is square."""
    side = isqrt(len(study.params["W"]))
    return study.shape[:-1] if study.model.grid is None else (side, side)


def examples(study: Study, sample: Sample) -> Figure:
    """Points with a cause, a row each: the point, what posterior and MAP state make of it, the fields of the latter.

    With what the posterior leaves of it, its evidence, and the probability of each of these causes.
    """
    with_cause = sample.rows[sample.active >= 0.5]
    rows = evenly(with_cause if len(with_cause) else sample.rows, EXAMPLES)
    Y = sample.points(rows)
    inference = Inference(study.model, study.scheme, study.params, WANTED)
    found, cells, names = inference.block(Y), [], []
    order = found.get("map_order")
    by_best = inference.explain(Y, listed(found["map"]) if order is None else in_order(order))
    for row, y in enumerate(Y):
        mean = found["reconstruction"][row]
        four = {"data": y, "posterior mean": mean, "residual": y - mean, "MAP state": by_best[row]}
        cells += [Cell(row, column, values, label) for column, (label, values) in enumerate(four.items())]
        left = np.sqrt(((y - mean) ** 2).mean())
        names.append(f"point {rows[row]}\nF {found['evidence'][row]:.5g}\nresidual {left:.3g}")
        atoms = np.flatnonzero(found["map"][row]).astype(np.int32)
        causes = study.model.latents.owners[atoms]
        fields = study.model.mean(study.params, atoms[:, None]).T if study.model.grid else study.fields[:, causes]
        first = np.linalg.norm(fields, axis=0) if order is None else order[row, atoms].astype(int)
        more = f" (+{len(causes) - CAUSES})" if len(causes) > CAUSES else ""
        active = found.get("active", found["means"])[row]  # else causes have values
        probable = np.bincount(study.model.latents.owners, active, study.model.H)
        for column, k in enumerate(np.argsort(-first, kind="stable")[:CAUSES]):
            h, last = causes[k], more if column == CAUSES - 1 else ""
            cells.append(Cell(row, 4 + column, fields[:, k], f"{h}: {probable[h]:.2f}{last}"))
    return draw_sheet(cells, look_of(study), names=names)


def generated(study: Study) -> Figure:
    """Points drawn from the model, below real ones where these can be had."""
    drawn, _ = study.model.draw(study.params, stream(study.job.run.seed, "report"), DRAWN)
    columns = DRAWN // 2
    if study.sample is None:
        return draw_sheet(grid(drawn, columns=columns), look_of(study), names=["model", ""])
    real = study.sample.points(evenly(study.sample.rows, DRAWN))
    above = grid(real, columns=columns)
    below = grid(drawn, first_row=above[-1].row + 1, columns=columns)
    names = ["data", *[""] * above[-1].row, "model", ""]
    return draw_sheet([*above, *below], look_of(study), names=names)
