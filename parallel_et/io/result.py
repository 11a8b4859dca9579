"""The outcome of a run as one HDF5 file that anything can read: no pickles, one dataset a parameter."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from parallel_et.errors import UserError
from parallel_et.io.files import open_hdf5
from parallel_et.io.whole import hdf5_image

GROUPS = ("params", "history", "snapshots", "truth")


@dataclass(frozen=True)
class Result:
    """What a run has learned.

    Attributes
    ----------
    params : name -> final value; W (D, H), sigma (), pi ()
    history : name -> one value an iteration
    snapshots : name -> (k, ...), among them ``iteration`` (k,)
    truth : name -> the value behind the data, where a generator knows it
    about : job, seed, data fingerprint, sizes, versions, times
    """

    params: dict[str, np.ndarray]
    history: dict[str, np.ndarray]
    snapshots: dict[str, np.ndarray] = field(default_factory=dict)
    truth: dict[str, np.ndarray] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def W(self) -> np.ndarray:
        """The generative fields, (D, H)."""
        return self.params["W"]

    def image(self) -> bytes:
        """As an HDF5 file."""
        return hdf5_image({group: getattr(self, group) for group in GROUPS}, self.about)


def load(place: str | os.PathLike[str]) -> Result:
    """The result of a run, from its directory or its ``result.h5``."""
    path = Path(place)
    path = path / "result.h5" if path.is_dir() else path
    with open_hdf5(str(path)) as file:
        if "params" not in file:
            raise UserError(f"{path}: expected the result of a run, found no group /params")
        return read_result(file)


def read_result(file: h5py.File) -> Result:
    """The result that an open HDF5 file holds."""
    groups: dict[str, dict[str, np.ndarray]] = {}
    for group in GROUPS:
        arrays = groups.setdefault(group, {})
        if group in file:
            file[group].visititems(
                lambda name, item, into=arrays: (
                    into.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
                )
            )
    return Result(**groups, about=dict(file.attrs))
