"""Rows of data files, and small arrays of HDF5 files."""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

import h5py
import numpy as np

from parallel_et.data.base import ArrayRows, Source
from parallel_et.errors import UserError


def open_hdf5(path: str) -> h5py.File:
    """An HDF5 file to read from, or the line that says why not."""
    if not Path(path).is_file():
        raise UserError(f"{path}: expected an HDF5 file, found nothing there")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"{path}: expected an HDF5 file, found something else ({error})") from None


def _dataset(file: h5py.File, path: str, name: str) -> h5py.Dataset:
    if name and isinstance(file.get(name), h5py.Dataset):
        return file[name]
    there: list[str] = []
    file.visititems(lambda key, item: there.append(f"/{key}") if isinstance(item, h5py.Dataset) else None)
    near = get_close_matches(name, there, 1) or there[:8]
    found = ", ".join(near) + (", …" if len(near) < len(there) else "") if there else "no dataset at all"
    raise UserError(f"{path}: expected a dataset {name or 'as in file.h5:/dataset'}, found {found}")


def read_array(path: str, name: str) -> np.ndarray:
    """One whole dataset as float64."""
    with open_hdf5(path) as file:
        return _numbers(_dataset(file, path, name), path)


def read_group(path: str, name: str) -> dict[str, np.ndarray]:
    """All datasets of one group as float64."""
    with open_hdf5(path) as file:
        if not isinstance(file.get(name), h5py.Group):
            raise UserError(f"{path}: expected a group /{name}, found {', '.join('/' + key for key in file) or 'none'}")
        return {key: _numbers(item, path) for key, item in file[name].items() if isinstance(item, h5py.Dataset)}


def _numbers(dataset: h5py.Dataset, path: str) -> np.ndarray:
    if dataset.dtype.kind not in "fiub":
        raise UserError(f"{path}: {dataset.name}: expected numbers, found {dataset.dtype}")
    return np.asarray(dataset[()], np.float64)


class FileRows(Source):
    """Rows of ``file.h5:/dataset`` or ``file.npy``; the file is open only while it is read."""

    def __init__(self, place: str) -> None:
        self.name = place
        self.path, _, self.dataset = place.partition(":")
        with self._open() as table:
            self.points, self.dims, self.shape = table.points, table.dims, table.shape
            self.dtype = table.dtype

    @contextmanager
    def _open(self) -> Iterator[ArrayRows]:
        if not self.path.endswith(".npy"):
            with open_hdf5(self.path) as file:
                yield ArrayRows(_dataset(file, self.path, self.dataset), self.name)
            return
        if not Path(self.path).is_file():
            raise UserError(f"{self.path}: expected a .npy file, found nothing there")
        try:
            table = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise UserError(f"{self.path}: expected a .npy file, found something else ({error})") from None
        yield ArrayRows(table, self.name)

    def read(self, first: int, last: int) -> np.ndarray:
        try:
            with self._open() as table:
                return table.read(first, last)
        except OSError as error:
            raise UserError(
                f"{self.name}: rows {first} to {last - 1}: expected numbers, found damage ({error})"
            ) from None
