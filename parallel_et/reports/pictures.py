"""Pictures of fields and of points: many of them on one sheet, as images or as curves, all to one scale."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from math import ceil, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from parallel_et.storage.atomic import write_whole

CELL = 0.86
"""Inches of the longer side of a cell."""
LABEL = 0.18
"""Inches above a cell for its label."""
WIDEST = 10
"""Cells side by side: with more, their labels could not be read on a small screen."""


class Cell(NamedTuple):
    """A field or a point (D,), its place on a sheet, what to write above it, and how it is drawn if not as others."""

    row: int
    column: int
    values: np.ndarray
    label: str = ""
    look: "Look | None" = None


class Sound(NamedTuple):
    """What is known of points that are sounds: their time in ms, and the lowest and highest Hz of a spectrogram."""

    milliseconds: float
    hertz: tuple[float, float] | None = None


class Look(NamedTuple):
    """How fields and points are drawn: as images of ``image`` (h, w) or as curves, in both signs or in one.

    ``channels`` is 2 where a point has an on and an off channel, of which the difference is shown, 3 where its pixels
    have colours. Sounds get axes; spectrograms have the low frequencies at the bottom.
    """

    image: tuple[int, int] | None
    signed: bool
    channels: int = 1
    sound: Sound | None = None

    @classmethod
    def of(cls, shape: Sequence[int], signed: bool, sound: Sound | None = None) -> "Look":
        """Of points of this shape: (h, w) is an image, (2, h, w) one with on and off channels, (h, w, 3) one in colour.

        Any other is a curve.
        """
        if len(shape) == 3 and shape[0] == 2:
            return cls((shape[1], shape[2]), True, 2)
        if len(shape) == 3 and shape[2] == 3:
            return cls((shape[0], shape[1]), False, 3)
        return cls((shape[0], shape[1]) if len(shape) == 2 else None, signed, 1, sound)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of a cell in inches."""
        height, width = (3, 2) if self.image and self.sound else self.image or (1, 2)  # of a band and a window anything
        return CELL * max(0.2, min(1.0, width / height)), CELL * max(0.2, min(1.0, height / width))

    def shown(self, values: np.ndarray) -> np.ndarray:
        """What is drawn of a point (..., D): its channels put together, on minus off."""
        if self.channels != 2:
            return values
        on, off = np.split(values, 2, axis=-1)
        return on - off


def draw_fields(W: np.ndarray, shape: tuple[int, ...], path: Path, title: str = "") -> None:
    """All fields of W (D, H) in their order as one PNG."""
    look = Look.of(shape, bool(W.min() < -0.05 * np.abs(W).max()))
    write_whole(path, png(draw_sheet(grid(W.T), look, title)))


def grid(points: Iterable[np.ndarray], labels: Sequence[str] = (), first_row: int = 0, columns: int = 0) -> list[Cell]:
    """Cells for points (D,) in rows of ``columns``, by default a little wider than high."""
    points = list(points)
    columns = columns or min(WIDEST, len(points), max(5, ceil(sqrt(1.6 * len(points)))))
    return [
        Cell(first_row + i // columns, i % columns, values, labels[i] if labels else "")
        for i, values in enumerate(points)
    ]


def draw_sheet(
    cells: Sequence[Cell], look: Look, title: str = "", names: Sequence[str] = (), own: bool = False
) -> Figure:
    """All cells to one scale, with a bar that shows it, or each to its ``own``; ``names`` stand left of the rows.

    One sign is drawn from white to black, both from blue over white to red, colours as they are, to the same scale;
    cells with a look of their own each to its own. The brightest 2 % of the cells may
    leave the scale, so that one of them does not hide the others.
    """
    cells = [cell._replace(look=cell.look or look) for cell in cells] if own else cells
    values = [(cell.look or look).shown(cell.values) for cell in cells]
    largest = [float(np.abs(v).max()) for cell, v in zip(cells, values, strict=True) if cell.look is None]
    top = float(np.quantile(largest or [1.0], 0.98, method="higher")) or 1.0
    low = -top if look.signed else 0.0
    width, height = look.size
    above = LABEL if any(cell.label for cell in cells) else 0.04
    stepx, stepy = width + 0.06, height + above + 0.02
    rows, columns = 1 + max(cell.row for cell in cells), 1 + max(cell.column for cell in cells)
    axes = (0.5 if look.sound and look.sound.hertz else 0.0), (0.16 if look.sound else 0.0)
    longest = max((len(line) for name in names for line in name.splitlines()), default=0)
    left, right = 0.06 + axes[0] + 0.08 * longest, 0.7
    head = 0.28 if title else 0.06
    inside = max(columns * stepx, 0.06 * len(title) - right)
    total = (left + inside + right, head + rows * stepy + 0.06 + axes[1])
    figure = figure_of(*total)
    axis = figure.add_axes((0, 0, 1, 1))
    for cell, v in zip(cells, values, strict=True):
        x, y = left + cell.column * stepx, head + cell.row * stepy + above
        if cell.look is None:
            draw_cell(axis, v, (x, y, width, height), look, low, top)
        else:
            most = float(np.abs(v).max()) or 1.0
            draw_cell(axis, v, (x, y, width, height), cell.look, -most if cell.look.signed else 0.0, most)
        axis.text(x + width / 2, y - 0.025, cell.label, fontsize=7, ha="center", va="bottom")
    for row, name in enumerate(names):
        middle = head + row * stepy + above + height / 2
        axis.text(left - 0.06 - axes[0], middle, name, fontsize=7.5, ha="right", va="center")
    if look.sound:
        draw_axes(axis, (left, head + (rows - 1) * stepy + above, width, height), look.sound)
    axis.text(left, 0.06, title, fontsize=8, va="top", parse_math=False)  # it may hold any sign, as "$"
    axis.set(xlim=(0, total[0]), ylim=(total[1], 0))  # in inches, downwards
    axis.set_axis_off()
    scale = (total[0] - right + 0.1) / total[0], 1 - (head + above) / total[1]
    if own:
        figure.text(*scale, "each to its\nown scale", fontsize=7, va="top")
    elif look.image is None or look.channels == 3:
        words = f"±{top:.3g}" if look.signed else f"0 to {top:.3g}"
        words += "" if max(largest) <= top else "\nlarger: cut off"
        figure.text(*scale, words, fontsize=7.5, va="top")
    else:
        long = min(2.0, rows * stepy - above) / total[1]
        bar_axis = figure.add_axes((scale[0], scale[1] - long, 0.09 / total[0], long))
        extend = "neither" if max(largest) <= top else "both" if look.signed else "max"
        bar = figure.colorbar(ScalarMappable(Normalize(low, top), colours(look)), cax=bar_axis, extend=extend)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.outline.set_linewidth(0.5)
    return figure


def draw_cell(
    axis: Axes, values: np.ndarray, place: tuple[float, float, float, float], look: Look, low: float, top: float
) -> None:
    """One image or curve at x, y, width, height."""
    x, y, width, height = place
    if look.image is not None and look.channels == 3:
        image = np.clip(values.reshape(*look.image, 3) / top, 0.0, 1.0)
        axis.imshow(image, extent=(x, x + width, y + height, y), aspect="auto", interpolation="nearest")
    elif look.image is not None:
        box, image = (x, x + width, y + height, y), values.reshape(look.image)[:: -1 if look.sound else 1]
        axis.imshow(image, colours(look), vmin=low, vmax=top, extent=box, aspect="auto", interpolation="nearest")
    else:
        up = np.clip((values - low) / (top - low), 0.0, 1.0)
        zero = y + height * (1 - (0.0 - low) / (top - low))
        axis.plot([x, x + width], [zero, zero], color="0.8", linewidth=0.4)
        axis.plot(x + width * np.linspace(0, 1, len(up)), y + height * (1 - up), color="black", linewidth=0.6)
    axis.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor="0.6", linewidth=0.4))


def draw_axes(axis: Axes, place: tuple[float, float, float, float], sound: Sound) -> None:
    """Time below, and frequency to the left of, the cell at x, y, width, height, for all that look the same."""
    x, y, width, height = place
    for share, words, side in ((0, "0", "left"), (1, f"{sound.milliseconds:.4g} ms", "right")):
        axis.plot([x + share * width] * 2, [y + height, y + height + 0.03], color="0.3", linewidth=0.5)
        axis.text(x + share * width, y + height + 0.04, words, fontsize=6, ha=side, va="top")
    for hertz, at, side in zip(sound.hertz or (), (y + height, y), ("bottom", "top"), strict=False):
        axis.text(x - 0.04, at, f"{hertz:g} Hz", fontsize=6, ha="right", va=side)


def colours(look: Look) -> str:
    """The colour map."""
    return "RdBu_r" if look.signed else "gray_r"


def figure_of(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, drawn without a screen."""
    figure = Figure(figsize=(width, height), dpi=150)
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    content = BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
