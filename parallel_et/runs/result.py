"""The outcome of a run as one HDF5 file that anything can read: no pickles, one dataset a parameter."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from parallel_et.errors import UserError
from parallel_et.io.sealed import open_sealed, write_sealed
from parallel_et.io.whole import hdf5_image
from parallel_et.runs.checked import check_result, job_of
from parallel_et.runs.job import UntrustedError

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
