"""Pictures of many fields or points on one sheet, as images or as curves."""

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

from parallel_et.storage.atomic import write_atomically

CELL_INCHES = 0.86
"""Longer side of a cell in inches."""
LABEL_INCHES = 0.18
"""Height of a label in inches."""
CELLS_PER_ROW = 10
"""Maximum number of cells in a row. With more cells, labels are too small on a small screen."""


class Cell(NamedTuple):
    """A field or a point (D,) on a sheet.

    Attributes
    ----------
    row, column : place on the sheet
    label : text above the cell
    style : style and scale of this cell alone; None for those of the sheet
    """

    row: int
    column: int
    values: np.ndarray
    label: str = ""
    style: "CellStyle | None" = None


class Sound(NamedTuple):
    """Axes of sounds: duration in ms, and lowest and highest frequency of a spectrogram in Hz."""

    milliseconds: float
    hertz: tuple[float, float] | None = None


class CellStyle(NamedTuple):
    """The style of fields and points on a sheet.

    Attributes
    ----------
    image : height and width of an image, or None for curves
    signed : draw positive and negative values
    channels : 2 for on and off channels, drawn as their difference; 3 for colours
    sound : axes of sounds; spectrograms have low frequencies at the bottom
    """

    image: tuple[int, int] | None
    signed: bool
    channels: int = 1
    sound: Sound | None = None

    @classmethod
    def for_shape(cls, shape: Sequence[int], signed: bool, sound: Sound | None = None) -> "CellStyle":
        """Return the style for points of a shape.

        (h, w) is an image, (2, h, w) has on and off channels, (h, w, 3) has colours. Other shapes are curves.
        """
        if len(shape) == 3 and shape[0] == 2:
            return cls((shape[1], shape[2]), True, 2)
        if len(shape) == 3 and shape[2] == 3:
            return cls((shape[0], shape[1]), False, 3)
        return cls((shape[0], shape[1]) if len(shape) == 2 else None, signed, 1, sound)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of a cell in inches."""
        height, width = (3, 2) if self.image and self.sound else self.image or (1, 2)  # fixed ratio for spectrograms
        return CELL_INCHES * max(0.2, min(1.0, width / height)), CELL_INCHES * max(0.2, min(1.0, height / width))

    def displayed(self, values: np.ndarray) -> np.ndarray:
        """Return the drawn values of a point (..., D): the on channel minus the off channel, or all values."""
        if self.channels != 2:
            return values
        on, off = np.split(values, 2, axis=-1)
        return on - off


def draw_fields(W: np.ndarray, shape: tuple[int, ...], path: Path, title: str = "") -> None:
    """Draw all fields of W (D, H) into one PNG file.

    Parameters
    ----------
    shape : shape of a point, e.g. (16, 16) for images
    path : the PNG file
    title : text above the fields
    """
    style = CellStyle.for_shape(shape, bool(W.min() < -0.05 * np.abs(W).max()))
    write_atomically(path, encode_png(draw_sheet(grid_cells(W.T), style, title)))


def grid_cells(
    points: Iterable[np.ndarray], labels: Sequence[str] = (), first_row: int = 0, columns: int = 0
) -> list[Cell]:
    """Arrange points (D,) as cells in rows of ``columns``. By default the sheet is wider than high."""
    points = list(points)
    columns = columns or min(CELLS_PER_ROW, len(points), max(5, ceil(sqrt(1.6 * len(points)))))
    return [
        Cell(first_row + i // columns, i % columns, values, labels[i] if labels else "")
        for i, values in enumerate(points)
    ]


def draw_sheet(
    cells: Sequence[Cell], style: CellStyle, title: str = "", names: Sequence[str] = (), own: bool = False
) -> Figure:
    """Draw cells with one scale and a colour bar, or each cell with its own scale.

    Values of one sign are drawn from white to black, signed values from blue over white to red.
    The scale covers 98 % of the cells, so that one strong cell does not hide the others.

    Parameters
    ----------
    names : texts left of the rows
    own : one scale for each cell
    """
    cells = [cell._replace(style=cell.style or style) for cell in cells] if own else cells
    values = [(cell.style or style).displayed(cell.values) for cell in cells]
    largest = [float(np.abs(v).max()) for cell, v in zip(cells, values, strict=True) if cell.style is None]
    top = float(np.quantile(largest or [1.0], 0.98, method="higher")) or 1.0
    low = -top if style.signed else 0.0
    width, height = style.size
    above = LABEL_INCHES if any(cell.label for cell in cells) else 0.04
    stepx, stepy = width + 0.06, height + above + 0.02
    rows, columns = 1 + max(cell.row for cell in cells), 1 + max(cell.column for cell in cells)
    axes = (0.5 if style.sound and style.sound.hertz else 0.0), (0.16 if style.sound else 0.0)
    longest = max((len(line) for name in names for line in name.splitlines()), default=0)
    left, right = 0.06 + axes[0] + 0.08 * longest, 0.7
    head = 0.28 if title else 0.06
    inside = max(columns * stepx, 0.06 * len(title) - right)
    total = (left + inside + right, head + rows * stepy + 0.06 + axes[1])
    figure = new_figure(*total)
    axis = figure.add_axes((0, 0, 1, 1))
    for cell, v in zip(cells, values, strict=True):
        x, y = left + cell.column * stepx, head + cell.row * stepy + above
        if cell.style is None:
            draw_cell(axis, v, (x, y, width, height), style, low, top)
        else:
            most = float(np.abs(v).max()) or 1.0
            draw_cell(axis, v, (x, y, width, height), cell.style, -most if cell.style.signed else 0.0, most)
        axis.text(x + width / 2, y - 0.025, cell.label, fontsize=7, ha="center", va="bottom")
    for row, name in enumerate(names):
        middle = head + row * stepy + above + height / 2
        axis.text(left - 0.06 - axes[0], middle, name, fontsize=7.5, ha="right", va="center")
    if style.sound:
        draw_axes(axis, (left, head + (rows - 1) * stepy + above, width, height), style.sound)
    axis.text(left, 0.06, title, fontsize=8, va="top", parse_math=False)  # the title may contain "$"
    axis.set(xlim=(0, total[0]), ylim=(total[1], 0))  # in inches, downwards
    axis.set_axis_off()
    scale = (total[0] - right + 0.1) / total[0], 1 - (head + above) / total[1]
    if own:
        figure.text(*scale, "one scale\nfor each", fontsize=7, va="top")
    elif style.image is None or style.channels == 3:
        words = f"±{top:.3g}" if style.signed else f"0 to {top:.3g}"
        words += "" if max(largest) <= top else "\nlarger: clipped"
        figure.text(*scale, words, fontsize=7.5, va="top")
    else:
        long = min(2.0, rows * stepy - above) / total[1]
        bar_axis = figure.add_axes((scale[0], scale[1] - long, 0.09 / total[0], long))
        extend = "neither" if max(largest) <= top else "both" if style.signed else "max"
        bar = figure.colorbar(ScalarMappable(Normalize(low, top), colour_map(style)), cax=bar_axis, extend=extend)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.outline.set_linewidth(0.5)
    return figure


def draw_cell(
    axis: Axes, values: np.ndarray, place: tuple[float, float, float, float], style: CellStyle, low: float, top: float
) -> None:
    """Draw one image or curve at x, y, width, height."""
    x, y, width, height = place
    if style.image is not None and style.channels == 3:
        image = np.clip(values.reshape(*style.image, 3) / top, 0.0, 1.0)
        axis.imshow(image, extent=(x, x + width, y + height, y), aspect="auto", interpolation="nearest")
    elif style.image is not None:
        box, image = (x, x + width, y + height, y), values.reshape(style.image)[:: -1 if style.sound else 1]
        axis.imshow(image, colour_map(style), vmin=low, vmax=top, extent=box, aspect="auto", interpolation="nearest")
    else:
        up = np.clip((values - low) / (top - low), 0.0, 1.0)
        zero = y + height * (1 - (0.0 - low) / (top - low))
        axis.plot([x, x + width], [zero, zero], color="0.8", linewidth=0.4)
        axis.plot(x + width * np.linspace(0, 1, len(up)), y + height * (1 - up), color="black", linewidth=0.6)
    axis.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor="0.6", linewidth=0.4))


def draw_axes(axis: Axes, place: tuple[float, float, float, float], sound: Sound) -> None:
    """Draw the time axis below the cell at x, y, width, height, and the frequency axis on its left."""
    x, y, width, height = place
    for share, words, side in ((0, "0", "left"), (1, f"{sound.milliseconds:.4g} ms", "right")):
        axis.plot([x + share * width] * 2, [y + height, y + height + 0.03], color="0.3", linewidth=0.5)
        axis.text(x + share * width, y + height + 0.04, words, fontsize=6, ha=side, va="top")
    for hertz, at, side in zip(sound.hertz or (), (y + height, y), ("bottom", "top"), strict=False):
        axis.text(x - 0.04, at, f"{hertz:g} Hz", fontsize=6, ha="right", va=side)


def colour_map(style: CellStyle) -> str:
    """Return the name of the colour map."""
    return "RdBu_r" if style.signed else "gray_r"


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure of this size in inches, without a display."""
    figure = Figure(figsize=(width, height), dpi=150)
    FigureCanvasAgg(figure)
    return figure


def encode_png(figure: Figure) -> bytes:
    """Encode a figure as PNG."""
    content = BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
