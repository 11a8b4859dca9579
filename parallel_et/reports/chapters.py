"""From what is known of a run to its report: which pictures and words stand where."""

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
from parallel_et.job.job import HDF5
from parallel_et.reports import field_sheets, page, plots
from parallel_et.reports.page import Chapter, Either, Picture
from parallel_et.reports.pictures import Sound, png
from parallel_et.reports.quality import Course
from parallel_et.reports.run_data import Sample, Study, look_at
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.trainer import installed, now
from parallel_et.storage.atomic import why_no_place, write_whole
from parallel_et.storage.hdf5 import read_attributes, split_place

Content = str | Picture | Either
"""Part of a section: HTML, or pictures that are also written beside the page."""


def write_report(
    directory: RunDirectory,
    files: Mapping[str, str],
    folder: Path,
    shape: tuple[int, ...] | None = None,
    quiet: bool = False,
) -> None:
    """Read a run and write the page, report.html, and its pictures into a folder; for the rest see ``look_at``."""
    report = Reporter(True, quiet)
    text, pictures = compose(look_at(directory, shape, report, files))
    write_page(folder, text, pictures, report)


def write_page(folder: Path, text: str, pictures: Sequence[Picture], report: Reporter) -> None:
    """Write a page and its pictures, and tell where."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            write_whole(folder / picture.name, picture.png)
        write_whole(folder / "report.html", text.encode())
    except OSError as error:
        why = why_no_place(folder, error, parents=True)
        raise UserError(f"{folder}: expected a folder to write to, found {why}") from None
    report.say(f"report: {folder / 'report.html'}")


def compose(study: Study) -> tuple[str, list[Picture]]:
    """The page and its pictures."""
    title = f"{study.job.name}: {study.model.H} causes of {study.job.model.name}"
    return bound(title, facts(study), chapters(study), study.file)


def bound(
    title: str, facts: Mapping[str, object], chapters: Iterable[tuple[str, Sequence[Content]]], file: str
) -> tuple[str, list[Picture]]:
    """A page of chapters, about what was read from a file, and its pictures."""
    pictures: list[Picture] = []
    sections = []
    for heading, contents in chapters:
        for content in contents:
            pictures += content.pictures if isinstance(content, Either) else []
            pictures += [content] if isinstance(content, Picture) else []
        body = "\n".join(content if isinstance(content, str) else content.html() for content in contents)
        sections.append(Chapter(heading, body))
    foot = f"Made by parallel_et {installed('parallel_et')} from {file} at {now()}."
    return page.html(title, facts, sections, foot), pictures


def facts(study: Study) -> dict[str, object]:
    """The run in a few words."""
    about, history, sample = study.result.about, study.result.history, study.sample
    held = f" and {about['held out']} held out" if "held out" in about else ""
    found: dict[str, object] = {
        "job": study.job.name,
        "model": study.job.model.name,
        "points, N": f"{about['N']}{held}",
        "dimensions, D": about["D"],
        "causes, H": study.model.H,
        "iterations": f"{study.iterations} of {study.job.anneal.iterations}",
        "state": study.state,
        "inference": f"{study.job.inference.scheme}: {study.scheme.words}",
        **{name: in_words(value) for name, value in study.params.items() if value.ndim < 2},
    }
    if sample is not None:
        some = f", of {len(sample.rows)} points" if len(sample.rows) < sample.source.points else ""
        found["spread of the data"] = f"{sample.spread:.4g}{some}"
        found["explained variance"] = f"{field_sheets.percent(sample.explained)}, residual {sample.residual:.4g}"
    if study.result.data:
        found["data"] = "with the mean of each dimension subtracted, here as in all pictures"
    if study.iterations:
        found["free energy a point"] = f"{history['free_energy'][-1]:.6g} at T = {history['temperature'][-1]:.4g}"
    if "holdout_evidence" in history:
        found["held-out evidence a point"] = f"{history['holdout_evidence'][-1]:.6g}"
    if about.get("doubts"):
        found["a better optimum is likely"] = about["doubts"]
    if "W" in study.result.truth:
        found["causes behind the data"] = recovery(
            study.model, study.scheme, study.params, causes_of(study.result.truth, study.model.D)
        )
    return found


def in_words(value: np.ndarray) -> str:
    """A number, or the mean and the range of several."""
    if value.ndim == 0:
        return f"{float(value):.4g}"
    return f"{value.mean():.4g} on average, from {value.min():.4g} to {value.max():.4g}"


def chapters(study: Study) -> Iterator[tuple[str, list[Content]]]:
    """Headings and what stands under them."""
    yield "Fields", list(of_fields(study))
    if study.iterations:
        yield "Course of the run", [draw_curves(study)]
    if study.quality is not None:
        yield "Quality of the truncation", [draw_quality(study.quality, study.scheme.most)]
    if study.sample is None:
        yield "Points", [page.note(f"The data cannot be read, so nothing is inferred here: {study.trouble}")]
    else:
        notes = [page.note(study.trouble)] if study.trouble else []
        yield "Points", [*notes, *of_points(study, study.sample)]
    yield "Data drawn from the model", [draw_generated(study)]
    if study.iterations:
        words = "Share of each phase in the time of the iterations, as the root measured it; beside, the totals."
        figure = plots.phases(study.result.history)
        yield "Time", [picture("time", figure, "Stacked bars: share of each phase over the iterations.", words)]
    yield "Job", list(of_job(study.result.about))
    yield "Provenance", [page.table(provenance(study))]
    if steps := preparation(study):
        yield "How the data were made", [page.table(steps)]


def picture(name: str, figure: Figure, alt: str, caption: str) -> Picture:
    """A figure to be shown and written."""
    return Picture(f"{name}.png", png(figure), alt, caption)


def of_job(about: Mapping[str, Any]) -> Iterator[str]:
    """The job as it was written, where that is known, and with all defaults."""
    resolved = page.listing(about["job"].strip())
    if "job as written" not in about:
        yield resolved
        return
    yield page.listing(about["job as written"].strip())
    yield page.folded("with every default filled in", resolved)


def to_choose(name: str, draw: Callable[[bool], Figure], fields: np.ndarray, alt: str, caption: str) -> Either:
    """Pictures with fields (D, H) all to one scale, or each to its own."""
    both = (
        picture(name, draw(False), f"{alt} All to one scale.", caption),
        picture(f"{name}-own", draw(True), f"{alt} Each to its own scale.", caption),
    )
    return Either(name, both, ("all to one scale", "each to its own"), field_sheets.uneven(fields))


def of_fields(study: Study) -> Iterator[Content]:
    """The fields, and their course over the snapshots."""
    H, most = study.model.H, field_sheets.MOST_FIELDS
    caption = "Each with the number of its cause and " + (
        "its norm, the largest first." if study.sample is None else "how often it is active, the most used first."
    )
    if most < H:
        caption += f" The first {most} of {H}."
    if study.guessed:
        what = "square images" if len(study.shape) == 2 else "curves"
        caption += f" The shape of a point is not known, they are drawn as {what}; --shape tells another."
    elif study.sound:
        caption += f" {of_sound(study.sound)}"
    elif len(study.shape) == 1:
        caption += " Points are vectors, drawn as curves; --shape 16x16 would draw images."
    elif len(study.shape) == 3 and study.shape[0] == 2:
        caption += " On minus off channel."
    alt = f"The generative fields of {min(H, most)} causes in a grid."
    yield to_choose("fields", partial(field_sheets.fields, study), study.fields, alt, caption)
    if "T" in study.params and len(study.shape) > 1:
        caption = "Masks, each to its own scale, and features, all to one, in the same order."
        yield picture("parts", field_sheets.parts(study), f"Masks and features of {min(H, most)} causes.", caption)
    if len(study.result.snapshots.get("W", ())):
        which = "strongest to the weakest" if study.sample is None else "most to the least used"
        caption = f"Some of them, from the {which}, a row each, at the snapshots of the run and where they are now."
        yield picture(
            "snapshots", field_sheets.course(study), "Fields at successive iterations, a row for each.", caption
        )


def of_sound(sound: Sound) -> str:
    """What fields of sounds show."""
    time = f"{sound.milliseconds:g} ms of time from left to right"
    if sound.hertz is None:
        return f"Waveforms: {time}."
    return f"Log-spectrograms: {time}, {sound.hertz[0]:g} to {sound.hertz[1]:g} Hz from bottom to top, in equal ratios."


def draw_curves(study: Study) -> Picture:
    """The curves over the iterations."""
    noise = noise_of(study)
    last, params = {**study.result.history, **noise}, [*study.params, *noise]
    names = plots.told(last, params)
    held = [f"{words} {last[name][-1]:.5g}" for name, words in names.items() if plots.constant(last[name])]
    alt = (
        f"Curves over {study.iterations} iterations; at the end: free energy {last['free_energy'][-1]:.6g}, "
        f"temperature {last['temperature'][-1]:.4g}, "
        + "".join(f"{name} {last[name][-1]:.4g}, " for name in study.params if name in last)
        + f"{last['points_used'][-1]} points used, {last['unused_causes'][-1]} causes unused."
    )
    caption = (
        "The free energy is that of the E-step; while the temperature is another than at the end it means something "
        "else, and is drawn grey. The parameters are those after the iteration"
        + (", as is the evidence of rows held out, at T = 1." if "holdout_evidence" in last else ".")
        + (f" The same all the time: {', '.join(held)}." if held else "")
    )
    return picture("curves", plots.curves({"": last}, params), alt, caption)


def noise_of(study: Study) -> dict[str, np.ndarray]:
    """Standard deviation of the noise on each parameter that has some, by iteration, as the job has it."""
    anneal, done = study.job.anneal, range(len(study.result.history["temperature"]))
    found = {name: [value_at(spread, t, anneal.iterations) for t in done] for name, spread in anneal.noise}
    return {f"noise on {name}": np.array(values) for name, values in found.items() if any(values)}


def draw_quality(course: Course, gamma: int) -> Picture:
    """The quality of the truncation over the iterations."""
    last = course.quality[-1]
    kinds = {"": np.ones(len(last), bool)}
    if course.few is not None:
        kinds = {f" for those made by at most {gamma} causes": course.few, " for those made by more": ~course.few}
    means = " and ".join(f"{last[which].mean():.3f}{kind}" for kind, which in kinds.items() if which.any())
    caption = (
        f"Of {len(last)} points, drawn at random, the share of the considered states in the evidence of all 2^H states "
        f"(Q_n), at temperature 1 with the parameters of each snapshot. At the end its mean is {means}."
    )
    alt = f"Curves of the quality of {len(last)} points over the iterations; at the end the mean is {means}."
    return picture("quality", plots.quality(course, gamma), alt, caption)


def of_points(study: Study, sample: Sample) -> Iterator[Content]:
    """What the model makes of points of the data."""
    N, n, total = int(study.result.about["N"]), len(sample.rows), sample.source.points
    used = int(study.result.history["points_used"][-1]) if study.iterations else N
    which = f"all {total} points" if n == total else f"{n} of {total} points, evenly spread"
    which += ", held-out ones too" if total > N else ""
    cut = f"the last cut left {used}" if used < N else "there was no cut at the end"
    caption = f"Evidence of {which}, at temperature 1 with these parameters, sorted; {cut}."
    yield picture("evidence", plots.evidence(sample, N, used), f"Sorted evidence of the points; {cut}.", caption)
    caption = f"How often each cause is active, in the mean of the posterior over {which}, beside the prior."
    figure = plots.usage(sample.usage, study.order, prior_of(study))
    low, high = field_sheets.percent(sample.usage.min()), field_sheets.percent(sample.usage.max())
    yield picture("usage", figure, f"Bars: usage of the causes, from {low} to {high}.", caption)
    if sample.values is not None and np.isfinite(sample.values).any():
        yield draw_values(study, sample.values, which)
    caption = (
        "Points with a cause, evenly spread over the data, a row each: the point; its reconstruction as the mean of "
        "the posterior; what that leaves; by its most probable (MAP) state, which may have more than gamma causes; "
        f"their fields{', the nearest first' * study.model.latents.ordered}, each with its number and its probability "
        "by the job's own gamma. On the left the evidence F and the root mean square of the residual."
    )
    caption += below_zero(study)
    alt = "Points, their reconstructions and the fields that explain them, a row for each point."
    yield picture("examples", field_sheets.examples(study, sample), alt, caption)


def draw_values(study: Study, values: np.ndarray, which: str) -> Picture:
    """The values of active causes beside what the prior has them."""
    prior = np.stack([np.broadcast_to(study.params[name], study.model.H) for name in ("mu", "psi")])
    prior[1] = np.sqrt(prior[1])
    caption = (
        f"Mean and standard deviation of the values of each cause when it is active, over {which}, and as learned."
    )
    alt = f"Values of {study.model.H} causes; means from {np.nanmin(values[0]):.3g} to {np.nanmax(values[0]):.3g}."
    return picture("values", plots.values(values, prior, study.order), alt, caption)


def prior_of(study: Study) -> float | None:
    """How often a cause is expected to be active, on average, where the model says so."""
    return float(study.params["pi"].mean()) if "pi" in study.params else None


def draw_generated(study: Study) -> Picture:
    """What the model would have us see."""
    caption = "Points drawn from the model, noise and all" + (", below points of the data." if study.sample else ".")
    return picture("generated", field_sheets.generated(study), caption, caption + below_zero(study))


def below_zero(study: Study) -> str:
    """What to say of points where a picture has no colour for negative values."""
    return " What is below zero is not shown." if not field_sheets.look_of(study).signed else ""


def provenance(study: Study) -> dict[str, object]:
    """Where the run was made, of what and when."""
    inner = ("job", "job as written", "calm", "cooled", "best", "points digest")
    about = {key: value for key, value in study.result.about.items() if key not in inner}
    about["seconds checkpoints"] = f"{about['seconds checkpoints']:.3g}"
    first = ("name", "start", "end", "restarts", "host", "ranks", "mpi", "commit", "data fingerprint")
    return {key: about[key] for key in (*first, *sorted(set(about) - set(first))) if key in about}


def told(value: str, most: int = 20) -> str:
    """An attribute in words: lists of JSON an item a line, at most so many of them."""
    try:
        items = json.loads(value)
    except ValueError:
        return value
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return value
    lines = ["; ".join(f"{k}: {v}" for k, v in item.items()).removeprefix("step: ") for item in items[:most]]
    return "\n".join([*lines, *([f"and {len(items) - most} more"] if len(items) > most else [])])


def preparation(study: Study) -> dict[str, str]:
    """What the file of the data says of itself, such as the steps of its preparation."""
    path = split_place(study.job.data.source)[0]
    if study.sample is None or not path.endswith(HDF5):
        return {}
    try:
        return {name: told(value) for name, value in read_attributes(path).items()}
    except UserError:  # it went away meanwhile
        return {}
