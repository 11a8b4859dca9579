"""The result of a run as an HDF5 file, and the validation of results and checkpoints that are read."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from parallel_et.core.limits import MAX_PARAMETER, Limits, check_arrays, limits_of, shorten
from parallel_et.core.scheme import initial_params_of, trainable_parts
from parallel_et.errors import UserError
from parallel_et.job.job import Job, UntrustedError, check_job
from parallel_et.storage.atomic import hdf5_image
from parallel_et.storage.checksum import open_with_checksum, write_with_checksum

RESULT, CHECKPOINT = "result", "checkpoint"
"""Values of the attribute ``kind``."""
GROUPS = ("params", "history", "snapshots", "truth", "data", "averages")


@dataclass(frozen=True)
class Result:
    """The result or checkpoint of a run.

    Attributes
    ----------
    params : name -> value; W (D, H), sigma (), pi ()
    history : name -> (iterations,) values
    snapshots : name -> (k, ...) values at k iterations; ``iteration`` (k,) contains their numbers
    truth : name -> ground truth of artificial data
    data : with ``data.centre``: ``mean`` (D,), which was subtracted from all points
    metadata : job, seed, data fingerprint, sizes, versions, times
    averages : stage/name -> averaged statistics of a run with minibatches
    """

    params: dict[str, np.ndarray]
    history: dict[str, np.ndarray]
    snapshots: dict[str, np.ndarray] = field(default_factory=dict)
    truth: dict[str, np.ndarray] = field(default_factory=dict)
    data: dict[str, np.ndarray] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    averages: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def W(self) -> np.ndarray:
        """The generative fields, (D, H)."""
        return self.params["W"]

    def write(self, path: Path) -> None:
        """Write the result to an HDF5 file, atomically and with a checksum; raise OSError on failure."""
        write_with_checksum(path, hdf5_image({group: getattr(self, group) for group in GROUPS}, self.metadata))


def load(path: str | os.PathLike[str]) -> Result:
    """Read the result of a finished run, from its directory or its ``result.h5``."""
    file = Path(path)
    file = file / "result.h5" if file.is_dir() else file
    result = read_result(file, "the result of a run")
    if not is_finished(result.metadata, str(file)):
        found = f"a checkpoint after {result.metadata['iteration']} iterations"
        raise UserError(f"{file}: expected the result of a finished run, found {found}")
    return result


def is_finished(metadata: Mapping[str, Any], where: str) -> bool:
    """Return whether the metadata are from a result, and not from a checkpoint.

    Files of older versions have no attribute ``kind``. Their iterations are compared with the iterations of their job,
    unless this requires code that must not be executed.
    """
    if "kind" in metadata:
        return str(metadata["kind"]) == RESULT
    try:
        anneal = job_of(metadata, where, {}).anneal
    except UntrustedError:
        return True
    stop = anneal.stop
    converged = stop is not None and metadata["calm"] >= stop.iterations
    return bool(converged or metadata["iteration"] >= anneal.iterations)


def read_result(path: Path, what: str) -> Result:
    """Read and validate a result or checkpoint; raise UserError if the file is not valid.

    ``what`` is the expected content, for the error message.
    """
    with open_with_checksum(path, what) as file:
        groups = {group: read_arrays(file, group, path) for group in GROUPS}
        groups["params"] = {name: np.asarray(value, np.float64) for name, value in groups["params"].items()}
        result = Result(**groups, metadata=dict(file.attrs))
    check_result(result, str(path))
    return result


def read_arrays(file: h5py.File, group: str, path: Path) -> dict[str, np.ndarray]:
    """Return all datasets of a group and its subgroups; raise UserError if a dataset is not numeric or too large."""
    found: dict[str, np.ndarray] = {}
    file_bytes = file.id.get_filesize()

    def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.dtype.kind not in "fiub" or item.dtype.itemsize > 8 or item.shape is None:
            raise UserError(f"{path}: {ascii(item.name)[1:-1]}: expected numbers, found {item.dtype}")
        if item.nbytes > file_bytes:
            raise UserError(
                f"{path}: {ascii(item.name)[1:-1]}: expected at most {file_bytes} bytes, found {item.nbytes}"
            )
        found[name] = np.asarray(item[()], np.float64 if item.dtype.kind == "f" else None)

    item = file.get(group)
    if isinstance(item, h5py.Group):
        item.visititems(add)
    elif item is not None:
        raise UserError(f"{path}: /{group}: expected a group, found something else")
    return found


TEXTS = ("job", "name", "data fingerprint", "start")
COUNTS = ("seed", "N", "D", "iteration", "calm", "cooled", "restarts")
"""Metadata of every result that are text and integers; ``seconds checkpoints`` is a number."""


def check_result(result: "Result", where: str) -> None:
    """Raise UserError if a value of a result or checkpoint does not fit its job.

    The code of a custom model or scheme is not executed here: only the numbers are checked.
    """
    metadata = result.metadata
    check_attributes(metadata, where)
    N, D, done = int(metadata["N"]), int(metadata["D"]), int(metadata["iteration"])
    data = {name: Limits((D,)) for name in result.data}
    try:
        job = job_of(metadata, where, {})
        data = {"mean": Limits((D,))} if job.data.centre else {}
        model = job.Model(job.model, D)
        params, causes, schedules = limits_of(model), model.latents.atoms, tuple(model.schedules)
        scheme = job.Scheme(job.inference, model.latents)
        own = initial_params_of(scheme, N, D)
        params |= {name: Limits(value.shape) for name, value in own.items()}
        averages = {
            f"{kind} {stage}/{name}": Limits(shape)
            for kind, learner in {"model": model, **trainable_parts(scheme)}.items()
            for number, stage in enumerate(learner.stages)
            if number == 0 or any(name.startswith(f"{kind} {stage}/") for name in result.averages)
            for name, shape in {**{n: one.shape for n, one in learner.statistics(stage).items()}, "points": ()}.items()
        }
    except UntrustedError:
        params, causes, schedules = (
            {name: Limits(v.shape, -MAX_PARAMETER, MAX_PARAMETER) for name, v in result.params.items()},
            N,
            (),
        )
        averages = {name: Limits(v.shape) for name, v in result.averages.items()}
    check_arrays(result.params, params, f"{where}: /params")
    if more := sorted(set(result.params) - set(params)):
        raise UserError(f"{where}: /params: expected {', '.join(params)}, found also {shorten(more[0])}")
    check_arrays(result.data, data, f"{where}: /data")
    if more := sorted(set(result.data) - set(data)):
        raise UserError(f"{where}: /data: expected {', '.join(data) or 'nothing'}, found also {shorten(more[0])}")

    if result.averages:
        check_arrays(result.averages, averages, f"{where}: /averages")

    scalars = {name: limits for name, limits in params.items() if len(limits.shape) < 2}
    ends = {f"{name}{end}": scalars[name] for name in scalars if scalars[name].shape for end in ("_low", "_high")}
    expected = {
        "free_energy": Limits((done,)),
        "temperature": Limits((done,)),
        "points_used": Limits((done,), 0, N),
        "unused_causes": Limits((done,), 0, causes),
        **{name: limits._replace(shape=(done,)) for name, limits in (scalars | ends).items()},
    }
    others = {
        name: Limits((done,), any=name in schedules or not schedules) for name in result.history if name not in expected
    }
    if "holdout_evidence" in others:  # NaN in iterations without evaluation
        others["holdout_evidence"] = Limits((done,), any=True)
    check_arrays(result.history, (expected if done else {}) | others, f"{where}: /history")

    if snapshots := result.snapshots:
        k = len(np.atleast_1d(snapshots.get("iteration", ())))
        arrays = {name: limits._replace(shape=(k, *limits.shape)) for name, limits in params.items() if limits.shape}
        check_arrays(snapshots, {"iteration": Limits((k,), 1, done), **arrays}, f"{where}: /snapshots")
        if snapshots["iteration"].dtype.kind not in "iu" or (np.diff(snapshots["iteration"]) <= 0).any():
            raise UserError(f"{where}: /snapshots/iteration: expected rising numbers, found others")
    truth = {name: Limits(values.shape) for name, values in result.truth.items()}
    if "T" in truth:  # masks T and features W
        rows, pixels = (max(1, len(np.atleast_1d(result.truth.get(name, 0)))) for name in ("T", "W"))
        pixels = (
            pixels if pixels <= rows <= D else D // rows
        )  # features of each pixel of an object, or of the whole object
        truth |= {"W": Limits((pixels, None)), "T": Limits((rows, *result.truth["W"].shape[1:]))}
    elif "W" in truth:
        truth["W"] = Limits((D, None))
    check_arrays(result.truth, truth, f"{where}: /truth")


def check_attributes(metadata: Mapping[str, Any], where: str) -> None:
    """Raise UserError for metadata that are missing, of another type, or cannot be written again."""
    for names, kinds, words in (
        (TEXTS, (str,), "a text"),
        (COUNTS, (int, np.integer), "a whole number of 0 or more"),
        (("seconds checkpoints",), (int, float, np.number), "a number of 0 or more"),
    ):
        for name in names:
            value = metadata.get(name, 0 if name == "cooled" else None)  # older versions have no ``cooled``
            if not isinstance(value, kinds) or not (isinstance(value, str) or 0 <= value < np.inf):
                raise UserError(f"{where}: attribute {name}: expected {words}, found {shorten(value)}")
    if not isinstance(metadata.get("best", 0.0), float | np.floating) or np.isnan(metadata.get("best", 0.0)):
        raise UserError(f"{where}: attribute best: expected a number, found {shorten(metadata['best'])}")
    for name in ("N", "D"):
        if not metadata[name]:
            raise UserError(f"{where}: attribute {name}: expected a positive number, found 0")
    for name, value in metadata.items():
        for text in (name, *([value] if isinstance(value, str) else [])):
            if text != text.encode(errors="replace").decode():
                raise UserError(f"{where}: attribute {shorten(name)}: expected a text in UTF-8, found other bytes")
    try:
        datetime.fromisoformat(metadata["start"])
    except ValueError:
        raise UserError(f"{where}: attribute start: expected a time, found {shorten(metadata['start'])}") from None


def job_of(metadata: Mapping[str, Any], where: str, files: Mapping[str, str]) -> Job:
    """Return the job in the metadata of a file; raise UserError with its first error.

    ``files`` maps sections of the job to the files of a custom model or scheme that may be executed.
    """
    place = f"{where}: attribute job"
    try:
        table = tomllib.loads(metadata["job"])
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{place}: expected a text, found {shorten(metadata.get('job'))}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: expected TOML, found an error: {shorten(error)}") from None
    try:
        return check_job(table, str(metadata.get("name", "job")), place, files)
    except UntrustedError:
        raise
    except UserError as error:
        raise UserError(str(error).splitlines()[0]) from None
