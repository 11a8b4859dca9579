"""The result of a run as one HDF5 file that anything can read, and the checks of what was read back."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from parallel_et.core.limits import LARGEST, Limits, brief, check_arrays, limits_of
from parallel_et.core.scheme import initial_params_of, learners_of
from parallel_et.errors import UserError
from parallel_et.job.job import Job, UntrustedError, check_job
from parallel_et.storage.atomic import hdf5_image
from parallel_et.storage.checksum import open_sealed, write_sealed

RESULT, CHECKPOINT = "result", "checkpoint"
"""Values of the attribute ``kind``."""
GROUPS = ("params", "history", "snapshots", "truth", "data", "averages")


@dataclass(frozen=True)
class Result:
    """What a run has learned.

    Attributes
    ----------
    params : name -> final value; W (D, H), sigma (), pi ()
    history : name -> one value an iteration
    snapshots : name -> (k, ...), among them ``iteration`` (k,)
    truth : name -> the value behind the data, where a generator knows it
    data : with ``data.centre``, ``mean`` (D,), which was subtracted from all points
    about : job, seed, data fingerprint, sizes, versions, times
    averages : stage/name -> averaged statistics, of a run whose M-step has the points in batches
    """

    params: dict[str, np.ndarray]
    history: dict[str, np.ndarray]
    snapshots: dict[str, np.ndarray] = field(default_factory=dict)
    truth: dict[str, np.ndarray] = field(default_factory=dict)
    data: dict[str, np.ndarray] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    averages: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def W(self) -> np.ndarray:
        """The generative fields, (D, H)."""
        return self.params["W"]

    def write(self, path: Path) -> None:
        """Write it to an HDF5 file that is there as a whole or not at all; OSError if that fails."""
        write_sealed(path, hdf5_image({group: getattr(self, group) for group in GROUPS}, self.about))


def load(place: str | os.PathLike[str]) -> Result:
    """Read the result of a run, from its directory or its ``result.h5``; a checkpoint is refused."""
    path = Path(place)
    path = path / "result.h5" if path.is_dir() else path
    result = read_result(path, "the result of a run")
    if not is_finished(result.about, str(path)):
        found = f"a checkpoint after {result.about['iteration']} iterations"
        raise UserError(f"{path}: expected the result of a finished run, found {found}")
    return result


def is_finished(about: Mapping[str, Any], where: str) -> bool:
    """Return whether the attributes are those of a result, and not of a checkpoint.

    Files of older versions have no attribute ``kind``: their iterations are compared with those of their job, unless
    that takes code which must not be executed.
    """
    if "kind" in about:
        return str(about["kind"]) == RESULT
    try:
        anneal = job_of(about, where, {}).anneal
    except UntrustedError:
        return True
    stop = anneal.stop
    return bool(about["iteration"] >= anneal.iterations or (stop is not None and about["calm"] >= stop.iterations))


def read_result(path: Path, what: str) -> Result:
    """The result or checkpoint that a file holds, if all in it is sound; otherwise the line that says what is not.

    Parameters
    ----------
    what : it should be, in words
    """
    with open_sealed(path, what) as file:
        groups = {group: read_arrays(file, group, path) for group in GROUPS}
        groups["params"] = {name: np.asarray(value, np.float64) for name, value in groups["params"].items()}
        result = Result(**groups, about=dict(file.attrs))
    check_result(result, str(path))
    return result


def read_arrays(file: h5py.File, group: str, path: Path) -> dict[str, np.ndarray]:
    """All datasets in a group, if there is one, and below; each of numbers, of no more bytes than the file has."""
    found: dict[str, np.ndarray] = {}
    most = file.id.get_filesize()

    def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.dtype.kind not in "fiub" or item.dtype.itemsize > 8 or item.shape is None:
            raise UserError(f"{path}: {ascii(item.name)[1:-1]}: expected numbers, found {item.dtype}")
        if item.nbytes > most:
            raise UserError(f"{path}: {ascii(item.name)[1:-1]}: expected at most {most} bytes, found {item.nbytes}")
        found[name] = np.asarray(item[()], np.float64 if item.dtype.kind == "f" else None)

    there = file.get(group)
    if isinstance(there, h5py.Group):
        there.visititems(add)
    elif there is not None:
        raise UserError(f"{path}: /{group}: expected a group, found something else")
    return found


TEXTS = ("job", "name", "data fingerprint", "start")
COUNTS = ("seed", "N", "D", "iteration", "calm", "cooled", "restarts")
"""What every result says of itself, and ``seconds checkpoints``."""


def check_result(result: "Result", where: str) -> None:
    """Refuse the result or checkpoint of a file if anything in it does not fit its own job.

    Of a model or scheme of a file, which reading a run does not execute, only numbers are looked at.
    """
    about = result.about
    check_attributes(about, where)
    N, D, done = int(about["N"]), int(about["D"]), int(about["iteration"])
    data = {name: Limits((D,)) for name in result.data}
    try:
        job = job_of(about, where, {})
        data = {"mean": Limits((D,))} if job.data.centre else {}
        model = job.Model(job.model, D)
        params, causes, schedules = limits_of(model), model.latents.atoms, tuple(model.schedules)
        scheme = job.Scheme(job.inference, model.latents)
        own = initial_params_of(scheme, N, D)
        params |= {name: Limits(value.shape) for name, value in own.items()}
        averages = {
            f"{kind} {stage}/{name}": Limits(shape)
            for kind, learner in {"model": model, **learners_of(scheme)}.items()
            for number, stage in enumerate(learner.stages)
            if number == 0 or any(name.startswith(f"{kind} {stage}/") for name in result.averages)
            for name, shape in {**{n: one.shape for n, one in learner.statistics(stage).items()}, "points": ()}.items()
        }
    except UntrustedError:
        params, causes, schedules = (
            {name: Limits(v.shape, -LARGEST, LARGEST) for name, v in result.params.items()},
            N,
            (),
        )
        averages = {name: Limits(v.shape) for name, v in result.averages.items()}
    check_arrays(result.params, params, f"{where}: /params")
    if more := sorted(set(result.params) - set(params)):
        raise UserError(f"{where}: /params: expected {', '.join(params)}, found also {brief(more[0])}")
    check_arrays(result.data, data, f"{where}: /data")
    if more := sorted(set(result.data) - set(data)):
        raise UserError(f"{where}: /data: expected {', '.join(data) or 'nothing'}, found also {brief(more[0])}")

    if result.averages:
        check_arrays(result.averages, averages, f"{where}: /averages")

    told = {name: limits for name, limits in params.items() if len(limits.shape) < 2}
    ends = {f"{name}{end}": told[name] for name in told if told[name].shape for end in ("_low", "_high")}
    course = {
        "free_energy": Limits((done,)),
        "temperature": Limits((done,)),
        "points_used": Limits((done,), 0, N),
        "unused_causes": Limits((done,), 0, causes),
        **{name: limits._replace(shape=(done,)) for name, limits in (told | ends).items()},
    }
    others = {
        name: Limits((done,), any=name in schedules or not schedules) for name in result.history if name not in course
    }
    if "holdout_evidence" in others:  # not looked at after every iteration
        others["holdout_evidence"] = Limits((done,), any=True)
    check_arrays(result.history, (course if done else {}) | others, f"{where}: /history")

    if snapshots := result.snapshots:
        k = len(np.atleast_1d(snapshots.get("iteration", ())))
        arrays = {name: limits._replace(shape=(k, *limits.shape)) for name, limits in params.items() if limits.shape}
        check_arrays(snapshots, {"iteration": Limits((k,), 1, done), **arrays}, f"{where}: /snapshots")
        if snapshots["iteration"].dtype.kind not in "iu" or (np.diff(snapshots["iteration"]) <= 0).any():
            raise UserError(f"{where}: /snapshots/iteration: expected rising numbers, found others")
    truth = {name: Limits(values.shape) for name, values in result.truth.items()}
    if "T" in truth:  # masks and features
        rows, pixels = (max(1, len(np.atleast_1d(result.truth.get(name, 0)))) for name in ("T", "W"))
        pixels = pixels if pixels <= rows <= D else D // rows  # features of each pixel of an object, or of all of them
        truth |= {"W": Limits((pixels, None)), "T": Limits((rows, *result.truth["W"].shape[1:]))}
    elif "W" in truth:
        truth["W"] = Limits((D, None))
    check_arrays(result.truth, truth, f"{where}: /truth")


def check_attributes(about: Mapping[str, Any], where: str) -> None:
    """Refuse attributes that are missing, of another kind, or could not be written down again."""
    for names, kinds, words in (
        (TEXTS, (str,), "a text"),
        (COUNTS, (int, np.integer), "a whole number of 0 or more"),
        (("seconds checkpoints",), (int, float, np.number), "a number of 0 or more"),
    ):
        for name in names:
            value = about.get(name, 0 if name == "cooled" else None)  # which runs had not always
            if not isinstance(value, kinds) or not (isinstance(value, str) or 0 <= value < np.inf):
                raise UserError(f"{where}: attribute {name}: expected {words}, found {brief(value)}")
    if not isinstance(about.get("best", 0.0), float | np.floating) or np.isnan(about.get("best", 0.0)):
        raise UserError(f"{where}: attribute best: expected a number, found {brief(about['best'])}")
    for name in ("N", "D"):
        if not about[name]:
            raise UserError(f"{where}: attribute {name}: expected a positive number, found 0")
    for name, value in about.items():
        for text in (name, *([value] if isinstance(value, str) else [])):
            if text != text.encode(errors="replace").decode():
                raise UserError(f"{where}: attribute {brief(name)}: expected a text in UTF-8, found other bytes")
    try:
        datetime.fromisoformat(about["start"])
    except ValueError:
        raise UserError(f"{where}: attribute start: expected a time, found {brief(about['start'])}") from None


def job_of(about: Mapping[str, Any], where: str, files: Mapping[str, str]) -> Job:
    """The job that a file tells of in its attributes; its first mistake, if it has one, as one line.

    Of models and schemes of files only those are executed that are among ``files``, by section.
    """
    place = f"{where}: attribute job"
    try:
        table = tomllib.loads(about["job"])
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{place}: expected a text, found {brief(about.get('job'))}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: expected TOML, found a mistake: {brief(error)}") from None
    try:
        return check_job(table, str(about.get("name", "job")), place, files)
    except UntrustedError:
        raise
    except UserError as error:
        raise UserError(str(error).splitlines()[0]) from None
