"""The free energy that runs end with, over the samples that each has drawn of a point (TH fig. 2.3 C)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import png
from parallel_et.reports.plots import figure_of, plain
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.stored_run import read_together
from parallel_et.storage.atomic import write_whole


def draw_curve(ranks: Ranks, runs: Sequence[Path], place: Path) -> None:
    """Draw it of runs that are at their ends; all ranks call this together."""
    stored = [read_together(ranks, RunDirectory(str(run)), {}) for run in runs]

    def draw() -> None:
        ends = {run.job.inference.samples: float(run.result.history["free_energy"][-1]) for run in stored}
        write_whole(place, png(curve(ends)))

    ranks.from_root(draw)


def curve(ends: Mapping[int, float]) -> Figure:
    """Free energies by the number of samples."""
    figure = figure_of(5.0, 3.0)
    axis = figure.subplots()
    some = sorted(ends)
    axis.plot(some, [ends[samples] for samples in some], "o-")
    axis.set_xscale("log")
    axis.set_xticks(some, map(str, some))
    axis.set_xticks([], minor=True)
    axis.set_xlabel("samples a point", fontsize=8)
    axis.set_ylabel("free energy a point at the end", fontsize=8)
    plain(axis)
    figure.tight_layout()
    return figure
