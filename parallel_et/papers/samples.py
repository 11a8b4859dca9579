"""Final free energy of runs over the number of samples per point (TH fig. 2.3 C)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import encode_png
from parallel_et.reports.plots import new_figure, style_axis
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.stored_run import read_on_all_ranks
from parallel_et.storage.atomic import write_atomically


def write_sample_curve(ranks: Ranks, runs: Sequence[Path], place: Path) -> None:
    """Write the curve of several finished runs to a picture; collective."""
    stored = [read_on_all_ranks(ranks, RunDirectory(str(run)), {}) for run in runs]

    def draw() -> None:
        ends = {run.job.inference.samples: float(run.result.history["free_energy"][-1]) for run in stored}
        write_atomically(place, encode_png(draw_free_energies(ends)))

    ranks.from_root(draw)


def draw_free_energies(ends: Mapping[int, float]) -> Figure:
    """Draw final free energies, given by the number of samples."""
    figure = new_figure(5.0, 3.0)
    axis = figure.subplots()
    some = sorted(ends)
    axis.plot(some, [ends[samples] for samples in some], "o-")
    axis.set_xscale("log")
    axis.set_xticks(some, map(str, some))
    axis.set_xticks([], minor=True)
    axis.set_xlabel("samples per point", fontsize=8)
    axis.set_ylabel("free energy per point at the end", fontsize=8)
    style_axis(axis)
    figure.tight_layout()
    return figure
