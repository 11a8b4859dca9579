"""The data of a report: the result or newest checkpoint of a run, and inference of some points."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isqrt, prod

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.core.capabilities import cause_images_of
from parallel_et.core.model import Model
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Params
from parallel_et.data.base import Source
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.job.job import HDF5_ENDINGS, Job
from parallel_et.reports.pictures import Sound
from parallel_et.reports.quality import QualityCourse, compute_quality
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.result import Result
from parallel_et.runs.setup import largest_magnitudes, open_source
from parallel_et.runs.stored_run import StoredRun, read_stored_run
from parallel_et.storage.hdf5 import read_attributes, split_location

SAMPLE_POINTS, STRETCH_POINTS = 4096, 64
"""Maximum number of points that are inferred, and number of consecutive points in a stretch."""


@dataclass(frozen=True)
class Sample:
    """Inference of n points, evenly spaced in the data.

    Attributes
    ----------
    source : the data
    rows : (n,) indices of the points
    evidence : (n,) F_n at temperature 1
    active : (n,) expected number of active causes
    usage : (H,) mean probability that each cause is active
    spread : root mean square of the points minus their mean
    residual : root mean square of the points minus their posterior means
    values : (2, H) mean and standard deviation of the values of active causes, for models with values
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
        """Fraction of the variance that the posterior means explain; NaN if all points are equal."""
        return 1 - (self.residual / self.spread) ** 2 if self.spread else np.nan

    def points(self, rows: Sequence[int]) -> np.ndarray:
        """Read points of the data, (n, D)."""
        found = [self.source.read(row, row + 1)[:, : self.source.dims] for row in rows]
        return np.concatenate(found).astype(np.float64)


@dataclass(frozen=True)
class RunData:
    """A finished or unfinished run, as shown in a report.

    Attributes
    ----------
    file : file of the parameters
    state : finished, running or stopped, in words
    shape : shape of a point
    shape_guessed : True if neither the user nor the data give the shape
    sound : axes of sounds, or None
    sample : inference of some points, or None if the data cannot be read
    warning : problem with the data, or an empty text
    quality : quality of the truncation at the snapshots, or None
    """

    job: Job
    result: Result
    file: str
    state: str
    model: Model
    scheme: Scheme
    params: Params
    shape: tuple[int, ...]
    shape_guessed: bool
    sound: Sound | None
    sample: Sample | None
    warning: str
    quality: QualityCourse | None

    @property
    def iterations(self) -> int:
        """Number of finished iterations."""
        return int(self.result.metadata["iteration"])

    @property
    def fields(self) -> np.ndarray:
        """Generative fields, (D, H): the mean with only one cause active."""
        return cause_images_of(self.model, self.params)

    @property
    def signed(self) -> bool:
        """True if fields may be negative."""
        return self.model.params["W"].low < 0

    @property
    def order(self) -> np.ndarray:
        """Causes by decreasing usage, then by decreasing norm of their fields. Without data, only by norm."""
        norms = np.linalg.norm(self.fields, axis=0)
        return np.lexsort((-norms,) if self.sample is None else (-norms, -self.sample.usage))


def read_run_data(
    directory: RunDirectory, shape: tuple[int, ...] | None, report: Reporter, files: Mapping[str, str]
) -> RunData:
    """Read a run, and infer some of its points.

    Parameters
    ----------
    shape : shape of a point, if given by the user
    files : files of a model or scheme that may be executed
    """
    if directory.stored_job() is None:
        raise UserError(f"{directory.path}: expected the directory of a run, found no job.toml there")
    who = directory.lock_holder(report.log)  # first, because the run may end while it is read
    run = read_stored_run(directory, files, report.log)
    job, model, scheme, result, file = run
    done, dims = int(run.metadata["iteration"]), model.D
    state = f"running ({who})" if who else "stopped; the same command resumes it"
    if file == directory.result.name:
        state = "finished" + (": the fields had converged" if done < job.anneal.iterations else "")
    params, source, sample, warning = run.params, None, None, ""
    try:
        source = open_data(run)
        inference = Inference(model, scheme, params, ("evidence", "means", "reconstruction"))
        sample = sample_points(inference, run.centred(source), report)
        if is_newer_than(source, result.metadata["start"]):
            warning = f"{source.name} was written after the start of the run; the points below may be other data"
            report.log(f"warning: {warning}")
    except UserError as error:
        warning = str(error)
        report.log(f"warning: the data cannot be read, so the report shows no points ({warning})")
    stated = shape or (source.shape if source else getattr(job.data, "shape", None))
    if stated and prod(stated) != dims:
        raise UserError(f"--shape: expected {dims} values, found {'x'.join(map(str, stated))}")
    shown = tuple(stated or guess_shape(dims, getattr(model, "channels", 1)))
    sound = read_sound(source, shown) if source else None
    quality = compute_quality(model, scheme, result, sample.source, sample.rows, report) if sample else None
    return RunData(job, result, file, state, model, scheme, params, shown, not stated, sound, sample, warning, quality)


def open_data(run: StoredRun) -> Source:
    """Open the data of a run, and check their shape without reading all points."""
    job, points, dims = run.job, int(run.metadata["N"]) + int(run.metadata.get("held out", 0)), run.model.D
    if job.data.source.startswith("array:"):
        raise UserError("data: expected a file or a generator, found an array that a script has passed")
    source = open_source(job)
    if (source.points, source.dims) != (points, dims):
        found = f"{source.points} of {source.dims}"
        raise UserError(f"{source.name}: expected the run's {points} points of {dims} dimensions, found {found}")
    return source


def is_newer_than(source: Source, start: str) -> bool:
    """Return whether a data file was written after the start of a run."""
    return isinstance(source, FileRows) and os.path.getmtime(source.path) > datetime.fromisoformat(start).timestamp()


def read_sound(source: Source, shape: tuple[int, ...]) -> Sound | None:
    """Read the axes of sounds from the data file. Return None for other data, or if the user sets another shape."""
    path = split_location(source.name)[0]
    if shape != source.shape or not path.endswith(HDF5_ENDINGS):
        return None
    try:
        about = read_attributes(path)
        hertz = json.loads(about["hertz"]) if "hertz" in about else None
        return Sound(float(about["milliseconds"]), hertz and (float(hertz[0]), float(hertz[1])))
    except (KeyError, ValueError, UserError):  # other data, or the file was removed meanwhile
        return None


def guess_shape(dims: int, channels: int = 1) -> tuple[int, ...]:
    """Guess the shape of points: a square image if possible, else a vector."""
    side, several = isqrt(dims // channels), (channels,) if channels > 1 else ()
    return (side, side, *several) if side > 1 and side * side * channels == dims else (dims,)


def sample_stretches(points: int) -> Iterator[tuple[int, int]]:
    """Yield stretches [first, last) of rows: all rows, or ``SAMPLE_POINTS`` rows in evenly spaced stretches."""
    if points <= SAMPLE_POINTS:
        yield from ((first, min(first + STRETCH_POINTS, points)) for first in range(0, points, STRETCH_POINTS))
        return
    for first in np.linspace(0, points - STRETCH_POINTS, SAMPLE_POINTS // STRETCH_POINTS).astype(int).tolist():
        yield first, first + STRETCH_POINTS


def sample_points(inference: Inference, source: Source, report: Reporter) -> Sample:
    """Infer points that are evenly spaced in the data."""
    stretches = list(sample_stretches(source.points))
    total = sum(last - first for first, last in stretches)
    rows, evidence, active, moments = [], [], [], np.zeros((3, inference.model.H))
    sums, squares, left, first_row = np.zeros(source.dims), 0.0, 0.0, source.read(0, 1)[0, : source.dims]
    report.start(total, 0)
    done = 0
    for first, last in stretches:
        Y = source.read(first, last)
        largest_magnitudes(Y[:, : source.dims], first, source.name)
        found = inference.block(Y, first)
        rows.append(np.arange(first, last))
        evidence.append(found["evidence"])
        chance, means = found.get("active", found["means"]), found["means"]
        active.append(chance.sum(1))
        points = np.asarray(Y[:, : source.dims], np.float64)
        gap = points - first_row  # avoids cancellation if all points have a large common mean
        sums, squares = sums + gap.sum(0), squares + float((gap * gap).sum())
        left += float(((points - found["reconstruction"]) ** 2).sum())
        for total_of, each in zip(moments, (chance, means, found.get("variances", 0.0) + means**2), strict=True):
            np.add.at(total_of, inference.model.latents.owners, each.sum(0))
        done += last - first
        report.update(done, f"{done} of {total} points inferred")
    count = total * source.dims
    wide = np.sqrt(max(0.0, squares / count - float(((sums / total) ** 2).mean())))
    lists = (np.concatenate(rows), np.concatenate(evidence), np.concatenate(active))
    values = value_moments(*moments) if inference.model.valued else None
    return Sample(source, *lists, moments[0] / total, float(wide), float(np.sqrt(left / count)), values)


def value_moments(active: np.ndarray, s: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Compute mean and standard deviation of values from the sums of b, s and s^2; NaN for inactive causes."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = s / active
        return np.stack([mean, np.sqrt(np.maximum(squares / active - mean**2, 0.0))])
