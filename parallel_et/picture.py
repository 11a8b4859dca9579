"""Pictures of what was learned."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def draw_fields(W: np.ndarray, shape: tuple[int, ...], path: Path, title: str = "") -> None:
    """All fields of W (D, H) as one PNG: images of ``shape`` in a grid, or curves where a point is not an image.

    Fields of one sign are drawn from white to black, fields of both signs from blue over white to red, all to one
    scale that the colour bar shows.
    """
    H = W.shape[1]
    image = image_shape(W.shape[0], shape)
    columns = min(H, max(5, int(np.ceil(np.sqrt(H * 1.6)))))
    rows = -(-H // columns)
    figure = Figure(figsize=(0.25 + 0.75 * columns + 0.9, 0.2 + 0.75 * rows + (0.3 if title else 0.0)), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    signed, top = bool(W.min() < -0.05 * np.abs(W).max()), float(np.abs(W).max()) or 1.0
    shown = None
    for h, axis in enumerate(axes.flat):
        axis.set_xticks([])
        axis.set_yticks([])
        if h >= H:
            axis.set_visible(False)
        elif image is not None:
            low, colours = (-top, "RdBu_r") if signed else (0.0, "gray_r")
            shown = axis.imshow(W[:, h].reshape(image), colours, vmin=low, vmax=top, interpolation="nearest")
        else:
            axis.plot(W[:, h], color="black", linewidth=0.7)
            axis.set_ylim(-1.05 * top if signed else -0.05 * top, 1.05 * top)
    figure.subplots_adjust(0.02, 0.02, 0.86 if shown else 0.98, 0.88 if title else 0.98, 0.12, 0.12)
    if title:
        figure.suptitle(title, fontsize=8, y=0.98)
    if shown is not None:
        bar = figure.colorbar(shown, cax=figure.add_axes((0.89, 0.1, 0.02, 0.75)))
        bar.ax.tick_params(labelsize=6)
    figure.savefig(path)


def image_shape(dims: int, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Rows and columns of a point as an image: its own shape, or a square, or none."""
    if len(shape) == 2:
        return shape[0], shape[1]
    side = round(dims**0.5)
    return (side, side) if len(shape) == 1 and side * side == dims and side > 1 else None
