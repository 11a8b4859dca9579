"""What is known of a run: its result or newest checkpoint, and what its model makes of some of its points."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isqrt, prod

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.core.capabilities import pictures_of
from parallel_et.core.model import Model
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Params
from parallel_et.data.base import Source
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.job.job import HDF5, Job
from parallel_et.reports.pictures import Sound
from parallel_et.reports.quality import Course, course_of
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.result import Result
from parallel_et.runs.setup import largest_of, open_source
from parallel_et.runs.stored_run import StoredRun, read_run
from parallel_et.storage.hdf5 import read_attributes, split_place

SAMPLE, STRETCH = 4096, 64
"""Points of the data that are looked at, at most, and how many of them lie side by side."""


@dataclass(frozen=True)
class Sample:
    """What the model makes of points spread evenly over the data.

    Attributes
    ----------
    source : the data
    rows : (n,) their numbers
    evidence : (n,) F_n at temperature 1
    active : (n,) expected number of active causes
    usage : (H,) how often each cause is active
    spread : root mean square of the points less their mean
    residual : of the points less their posterior means
    values : (2, H) mean and standard deviation of the value of each cause when it is active, where causes have values
    """

    source: Source
    rows: np.ndarray
    evidence: np.ndarray
    active: np.ndarray
    usage: np.ndarray
    spread: float
    residual: float
    values: np.ndarray | None = None

    @property
    def explained(self) -> float:
        """Part of the variance of the points that the posterior means explain; NaN if all are the same."""
        return 1 - (self.residual / self.spread) ** 2 if self.spread else np.nan

    def points(self, rows: Sequence[int]) -> np.ndarray:
        """Some points of the data, (n, D)."""
        found = [self.source.read(row, row + 1)[:, : self.source.dims] for row in rows]
        return np.concatenate(found).astype(np.float64)


@dataclass(frozen=True)
class Study:
    """A run, as far as it has come.

    Attributes
    ----------
    file : where the parameters are from
    state : finished, going on or stopped, in words
    shape : of a point, and ``guessed`` whether nobody said so
    sound : what is known of points that are sounds, drawn as such
    sample : what the model makes of some points, or None: then ``trouble`` says why
    quality : of the truncation at the snapshots, where these are there and the causes few
    """

    job: Job
    result: Result
    file: str
    state: str
    model: Model
    scheme: Scheme
    params: Params
    shape: tuple[int, ...]
    guessed: bool
    sound: Sound | None
    sample: Sample | None
    trouble: str
    quality: Course | None

    @property
    def iterations(self) -> int:
        """How many are done."""
        return int(self.result.about["iteration"])

    @property
    def fields(self) -> np.ndarray:
        """The generative fields, each cause alone, (D, H)."""
        return pictures_of(self.model, self.params)

    @property
    def signed(self) -> bool:
        """Whether the fields may be negative."""
        return self.model.params["W"].low < 0

    @property
    def order(self) -> np.ndarray:
        """The causes, those used most first, of equal ones, or if no data can be read, by the norm of their fields."""
        norms = np.linalg.norm(self.fields, axis=0)
        return np.lexsort((-norms,) if self.sample is None else (-norms, -self.sample.usage))


def look_at(
    directory: RunDirectory, shape: tuple[int, ...] | None, report: Reporter, files: Mapping[str, str]
) -> Study:
    """Read a run, and infer the causes of some of its points; ``shape`` is that of a point, if the user tells it.

    ``files`` of a model or a scheme are executed, if the run is of such.
    """
    if directory.stored_job() is None:
        raise UserError(f"{directory.path}: expected the directory of a run, found no job.toml there")
    who = directory.at_work(report.say)  # before the rest is read, as it may end meanwhile
    run = read_run(directory, files, report.say)
    job, model, scheme, result, file = run
    done, dims = int(run.about["iteration"]), model.D
    state = f"going on ({who})" if who else "stopped; the command that began it goes on"
    if file == directory.result.name:
        state = "finished" + (": the fields had settled" if done < job.anneal.iterations else "")
    params, source, sample, trouble = run.params, None, None, ""
    try:
        source = open_data(run)
        inference = Inference(model, scheme, params, ("evidence", "means", "reconstruction"))
        sample = sample_points(inference, run.seen(source), report)
        if younger(source, result.about["start"]):
            trouble = f"{source.name} was written after this run began; if it holds other data, all below is of these"
            report.say(f"warning: {trouble}")
    except UserError as error:
        trouble = str(error)
        report.say(f"warning: the data cannot be read, the report does without them ({trouble})")
    stated = shape or (source.shape if source else getattr(job.data, "shape", None))
    if stated and prod(stated) != dims:
        raise UserError(f"--shape: expected {dims} values, found {'x'.join(map(str, stated))}")
    shown = tuple(stated or guess(dims, getattr(model, "channels", 1)))
    sound = sound_of(source, shown) if source else None
    quality = course_of(model, scheme, result, sample.source, sample.rows, report) if sample else None
    return Study(job, result, file, state, model, scheme, params, shown, not stated, sound, sample, trouble, quality)


def open_data(run: StoredRun) -> Source:
    """The data of a run, as far as can be told without reading all of them."""
    job, points, dims = run.job, int(run.about["N"]) + int(run.about.get("held out", 0)), run.model.D
    if job.data.source.startswith("array:"):
        raise UserError("data: expected a file or a generator, found an array that a script has passed")
    source = open_source(job)
    if (source.points, source.dims) != (points, dims):
        found = f"{source.points} of {source.dims}"
        raise UserError(f"{source.name}: expected the run's {points} points of {dims} dimensions, found {found}")
    return source


def younger(source: Source, start: str) -> bool:
    """Whether a file of data was written after a run began."""
    return isinstance(source, FileRows) and os.path.getmtime(source.path) > datetime.fromisoformat(start).timestamp()


def sound_of(source: Source, shape: tuple[int, ...]) -> Sound | None:
    """What the file of the data says of sounds, if they are drawn in the shape that they have there."""
    path = split_place(source.name)[0]
    if shape != source.shape or not path.endswith(HDF5):
        return None
    try:
        about = read_attributes(path)
        hertz = json.loads(about["hertz"]) if "hertz" in about else None
        return Sound(float(about["milliseconds"]), hertz and (float(hertz[0]), float(hertz[1])))
    except (KeyError, ValueError, UserError):  # no sounds, or the file went away meanwhile
        return None


def guess(dims: int, channels: int = 1) -> tuple[int, ...]:
    """The shape of points of which it is not known: square if it can be."""
    side, several = isqrt(dims // channels), (channels,) if channels > 1 else ()
    return (side, side, *several) if side > 1 and side * side * channels == dims else (dims,)


def spread(points: int) -> Iterator[tuple[int, int]]:
    """Stretches [first, last) of rows: all, or ``SAMPLE`` of them spread evenly."""
    if points <= SAMPLE:
        yield from ((first, min(first + STRETCH, points)) for first in range(0, points, STRETCH))
        return
    for first in np.linspace(0, points - STRETCH, SAMPLE // STRETCH).astype(int).tolist():
        yield first, first + STRETCH


def sample_points(inference: Inference, source: Source, report: Reporter) -> Sample:
    """What the model makes of points spread evenly over the data."""
    stretches = list(spread(source.points))
    total = sum(last - first for first, last in stretches)
    rows, evidence, active, moments = [], [], [], np.zeros((3, inference.model.H))
    sums, squares, left, first_row = np.zeros(source.dims), 0.0, 0.0, source.read(0, 1)[0, : source.dims]
    report.begin(total, 0)
    done = 0
    for first, last in stretches:
        Y = source.read(first, last)
        largest_of(Y[:, : source.dims], first, source.name)
        found = inference.block(Y, first)
        rows.append(np.arange(first, last))
        evidence.append(found["evidence"])
        chance, means = found.get("active", found["means"]), found["means"]
        active.append(chance.sum(1))
        points = np.asarray(Y[:, : source.dims], np.float64)
        gap = points - first_row  # what all points share takes no digits from the rest
        sums, squares = sums + gap.sum(0), squares + float((gap * gap).sum())
        left += float(((points - found["reconstruction"]) ** 2).sum())
        for total_of, each in zip(moments, (chance, means, found.get("variances", 0.0) + means**2), strict=True):
            np.add.at(total_of, inference.model.latents.owners, each.sum(0))
        done += last - first
        report.step(done, f"{done} of {total} points inferred")
    count = total * source.dims
    wide = np.sqrt(max(0.0, squares / count - float(((sums / total) ** 2).mean())))
    lists = (np.concatenate(rows), np.concatenate(evidence), np.concatenate(active))
    values = values_of(*moments) if inference.model.valued else None
    return Sample(source, *lists, moments[0] / total, float(wide), float(np.sqrt(left / count)), values)


def values_of(active: np.ndarray, s: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Mean and standard deviation of values, of the sums of b, s and s^2; NaN for causes that are never active."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = s / active
        return np.stack([mean, np.sqrt(np.maximum(squares / active - mean**2, 0.0))])
