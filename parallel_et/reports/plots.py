"""Plots of a run: its curves, the evidence of its points, the usage of its causes, and where its time went."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from parallel_et.reports.pictures import figure_of
from parallel_et.reports.quality import Course
from parallel_et.reports.run_data import Sample

CURVES = {
    "free_energy": "free energy a point",
    "temperature": "temperature",
    "points_used": "points used",
    "unused_causes": "unused causes",
}
INK = "#1f5f99"
INKS = (INK, "#c4500b")
"""Of two runs."""
PALETTE = ("#bdbdbd", "#1f5f99", "#6baed6", "#fdae61", "#d7301f", "#7a5195", "#74c476")
MANY_ITERATIONS = 1000
"""A run of more has a picture of its own beside the others."""
BINS = 100
"""Bars for the phases, at most."""


def told(history: Mapping[str, np.ndarray], params: Sequence[str]) -> dict[str, str]:
    """What there may be curves of, in their order, and in words; of some parameters too."""
    (energy, temperature, *rest), own = CURVES.items(), [(name, name) for name in params if name in history]
    return dict([energy, temperature, *own, *rest])


def constant(values: np.ndarray) -> bool:
    """Whether all are the same but for rounding."""
    return bool(np.ptp(values) <= 1e-9 * np.abs(values).max())


def curves(histories: Mapping[str, Mapping[str, np.ndarray]], params: Sequence[str]) -> Figure:
    """What runs, by name, say of every iteration, and of some parameters; of a vector its mean and range.

    What does not change has no curve. The axis of the free energy is for the iterations at the last temperature: those
    at others, before, are drawn grey and may leave it.
    """
    columns = 3
    words = {name: text for history in histories.values() for name, text in told(history, params).items()}
    there = {name: [h[name] for h in histories.values() if name in h] for name in words}
    flat = {name: all(map(constant, values)) and constant(np.concatenate(values)) for name, values in there.items()}
    shown = [name for name in words if name == "free_energy" or not flat[name]]
    rows = -(-len(shown) // columns)
    figure = figure_of(9.0, 2.5 * rows)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for axis in grid.flat[len(shown) :]:
        axis.remove()
    for axis, name in zip(grid.flat, shown, strict=False):
        for (run, history), ink in zip(histories.items(), INKS, strict=False):
            if name == "free_energy":
                draw_energy(axis, history, ink, run)
            elif name in history:
                draw_curve(axis, name, history, ink, run)
        ranged = any(f"{name}_low" in history for history in histories.values())
        axis.set_title(f"{words[name]}: mean and range" if ranged else words[name], fontsize=9)
        if name == "free_energy":
            fit_to_cold(axis, list(histories.values()))
        if name in ("points_used", "unused_causes"):
            axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        plain(axis)
    for axis in figure.axes[-columns:]:
        axis.set_xlabel("iteration", fontsize=8)
        axis.tick_params(labelbottom=True)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    lines, labels = grid.flat[0].get_legend_handles_labels()
    if len(lines) > 1:
        figure.legend(lines, labels, fontsize=8, frameon=False, loc="upper left", ncols=4)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.25 * (len(lines) > 1) / (2.5 * rows)))
    return figure


def draw_curve(axis: Axes, name: str, history: Mapping[str, np.ndarray], ink: str, run: str) -> None:
    """One of the curves of a run."""
    values = history[name]
    steps, style = np.arange(1, len(values) + 1), "." if len(values) == 1 else "-"
    if f"{name}_low" in history:
        ends = history[f"{name}_low"], history[f"{name}_high"]
        axis.fill_between(steps, *ends, color=ink, alpha=0.2, linewidth=0)
    axis.plot(steps, values, style, color=ink, linewidth=1.2, clip_on=False, zorder=3, label=run)  # zeros on the axis


def draw_energy(axis: Axes, history: Mapping[str, np.ndarray], ink: str, run: str) -> None:
    """The free energy of a run, grey while it is hot, and the evidence of what it holds out."""
    values, cold = history["free_energy"], is_cold(history)
    steps, style = np.arange(1, len(values) + 1), "." if cold.sum() == 1 else "-"
    axis.plot(steps, values, color="0.75", linewidth=0.9)
    axis.plot(steps, np.where(cold, values, np.nan), style, color=ink, linewidth=1.2, zorder=3, label=run or "learned")
    if "holdout_evidence" in history:
        seen = np.isfinite(history["holdout_evidence"])
        label = f"{run}, held out" if run else "held out"
        axis.plot(steps[seen], history["holdout_evidence"][seen], "--", color=ink, linewidth=1.0, label=label)


def is_cold(history: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which iterations, at the end of a run, are at its last temperature, (n,) bool."""
    other = np.flatnonzero(np.abs(history["temperature"] - history["temperature"][-1]) > 1e-9)
    return np.arange(len(history["temperature"])) > (other[-1] if len(other) else -1)


def fit_to_cold(axis: Axes, histories: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Limit the axis of free energies to what they are at the last temperature, but for the first tenth of that."""
    ends: list[float] = []
    for history in histories:
        late = is_cold(history)
        late &= np.cumsum(late) > late.sum() // 10
        for name in ("free_energy", "holdout_evidence"):
            values = history.get(name, np.empty(0))[late[: len(history.get(name, ()))]]
            ends += values[np.isfinite(values)].tolist()
    room = 0.08 * (max(ends) - min(ends)) or 0.01 * abs(ends[0]) or 1.0
    axis.set_ylim(min(ends) - room, max(ends) + room)


def compared(energies: Mapping[str, np.ndarray], what: str = "free energy") -> Figure:
    """The free energy, or what else, of several runs over the iterations, by name."""
    figure = figure_of(8.0, 4.2)
    axis = figure.subplots()
    for number, (name, values) in enumerate(energies.items()):
        style = "-" if number < len(PALETTE) else "--"
        axis.plot(np.arange(1, len(values) + 1), values, style, color=PALETTE[number % len(PALETTE)], label=name)
    ends = np.array([values[-1] for values in energies.values()])
    early = np.array([values[min(3, len(values) - 1)] for values in energies.values()])
    room = 0.05 * (np.ptp(np.concatenate([ends, early])) or 1.0)
    axis.set_ylim(early.min() - room, ends.max() + room)  # the first iterations would make all else flat
    axis.set_xlabel("iteration", fontsize=8)
    axis.set_ylabel(f"{what} a point", fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    plain(axis)
    figure.tight_layout()
    return figure


def likelihoods(curves: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]], generating: float) -> Figure:
    """Log likelihoods of several runs of each learner over their iterations, beside that of the truth."""
    figure = figure_of(8.0, 3.4)
    slow = {name: max(at[-1] for at, _ in runs) > MANY_ITERATIONS for name, runs in curves.items()}
    panels = [names for some in (False, True) if (names := [name for name in curves if slow[name] == some])]
    lowest = min(values[len(values) // 2] for runs in curves.values() for _, values in runs)
    for axis, names in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        for name in names:
            for number, (at, values) in enumerate(curves[name]):
                colour = PALETTE[list(curves).index(name) % len(PALETTE)]
                axis.plot(at, values, color=colour, lw=0.9, label="" if number else name)
        axis.axhline(generating, color="black", lw=0.9, ls=":", label="generating parameters")
        axis.set_ylim(min(lowest, generating) - 5.0, generating + 3.0)
        axis.set_xlabel("iteration", fontsize=8)
        axis.set_ylabel("log likelihood a point", fontsize=8)
        axis.legend(fontsize=7, frameon=False, loc="lower right")
        plain(axis)
    figure.tight_layout()
    return figure


def evidence(sample: Sample, points: int, used: int) -> Figure:
    """The evidence F_n from the largest to the smallest, and how many of the points the last cut has left (fig. 4D)."""
    figure = figure_of(7.0, 3.2)
    axis = figure.subplots()
    place = (np.arange(len(sample.rows)) + 0.5) * points / len(sample.rows)
    axis.plot(place, np.sort(sample.evidence)[::-1], "." if len(place) == 1 else "-", color=INK, linewidth=1.4)
    if used < points:
        axis.axvspan(used, points, color="0.9", linewidth=0)
        axis.axvline(used, color="#b2182b", linestyle="--", linewidth=1.2, label=f"cut after {used} points")
        axis.legend(fontsize=8, frameon=False, loc="lower left")
    axis.set_xlim(0, points)
    axis.set_xlabel("points, sorted", fontsize=8)
    axis.set_ylabel("evidence $F_n$", fontsize=8)
    plain(axis)
    figure.tight_layout()
    return figure


def quality(course: Course, gamma: int) -> Figure:
    """The quality of each point over the iterations, by whether at most gamma causes made it (fig. 4C)."""
    figure = figure_of(7.0, 3.2)
    axis = figure.subplots()
    every = np.ones(course.quality.shape[1], bool)
    kinds = [(every, INK, f"{len(every)} points")]
    if course.few is not None:
        few, many = course.few, ~course.few
        kinds = [
            (many, "#8b1a1a", f"{many.sum()} points made by more causes"),
            (few, "#33b233", f"{few.sum()} points made by at most {gamma} causes"),
        ]
    style = "." if len(course.iterations) == 1 else "-"
    for which, colour, label in kinds:
        if which.any():
            lines = axis.plot(
                course.iterations, course.quality[:, which], style, color=colour, linewidth=0.9, alpha=0.75, zorder=3
            )
            lines[0].set_label(label)
    legend = axis.legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    for line in legend.get_lines():
        line.set(linewidth=2, alpha=1)
    axis.set(xlim=(0, course.iterations[-1]), ylim=(-0.02, 1.02))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("iteration", fontsize=8)
    axis.set_ylabel("quality $Q_n$", fontsize=8)
    plain(axis)
    figure.tight_layout()
    return figure


def usage(shares: np.ndarray, order: np.ndarray, pi: float | None) -> Figure:
    """How often each cause is active in the mean of the posterior, those used most first, beside the prior."""
    figure = figure_of(7.0, 2.8)
    axis = figure.subplots()
    axis.bar(np.arange(len(order)), shares[order], width=0.8 if len(order) <= 100 else 1.0, color=INK, linewidth=0)
    if pi is not None:
        axis.axhline(pi, color="#b2182b", linestyle="--", linewidth=1.2, label=f"pi = {pi:.3g}")
        axis.legend(fontsize=8, frameon=False)
    if len(order) <= 40:
        axis.set_xticks(np.arange(len(order)), [str(h) for h in order])
    axis.set_xlim(-0.6, len(order) - 0.4)
    axis.set_xlabel("cause" if len(order) <= 40 else "causes, sorted", fontsize=8)
    axis.set_ylabel("mean probability", fontsize=8)
    plain(axis)
    figure.tight_layout()
    return figure


def values(found: np.ndarray, prior: np.ndarray, order: np.ndarray) -> Figure:
    """Mean and standard deviation of the values of active causes, those used most first, beside those of the prior.

    Both are (2, H).
    """
    figure = figure_of(7.0, 2.8)
    axis, place = figure.subplots(), np.arange(len(order))
    kinds = ((prior, "0.6", 3.0, "prior: mu and the root of psi"), (found, INK, 1.2, "posterior"))
    for (mean, spread), colour, width, label in kinds:
        axis.errorbar(
            place,
            mean[order],
            spread[order],
            color=colour,
            fmt="o",
            markersize=width + 1.5,
            linewidth=width,
            label=label,
        )
    if len(order) <= 40:
        axis.set_xticks(place, [str(h) for h in order])
    axis.set_xlim(-0.6, len(order) - 0.4)
    axis.set_xlabel("cause" if len(order) <= 40 else "causes, sorted", fontsize=8)
    axis.set_ylabel("value when active", fontsize=8)
    axis.legend(fontsize=8, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    plain(axis)
    figure.tight_layout()
    return figure


def phases(history: Mapping[str, np.ndarray]) -> Figure:
    """Shares of the phases in the time of the iterations, stacked; their totals beside."""
    spent = {name.removeprefix("seconds_"): v for name, v in history.items() if name.startswith("seconds_")}
    table = np.array(list(spent.values()))
    totals, count = table.sum(1), table.shape[1]
    edges = np.unique(np.linspace(0, count, min(count, BINS) + 1).astype(int))
    binned = np.add.reduceat(table, edges[:-1], axis=1)
    shares = binned / np.maximum(binned.sum(0), 1e-12)
    figure = figure_of(8.0, 3.0)
    axis = figure.subplots()
    below = np.zeros(shares.shape[1])
    for i, name in sorted(enumerate(spent), key=lambda item: -totals[item[0]]):
        name = name.replace("$", r"\$")  # no formula
        label = f"{name}: {seconds(totals[i])}, {totals[i] / max(totals.sum(), 1e-12):.1%}"
        colour = PALETTE[i % len(PALETTE)]
        axis.bar(edges[:-1], shares[i], np.diff(edges), below, align="edge", color=colour, linewidth=0, label=label)
        below += shares[i]
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    axis.set(xlim=(0, count), ylim=(0, 1))
    axis.set_xlabel("iteration", fontsize=8)
    axis.set_ylabel("share of the time", fontsize=8)
    plain(axis)
    axis.grid(False)
    figure.tight_layout()
    return figure


def seconds(time: float) -> str:
    """A time as one would say it."""
    if time < 1:
        return f"{1000 * time:.3g} ms"
    return f"{time:.3g} s" if time < 120 else f"{time / 60:.3g} min" if time < 7200 else f"{time / 3600:.3g} h"


def plain(axis: Axes) -> None:
    """The same quiet frame for all plots."""
    axis.tick_params(labelsize=7.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="0.92", linewidth=0.6)
    axis.set_axisbelow(True)


def side_by_side(one: np.ndarray, other: np.ndarray) -> Figure:
    """By how much the evidence of the first of two runs is above that of the second, of the same points, sorted."""
    figure = figure_of(7.0, 3.0)
    axis = figure.subplots()
    gaps = np.sort(one - other)
    place = np.arange(1, len(gaps) + 1)
    for ink, some in zip(INKS, (gaps > 0, gaps <= 0), strict=True):
        axis.fill_between(place, np.where(some, gaps, 0.0), color=ink, alpha=0.8, linewidth=0, step="mid")
    axis.axhline(gaps.mean(), color="black", linestyle="--", linewidth=1.0, label=f"mean {gaps.mean():.4g}")
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    axis.set_xlim(0.5, len(gaps) + 0.5)
    axis.set_xlabel("points, sorted", fontsize=8)
    axis.set_ylabel("evidence $F_n$, first less second", fontsize=8)
    plain(axis)
    figure.tight_layout()
    return figure
