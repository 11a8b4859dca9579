"""Sheets of fields and points: fields, fields at snapshots, masks, examples of inference, and generated points."""

from collections.abc import Sequence
from math import isqrt

import numpy as np
from matplotlib.figure import Figure

from parallel_et.core.latent_states import states_of_binary, states_of_places
from parallel_et.core.random import stream
from parallel_et.inference.posterior import Inference
from parallel_et.reports.pictures import CELLS_PER_ROW, Cell, CellStyle, draw_sheet, grid_cells
from parallel_et.reports.run_data import RunData, Sample

FIELDS_PER_SHEET = 400
"""Maximum number of fields on one sheet."""
SNAPSHOT_FIELDS, SNAPSHOT_ITERATIONS = 8, 10
"""Maximum numbers of fields and iterations on the sheet of snapshots."""
EXAMPLE_POINTS, CAUSES_PER_POINT = 8, 6
"""Number of points on the sheet of examples, and maximum number of causes per point."""
UNEVEN_RATIO = 4.0
"""Ratio of the strongest fields to the median field above which each field is first shown with its own scale."""
GENERATED_POINTS = 20
"""Number of points drawn from the model."""
QUANTITIES = ("map", "reconstruction", "evidence", "means")
"""Inferred quantities of the example points."""


def cell_style(run_data: RunData) -> CellStyle:
    """Return the style of the fields and points of a run."""
    return CellStyle.for_shape(run_data.shape, signed=run_data.signed, sound=run_data.sound)


def pick_evenly(items: Sequence[int] | np.ndarray, count: int) -> list[int]:
    """Pick at most ``count`` items, evenly spaced, with the first and the last item."""
    picked = np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int))
    return [int(items[i]) for i in picked]


def is_uneven(fields: np.ndarray) -> bool:
    """Return True if a few fields (D, H) are so strong that one scale for all would hide the others."""
    largest = np.abs(fields).max(0)
    return bool(np.quantile(largest, 0.98) > UNEVEN_RATIO * np.median(largest))


def field_sheet(run_data: RunData, own: bool) -> Figure:
    """Draw the fields with index and usage or norm; ``own``: one scale for each field."""
    order, W = run_data.order[:FIELDS_PER_SHEET], run_data.fields
    if run_data.sample is None:
        labels = [f"{h}: {np.linalg.norm(W[:, h]):.3g}" for h in order]
    else:
        labels = [f"{h}: {format_percent(run_data.sample.usage[h])}" for h in order]
    return draw_sheet(grid_cells(W.T[order], labels), cell_style(run_data), own=own)


def format_percent(share: float) -> str:
    """Format a fraction as a percentage."""
    return "0" if share == 0 else "<0.1 %" if share < 0.001 else f"{share:.1%}".replace("%", " %")


def snapshot_sheet(run_data: RunData) -> Figure:
    """Draw fields at the snapshots and the final fields, one row per cause, evenly spaced in their order."""
    snapshots = run_data.result.snapshots
    fields, style = [*snapshots["W"], run_data.params["W"]], cell_style(run_data)
    if len(run_data.params["W"]) < run_data.model.D:
        style = CellStyle.for_shape(mask_shape(run_data), run_data.signed)
    iterations = [*map(int, snapshots["iteration"]), run_data.iterations]
    if iterations[-1] == iterations[-2]:
        fields, iterations = fields[:-1], iterations[:-1]
    moments = pick_evenly(range(len(fields)), SNAPSHOT_ITERATIONS)
    causes = pick_evenly(run_data.order, SNAPSHOT_FIELDS)
    cells = [
        Cell(row, column, fields[moment][:, h], f"iteration {iterations[moment]}" if row == 0 else "")
        for row, h in enumerate(causes)
        for column, moment in enumerate(moments)
    ]
    return draw_sheet(cells, style, names=[f"cause {h}" for h in causes])


def mask_sheet(run_data: RunData) -> Figure:
    """Draw masks and features side by side, in the order of the fields."""
    order, W, T = run_data.order[:FIELDS_PER_SHEET], run_data.params["W"], run_data.params["T"]
    size = mask_shape(run_data)
    masks, cells = CellStyle.for_shape(size, run_data.signed), []
    style = (
        cell_style(run_data)
        if run_data.model.grid is None
        else CellStyle.for_shape((*size, len(T) // len(W)), run_data.signed)
    )
    for place, h in enumerate(order):
        row, column = divmod(place, CELLS_PER_ROW // 2)
        flat = T[:, h] if run_data.model.grid else np.broadcast_to(T[:, h], (*size, len(T)))
        cells.append(Cell(row, 2 * column, W[:, h], f"{h}: mask", masks))
        cells.append(Cell(row, 2 * column + 1, flat.reshape(-1), "feature"))
    return draw_sheet(cells, style)


def mask_shape(run_data: RunData) -> tuple[int, ...]:
    """Return the shape of a mask: that of an image, or of a square object at any place of an image."""
    side = isqrt(len(run_data.params["W"]))
    return run_data.shape[:-1] if run_data.model.grid is None else (side, side)


def example_sheet(run_data: RunData, sample: Sample) -> Figure:
    """Draw example points, one per row: data, posterior mean, residual, MAP state, and fields of the MAP state."""
    with_cause = sample.rows[sample.active >= 0.5]
    rows = pick_evenly(with_cause if len(with_cause) else sample.rows, EXAMPLE_POINTS)
    Y = sample.points(rows)
    inference = Inference(run_data.model, run_data.scheme, run_data.params, QUANTITIES)
    found, cells, names = inference.block(Y), [], []
    order = found.get("map_order")
    by_best = inference.reconstruct_states(
        Y, states_of_binary(found["map"]) if order is None else states_of_places(order)
    )
    for row, y in enumerate(Y):
        mean = found["reconstruction"][row]
        four = {"data": y, "posterior mean": mean, "residual": y - mean, "MAP state": by_best[row]}
        cells += [Cell(row, column, values, label) for column, (label, values) in enumerate(four.items())]
        left = np.sqrt(((y - mean) ** 2).mean())
        names.append(f"point {rows[row]}\nF_n {found['evidence'][row]:.5g}\nresidual {left:.3g}")
        atoms = np.flatnonzero(found["map"][row]).astype(np.int32)
        causes = run_data.model.latents.owners[atoms]
        fields = (
            run_data.model.mean(run_data.params, atoms[:, None]).T
            if run_data.model.grid
            else run_data.fields[:, causes]
        )
        first = np.linalg.norm(fields, axis=0) if order is None else order[row, atoms].astype(int)
        more = f" (+{len(causes) - CAUSES_PER_POINT})" if len(causes) > CAUSES_PER_POINT else ""
        active = found.get("active", found["means"])[row]  # "means" has values for models with strengths
        probable = np.bincount(run_data.model.latents.owners, active, run_data.model.H)
        for column, k in enumerate(np.argsort(-first, kind="stable")[:CAUSES_PER_POINT]):
            h, last = causes[k], more if column == CAUSES_PER_POINT - 1 else ""
            cells.append(Cell(row, 4 + column, fields[:, k], f"{h}: {probable[h]:.2f}{last}"))
    return draw_sheet(cells, cell_style(run_data), names=names)


def generated_sheet(run_data: RunData) -> Figure:
    """Draw points of the model, below points of the data if the data can be read."""
    drawn, _ = run_data.model.draw(run_data.params, stream(run_data.job.run.seed, "report"), GENERATED_POINTS)
    columns = GENERATED_POINTS // 2
    if run_data.sample is None:
        return draw_sheet(grid_cells(drawn, columns=columns), cell_style(run_data), names=["model", ""])
    real = run_data.sample.points(pick_evenly(run_data.sample.rows, GENERATED_POINTS))
    above = grid_cells(real, columns=columns)
    below = grid_cells(drawn, first_row=above[-1].row + 1, columns=columns)
    names = ["data", *[""] * above[-1].row, "model", ""]
    return draw_sheet([*above, *below], cell_style(run_data), names=names)
