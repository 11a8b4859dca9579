"""The chapters of the report about a run: pictures with captions, and tables."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from parallel_et.control.progress import Reporter
from parallel_et.em.schedule import value_at
from parallel_et.errors import UserError
from parallel_et.inference.recovery import causes_of, recovery
from parallel_et.job.job import HDF5_ENDINGS
from parallel_et.reports import field_sheets, page, plots
from parallel_et.reports.page import Chapter, Picture, PictureChoice
from parallel_et.reports.pictures import Sound, encode_png
from parallel_et.reports.quality import QualityCourse
from parallel_et.reports.run_data import RunData, Sample, read_run_data
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.trainer import installed, now
from parallel_et.storage.atomic import unwritable_reason, write_atomically
from parallel_et.storage.hdf5 import read_attributes, split_location

Content = str | Picture | PictureChoice
"""Part of a chapter: HTML, or pictures that are also written as files."""


def write_report(
    directory: RunDirectory,
    files: Mapping[str, str],
    folder: Path,
    shape: tuple[int, ...] | None = None,
    quiet: bool = False,
) -> None:
    """Write the report about a run: report.html and its pictures.

    Parameters
    ----------
    directory : directory of the run
    files : files of a model or scheme that may be executed
    folder : folder of the report
    shape : shape of a point, if given by the user
    quiet : print errors only
    """
    report = Reporter(True, quiet)
    text, pictures = compose_page(read_run_data(directory, shape, report, files))
    write_page(folder, text, pictures, report)


def write_page(folder: Path, text: str, pictures: Sequence[Picture], report: Reporter) -> None:
    """Write a page and its pictures, and report the path."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            write_atomically(folder / picture.name, picture.png)
        write_atomically(folder / "report.html", text.encode())
    except OSError as error:
        why = unwritable_reason(folder, error, parents=True)
        raise UserError(f"{folder}: expected a folder to write to, found {why}") from None
    report.log(f"report: {folder / 'report.html'}")


def compose_page(run_data: RunData) -> tuple[str, list[Picture]]:
    """Return the page about a run, and its pictures."""
    title = f"{run_data.job.name}: {run_data.model.H} causes of {run_data.job.model.name}"
    return bind_chapters(title, facts(run_data), chapters(run_data), run_data.file)


def bind_chapters(
    title: str, facts: Mapping[str, object], chapters: Iterable[tuple[str, Sequence[Content]]], file: str
) -> tuple[str, list[Picture]]:
    """Render chapters as a page about a file. Return the page and its pictures."""
    pictures: list[Picture] = []
    sections = []
    for heading, contents in chapters:
        for content in contents:
            pictures += content.pictures if isinstance(content, PictureChoice) else []
            pictures += [content] if isinstance(content, Picture) else []
        body = "\n".join(content if isinstance(content, str) else content.html() for content in contents)
        sections.append(Chapter(heading, body))
    foot = f"Made by parallel_et {installed('parallel_et')} from {file} at {now()}."
    return page.render_page(title, facts, sections, foot), pictures


def facts(run_data: RunData) -> dict[str, object]:
    """Return the facts at the top of the page."""
    about, history, sample = run_data.result.metadata, run_data.result.history, run_data.sample
    held = f" and {about['held out']} held out" if "held out" in about else ""
    found: dict[str, object] = {
        "job": run_data.job.name,
        "model": run_data.job.model.name,
        "points, N": f"{about['N']}{held}",
        "dimensions, D": about["D"],
        "causes, H": run_data.model.H,
        "iterations": f"{run_data.iterations} of {run_data.job.anneal.iterations}",
        "state": run_data.state,
        "inference": f"{run_data.job.inference.scheme}: {run_data.scheme.description}",
        **{name: format_value(value) for name, value in run_data.params.items() if value.ndim < 2},
    }
    if sample is not None:
        some = f", of {len(sample.rows)} points" if len(sample.rows) < sample.source.points else ""
        found["standard deviation of the data"] = f"{sample.spread:.4g}{some}"
        found["explained variance"] = f"{field_sheets.format_percent(sample.explained)}, residual {sample.residual:.4g}"
    if run_data.result.data:
        found["data"] = "the mean of each dimension is subtracted, also in all pictures"
    if run_data.iterations:
        found["free energy per point"] = f"{history['free_energy'][-1]:.6g} at T = {history['temperature'][-1]:.4g}"
    if "holdout_evidence" in history:
        found["held-out evidence per point"] = f"{history['holdout_evidence'][-1]:.6g}"
    if about.get("diagnostics"):
        found["a better optimum is likely"] = about["diagnostics"]
    if "W" in run_data.result.truth:
        found["true causes"] = recovery(
            run_data.model, run_data.scheme, run_data.params, causes_of(run_data.result.truth, run_data.model.D)
        )
    return found


def format_value(value: np.ndarray) -> str:
    """Format a number, or the mean and the range of an array."""
    if value.ndim == 0:
        return f"{float(value):.4g}"
    return f"mean {value.mean():.4g}, from {value.min():.4g} to {value.max():.4g}"


def chapters(run_data: RunData) -> Iterator[tuple[str, list[Content]]]:
    """Yield the headings and contents of the chapters."""
    yield "Fields", list(field_contents(run_data))
    if run_data.iterations:
        yield "Course of the run", [draw_curves(run_data)]
    if run_data.quality is not None:
        yield "Quality of the truncation", [draw_quality(run_data.quality, run_data.scheme.max_active)]
    if run_data.sample is None:
        yield "Points", [page.warning_box(f"The data cannot be read, so no points are inferred: {run_data.warning}")]
    else:
        notes = [page.warning_box(run_data.warning)] if run_data.warning else []
        yield "Points", [*notes, *point_contents(run_data, run_data.sample)]
    yield "Data drawn from the model", [draw_generated(run_data)]
    if run_data.iterations:
        caption = (
            "The bars show the fraction of time in each phase over the iterations, as measured on rank 0. "
            "The legend gives the total time of each phase."
        )
        figure = plots.plot_phases(run_data.result.history)
        yield "Time", [make_picture("time", figure, "Stacked bars: time of each phase over the iterations.", caption)]
    yield "Job", list(job_contents(run_data.result.metadata))
    yield "Provenance", [page.table(provenance(run_data))]
    if steps := data_attributes(run_data):
        yield "Preparation of the data", [page.table(steps)]


def make_picture(name: str, figure: Figure, alt: str, caption: str) -> Picture:
    """Encode a figure as a picture of the page."""
    return Picture(f"{name}.png", encode_png(figure), alt, caption)


def job_contents(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield the job as written by the user, if known, and with all defaults."""
    resolved = page.preformatted(about["job"].strip())
    if "job as written" not in about:
        yield resolved
        return
    yield page.preformatted(about["job as written"].strip())
    yield page.collapsible("with all defaults", resolved)


def make_choice(name: str, draw: Callable[[bool], Figure], fields: np.ndarray, alt: str, caption: str) -> PictureChoice:
    """Return pictures of fields (D, H), with one scale for all fields or one scale for each field."""
    both = (
        make_picture(name, draw(False), f"{alt} One scale for all.", caption),
        make_picture(f"{name}-own", draw(True), f"{alt} One scale for each.", caption),
    )
    return PictureChoice(name, both, ("one scale for all", "one scale for each"), field_sheets.is_uneven(fields))


def field_contents(run_data: RunData) -> Iterator[Content]:
    """Yield the fields, and the fields at the snapshots."""
    H, most = run_data.model.H, field_sheets.FIELDS_PER_SHEET
    caption = "Generative fields of the causes. The label of a field shows the index of its cause and " + (
        "the norm of the field; the largest norm is first."
        if run_data.sample is None
        else "the mean probability that the cause is active; the most used cause is first."
    )
    if most < H:
        caption += f" The first {most} of {H} fields are shown."
    if run_data.shape_guessed:
        what = "square images" if len(run_data.shape) == 2 else "curves"
        caption += f" The shape of a point is unknown, so fields are drawn as {what}; --shape sets the shape."
    elif run_data.sound:
        caption += f" {describe_sound(run_data.sound)}"
    elif len(run_data.shape) == 1:
        caption += " Points are vectors, so fields are drawn as curves; --shape 16x16 draws images."
    elif len(run_data.shape) == 3 and run_data.shape[0] == 2:
        caption += " The pictures show the on channel minus the off channel."
    alt = f"The generative fields of {min(H, most)} causes in a grid."
    yield make_choice("fields", partial(field_sheets.field_sheet, run_data), run_data.fields, alt, caption)
    if "T" in run_data.params and len(run_data.shape) > 1:
        caption = (
            "Mask and feature of each cause, in the order of the fields. "
            "Each mask has its own scale; all features share one scale."
        )
        yield make_picture(
            "parts", field_sheets.mask_sheet(run_data), f"Masks and features of {min(H, most)} causes.", caption
        )
    if len(run_data.result.snapshots.get("W", ())):
        which = "strongest to the weakest" if run_data.sample is None else "most to the least used"
        caption = (
            f"Fields of some causes, from the {which}, one row per cause. "
            "Columns are the snapshots of the run; the last column shows the final fields."
        )
        yield make_picture(
            "snapshots",
            field_sheets.snapshot_sheet(run_data),
            "Fields at successive iterations, one row per cause.",
            caption,
        )


def describe_sound(sound: Sound) -> str:
    """Describe the axes of fields of sounds."""
    time = f"The horizontal axis shows time, {sound.milliseconds:g} ms"
    if sound.hertz is None:
        return f"Fields are waveforms. {time}."
    hertz = f"{sound.hertz[0]:g} to {sound.hertz[1]:g} Hz"
    return f"Fields are log-spectrograms. {time}. The vertical axis is frequency, {hertz}, on a logarithmic scale."


def draw_curves(run_data: RunData) -> Picture:
    """Draw the curves of a run over the iterations."""
    noise = noise_schedules(run_data)
    last, params = {**run_data.result.history, **noise}, [*run_data.params, *noise]
    names = plots.curve_titles(last, params)
    held = [f"{words} {last[name][-1]:.5g}" for name, words in names.items() if plots.is_constant(last[name])]
    alt = (
        f"Curves over {run_data.iterations} iterations; at the end: free energy {last['free_energy'][-1]:.6g}, "
        f"temperature {last['temperature'][-1]:.4g}, "
        + "".join(f"{name} {last[name][-1]:.4g}, " for name in run_data.params if name in last)
        + f"{last['points_used'][-1]} points used, {last['unused_causes'][-1]} causes unused."
    )
    caption = (
        "Values over the iterations. The free energy is that of the E-step. It is grey before the final temperature, "
        "because free energies at different temperatures cannot be compared. Parameters are those after the M-step."
        + (" The dashed curve is the evidence of held-out points at T = 1." if "holdout_evidence" in last else "")
        + (f" Constant values: {', '.join(held)}." if held else "")
    )
    return make_picture("curves", plots.plot_curves({"": last}, params), alt, caption)


def noise_schedules(run_data: RunData) -> dict[str, np.ndarray]:
    """Return the standard deviation of the noise on each parameter over the iterations, as set in the job."""
    anneal, done = run_data.job.anneal, range(len(run_data.result.history["temperature"]))
    found = {name: [value_at(spread, t, anneal.iterations) for t in done] for name, spread in anneal.noise}
    return {f"noise on {name}": np.array(values) for name, values in found.items() if any(values)}


def draw_quality(course: QualityCourse, gamma: int) -> Picture:
    """Draw the quality of the truncation over the iterations."""
    last = course.quality[-1]
    kinds = {"": np.ones(len(last), bool)}
    if course.within_gamma is not None:
        kinds = {
            f" for points with at most {gamma} true causes": course.within_gamma,
            " for points with more": ~course.within_gamma,
        }
    means = " and ".join(f"{last[which].mean():.3f}{kind}" for kind, which in kinds.items() if which.any())
    caption = (
        f"Quality Q_n of {len(last)} random points over the iterations, one curve per point. Q_n is the posterior "
        "probability of the considered states among all 2^H states, at temperature 1 with the parameters of each "
        f"snapshot. The final mean is {means}."
    )
    alt = f"Curves of the quality of {len(last)} points over the iterations; the final mean is {means}."
    return make_picture("quality", plots.plot_quality(course, gamma), alt, caption)


def point_contents(run_data: RunData, sample: Sample) -> Iterator[Content]:
    """Yield the evidence, usage, values and examples of points of the data."""
    N, n, total = int(run_data.result.metadata["N"]), len(sample.rows), sample.source.points
    used = int(run_data.result.history["points_used"][-1]) if run_data.iterations else N
    which = f"all {total} points" if n == total else f"{n} of {total} points, evenly spaced"
    which += ", with held-out points" if total > N else ""
    cut = f"the last cut used {used} points" if used < N else "the last iteration used no cut"
    caption = f"Log evidence F_n of {which}, sorted, at temperature 1 with the final parameters; {cut}."
    yield make_picture(
        "evidence", plots.plot_evidence(sample, N, used), f"Sorted log evidence of the points; {cut}.", caption
    )
    caption = f"Mean posterior probability that each cause is active, over {which}."
    caption += " The dashed line is the prior probability." if mean_prior(run_data) is not None else ""
    figure = plots.plot_usage(sample.usage, run_data.order, mean_prior(run_data))
    low, high = field_sheets.format_percent(sample.usage.min()), field_sheets.format_percent(sample.usage.max())
    yield make_picture("usage", figure, f"Bars: usage of the causes, from {low} to {high}.", caption)
    if sample.values is not None and np.isfinite(sample.values).any():
        yield draw_values(run_data, sample.values, which)
    caption = (
        "Points with at least one cause, evenly spaced in the data, one row per point. The columns are the point, its "
        "reconstruction as the posterior mean, the residual, the reconstruction by the most probable (MAP) state, and "
        f"the fields of the causes in the MAP state{', the nearest first' * run_data.model.latents.ordered}. The label "
        "of a field shows the index of its cause and the posterior probability with the job's gamma. The MAP state may "
        "contain more than gamma causes. The text on the left gives the log evidence F_n and the root mean square of "
        "the residual."
    )
    caption += negative_values_note(run_data)
    alt = "Points, their reconstructions and the fields of their causes, one row per point."
    yield make_picture("examples", field_sheets.example_sheet(run_data, sample), alt, caption)


def draw_values(run_data: RunData, values: np.ndarray, which: str) -> Picture:
    """Draw the values of active causes, and their prior."""
    prior = np.stack([np.broadcast_to(run_data.params[name], run_data.model.H) for name in ("mu", "psi")])
    prior[1] = np.sqrt(prior[1])
    caption = (
        f"Mean and standard deviation of the value of each active cause, under the posterior over {which} and under "
        "the learned prior."
    )
    alt = f"Values of {run_data.model.H} causes; means from {np.nanmin(values[0]):.3g} to {np.nanmax(values[0]):.3g}."
    return make_picture("values", plots.plot_values(values, prior, run_data.order), alt, caption)


def mean_prior(run_data: RunData) -> float | None:
    """Return the mean prior probability that a cause is active, or None if the model has no pi."""
    return float(run_data.params["pi"].mean()) if "pi" in run_data.params else None


def draw_generated(run_data: RunData) -> Picture:
    """Draw points that are generated by the model."""
    caption = "Points drawn from the model, with noise" + (", below points of the data." if run_data.sample else ".")
    return make_picture(
        "generated", field_sheets.generated_sheet(run_data), caption, caption + negative_values_note(run_data)
    )


def negative_values_note(run_data: RunData) -> str:
    """Return a note for pictures that have no colour for negative values, else an empty text."""
    return " Negative values are drawn as zero." if not field_sheets.cell_style(run_data).signed else ""


def provenance(run_data: RunData) -> dict[str, object]:
    """Return place, time, versions and data of the run."""
    inner = ("job", "job as written", "calm", "cooled", "best", "points digest")
    about = {key: value for key, value in run_data.result.metadata.items() if key not in inner}
    about["seconds checkpoints"] = f"{about['seconds checkpoints']:.3g}"
    first = ("name", "start", "end", "restarts", "host", "ranks", "mpi", "commit", "data fingerprint")
    return {key: about[key] for key in (*first, *sorted(set(about) - set(first))) if key in about}


def format_attribute(value: str, most: int = 20) -> str:
    """Format an attribute: a JSON list has one item per line, and at most ``most`` items."""
    try:
        items = json.loads(value)
    except ValueError:
        return value
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return value
    lines = ["; ".join(f"{k}: {v}" for k, v in item.items()).removeprefix("step: ") for item in items[:most]]
    return "\n".join([*lines, *([f"and {len(items) - most} more"] if len(items) > most else [])])


def data_attributes(run_data: RunData) -> dict[str, str]:
    """Read the attributes of the data file, such as the steps of its preparation."""
    path = split_location(run_data.job.data.source)[0]
    if run_data.sample is None or not path.endswith(HDF5_ENDINGS):
        return {}
    try:
        return {name: format_attribute(value) for name, value in read_attributes(path).items()}
    except UserError:  # the file was removed meanwhile
        return {}
