"""Plots of a run: curves over the iterations, evidence, quality, usage, values, and time of the phases."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from parallel_et.reports.pictures import new_figure
from parallel_et.reports.quality import QualityCourse
from parallel_et.reports.run_data import Sample

CURVE_TITLES = {
    "free_energy": "free energy per point",
    "temperature": "temperature",
    "points_used": "points used",
    "unused_causes": "unused causes",
}
COLOUR = "#1f5f99"
RUN_COLOURS = (COLOUR, "#c4500b")
"""Colours of two runs."""
PALETTE = ("#bdbdbd", "#1f5f99", "#6baed6", "#fdae61", "#d7301f", "#7a5195", "#74c476")
LONG_RUN_ITERATIONS = 1000
"""Number of iterations above which a run is drawn in a second panel."""
LARGEST_BAR_COUNT = 100
"""Maximum number of bars in the plot of the phases."""


def curve_titles(history: Mapping[str, np.ndarray], params: Sequence[str]) -> dict[str, str]:
    """Return the names and titles of all possible curves, in order; ``params``: further curves."""
    (energy, temperature, *rest), own = CURVE_TITLES.items(), [(name, name) for name in params if name in history]
    return dict([energy, temperature, *own, *rest])


def is_constant(values: np.ndarray) -> bool:
    """Return whether all values are equal up to rounding."""
    return bool(np.ptp(values) <= 1e-9 * np.abs(values).max())


def plot_curves(histories: Mapping[str, Mapping[str, np.ndarray]], params: Sequence[str]) -> Figure:
    """Plot the histories of runs over the iterations. A vector has a curve of its mean and a band of its range.

    Constant values have no curve. The axis of the free energy is scaled to the iterations at the final temperature.

    Parameters
    ----------
    histories : histories by name of the run
    params : parameters that are plotted
    """
    columns = 3
    words = {name: text for history in histories.values() for name, text in curve_titles(history, params).items()}
    there = {name: [h[name] for h in histories.values() if name in h] for name in words}
    flat = {
        name: all(map(is_constant, values)) and is_constant(np.concatenate(values)) for name, values in there.items()
    }
    shown = [name for name in words if name == "free_energy" or not flat[name]]
    rows = -(-len(shown) // columns)
    figure = new_figure(9.0, 2.5 * rows)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for axis in grid.flat[len(shown) :]:
        axis.remove()
    for axis, name in zip(grid.flat, shown, strict=False):
        for (run, history), colour in zip(histories.items(), RUN_COLOURS, strict=False):
            if name == "free_energy":
                draw_energy(axis, history, colour, run)
            elif name in history:
                draw_curve(axis, name, history, colour, run)
        ranged = any(f"{name}_low" in history for history in histories.values())
        axis.set_title(f"{words[name]}: mean and range" if ranged else words[name], fontsize=9)
        if name == "free_energy":
            limit_to_last_temperature(axis, list(histories.values()))
        if name in ("points_used", "unused_causes"):
            axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        style_axis(axis)
    for axis in figure.axes[-columns:]:
        axis.set_xlabel("iteration", fontsize=8)
        axis.tick_params(labelbottom=True)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    lines, labels = grid.flat[0].get_legend_handles_labels()
    if len(lines) > 1:
        figure.legend(lines, labels, fontsize=8, frameon=False, loc="upper left", ncols=4)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.25 * (len(lines) > 1) / (2.5 * rows)))
    return figure


def draw_curve(axis: Axes, name: str, history: Mapping[str, np.ndarray], colour: str, run: str) -> None:
    """Draw one curve of a run."""
    values = history[name]
    steps, style = np.arange(1, len(values) + 1), "." if len(values) == 1 else "-"
    if f"{name}_low" in history:
        ends = history[f"{name}_low"], history[f"{name}_high"]
        axis.fill_between(steps, *ends, color=colour, alpha=0.2, linewidth=0)
    axis.plot(
        steps, values, style, color=colour, linewidth=1.2, clip_on=False, zorder=3, label=run
    )  # zeros on the axis


def draw_energy(axis: Axes, history: Mapping[str, np.ndarray], colour: str, run: str) -> None:
    """Draw the free energy of a run, grey before the final temperature, and the held-out evidence."""
    values, final = history["free_energy"], at_last_temperature(history)
    steps, style = np.arange(1, len(values) + 1), "." if final.sum() == 1 else "-"
    axis.plot(steps, values, color="0.75", linewidth=0.9)
    axis.plot(
        steps, np.where(final, values, np.nan), style, color=colour, linewidth=1.2, zorder=3, label=run or "learned"
    )
    if "holdout_evidence" in history:
        seen = np.isfinite(history["holdout_evidence"])
        label = f"{run}, held out" if run else "held out"
        axis.plot(steps[seen], history["holdout_evidence"][seen], "--", color=colour, linewidth=1.0, label=label)


def at_last_temperature(history: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return which iterations belong to the final stretch at the last temperature, (n,) bool."""
    other = np.flatnonzero(np.abs(history["temperature"] - history["temperature"][-1]) > 1e-9)
    return np.arange(len(history["temperature"])) > (other[-1] if len(other) else -1)


def limit_to_last_temperature(axis: Axes, histories: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Limit the axis to the free energies at the last temperature, without the first tenth of these iterations."""
    ends: list[float] = []
    for history in histories:
        late = at_last_temperature(history)
        late &= np.cumsum(late) > late.sum() // 10
        for name in ("free_energy", "holdout_evidence"):
            values = history.get(name, np.empty(0))[late[: len(history.get(name, ()))]]
            ends += values[np.isfinite(values)].tolist()
    margin = 0.08 * (max(ends) - min(ends)) or 0.01 * abs(ends[0]) or 1.0
    axis.set_ylim(min(ends) - margin, max(ends) + margin)


def plot_energies(energies: Mapping[str, np.ndarray], what: str = "free energy") -> Figure:
    """Plot the free energy, or the quantity ``what``, of several runs over the iterations."""
    figure = new_figure(8.0, 4.2)
    axis = figure.subplots()
    for number, (name, values) in enumerate(energies.items()):
        style = "-" if number < len(PALETTE) else "--"
        axis.plot(np.arange(1, len(values) + 1), values, style, color=PALETTE[number % len(PALETTE)], label=name)
    ends = np.array([values[-1] for values in energies.values()])
    early = np.array([values[min(3, len(values) - 1)] for values in energies.values()])
    margin = 0.05 * (np.ptp(np.concatenate([ends, early])) or 1.0)
    axis.set_ylim(
        early.min() - margin, ends.max() + margin
    )  # without the first iterations, which have a far larger range
    axis.set_xlabel("iteration", fontsize=8)
    axis.set_ylabel(f"{what} per point", fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    style_axis(axis)
    figure.tight_layout()
    return figure


def plot_likelihoods(curves: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]], generating: float) -> Figure:
    """Plot log likelihoods of several runs of each job, and the log likelihood of the generating parameters."""
    figure = new_figure(8.0, 3.4)
    slow = {name: max(at[-1] for at, _ in runs) > LONG_RUN_ITERATIONS for name, runs in curves.items()}
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
        axis.set_ylabel("log likelihood per point", fontsize=8)
        axis.legend(fontsize=7, frameon=False, loc="lower right")
        style_axis(axis)
    figure.tight_layout()
    return figure


def plot_evidence(sample: Sample, points: int, used: int) -> Figure:
    """Plot the sorted evidence F_n, and the number of points that the last cut used (ET fig. 4D)."""
    figure = new_figure(7.0, 3.2)
    axis = figure.subplots()
    place = (np.arange(len(sample.rows)) + 0.5) * points / len(sample.rows)
    axis.plot(place, np.sort(sample.evidence)[::-1], "." if len(place) == 1 else "-", color=COLOUR, linewidth=1.4)
    if used < points:
        axis.axvspan(used, points, color="0.9", linewidth=0)
        axis.axvline(used, color="#b2182b", linestyle="--", linewidth=1.2, label=f"cut after {used} points")
        axis.legend(fontsize=8, frameon=False, loc="lower left")
    axis.set_xlim(0, points)
    axis.set_xlabel("points, sorted", fontsize=8)
    axis.set_ylabel("log evidence $F_n$", fontsize=8)
    style_axis(axis)
    figure.tight_layout()
    return figure


def plot_quality(course: QualityCourse, gamma: int) -> Figure:
    """Plot the quality of each point over the iterations, coloured by the number of true causes (ET fig. 4C)."""
    figure = new_figure(7.0, 3.2)
    axis = figure.subplots()
    every = np.ones(course.quality.shape[1], bool)
    kinds = [(every, COLOUR, f"{len(every)} points")]
    if course.within_gamma is not None:
        within_gamma, many = course.within_gamma, ~course.within_gamma
        kinds = [
            (many, "#8b1a1a", f"{many.sum()} points generated by more causes"),
            (within_gamma, "#33b233", f"{within_gamma.sum()} points generated by at most {gamma} causes"),
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
    style_axis(axis)
    figure.tight_layout()
    return figure


def plot_usage(shares: np.ndarray, order: np.ndarray, pi: float | None) -> Figure:
    """Plot the mean probability that each cause is active, in decreasing order, and the prior probability."""
    figure = new_figure(7.0, 2.8)
    axis = figure.subplots()
    axis.bar(np.arange(len(order)), shares[order], width=0.8 if len(order) <= 100 else 1.0, color=COLOUR, linewidth=0)
    if pi is not None:
        axis.axhline(pi, color="#b2182b", linestyle="--", linewidth=1.2, label=f"pi = {pi:.3g}")
        axis.legend(fontsize=8, frameon=False)
    if len(order) <= 40:
        axis.set_xticks(np.arange(len(order)), [str(h) for h in order])
    axis.set_xlim(-0.6, len(order) - 0.4)
    axis.set_xlabel("cause" if len(order) <= 40 else "causes, sorted", fontsize=8)
    axis.set_ylabel("mean probability", fontsize=8)
    style_axis(axis)
    figure.tight_layout()
    return figure


def plot_values(found: np.ndarray, prior: np.ndarray, order: np.ndarray) -> Figure:
    """Plot mean and standard deviation of the values of active causes, under the posterior and under the prior.

    Parameters
    ----------
    found, prior : (2, H) mean and standard deviation
    order : (H,) order of the causes
    """
    figure = new_figure(7.0, 2.8)
    axis, place = figure.subplots(), np.arange(len(order))
    kinds = ((prior, "0.6", 3.0, "prior: mu and the root of psi"), (found, COLOUR, 1.2, "posterior"))
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
    style_axis(axis)
    figure.tight_layout()
    return figure


def plot_phases(history: Mapping[str, np.ndarray]) -> Figure:
    """Plot the fractions of time of the phases as stacked bars, with total times in the legend."""
    spent = {name.removeprefix("seconds_"): v for name, v in history.items() if name.startswith("seconds_")}
    table = np.array(list(spent.values()))
    totals, count = table.sum(1), table.shape[1]
    edges = np.unique(np.linspace(0, count, min(count, LARGEST_BAR_COUNT) + 1).astype(int))
    binned = np.add.reduceat(table, edges[:-1], axis=1)
    shares = binned / np.maximum(binned.sum(0), 1e-12)
    figure = new_figure(8.0, 3.0)
    axis = figure.subplots()
    below = np.zeros(shares.shape[1])
    for i, name in sorted(enumerate(spent), key=lambda item: -totals[item[0]]):
        name = name.replace("$", r"\$")  # avoids a formula
        label = f"{name}: {format_seconds(totals[i])}, {totals[i] / max(totals.sum(), 1e-12):.1%}"
        colour = PALETTE[i % len(PALETTE)]
        axis.bar(edges[:-1], shares[i], np.diff(edges), below, align="edge", color=colour, linewidth=0, label=label)
        below += shares[i]
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    axis.set(xlim=(0, count), ylim=(0, 1))
    axis.set_xlabel("iteration", fontsize=8)
    axis.set_ylabel("fraction of the time", fontsize=8)
    style_axis(axis)
    axis.grid(False)
    figure.tight_layout()
    return figure


def format_seconds(time: float) -> str:
    """Format a time in ms, s, min or h."""
    if time < 1:
        return f"{1000 * time:.3g} ms"
    return f"{time:.3g} s" if time < 120 else f"{time / 60:.3g} min" if time < 7200 else f"{time / 3600:.3g} h"


def style_axis(axis: Axes) -> None:
    """Apply the common style of all plots."""
    axis.tick_params(labelsize=7.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="0.92", linewidth=0.6)
    axis.set_axisbelow(True)


def plot_evidence_differences(one: np.ndarray, other: np.ndarray) -> Figure:
    """Plot the sorted differences of the evidence of the same points under two runs, first minus second."""
    figure = new_figure(7.0, 3.0)
    axis = figure.subplots()
    gaps = np.sort(one - other)
    place = np.arange(1, len(gaps) + 1)
    for colour, some in zip(RUN_COLOURS, (gaps > 0, gaps <= 0), strict=True):
        axis.fill_between(place, np.where(some, gaps, 0.0), color=colour, alpha=0.8, linewidth=0, step="mid")
    axis.axhline(gaps.mean(), color="black", linestyle="--", linewidth=1.0, label=f"mean {gaps.mean():.4g}")
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    axis.set_xlim(0.5, len(gaps) + 0.5)
    axis.set_xlabel("points, sorted", fontsize=8)
    axis.set_ylabel("log evidence $F_n$, first minus second", fontsize=8)
    style_axis(axis)
    figure.tight_layout()
    return figure
