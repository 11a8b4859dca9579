"""Arrays of HDF5 files."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from typing import Any

import h5py
import numpy as np

from parallel_et.control.paths import kind_of
from parallel_et.errors import UserError
from parallel_et.storage.error_translation import brief, check_room, gate
from parallel_et.storage.stored_rows import files_of

PIECE = 1 << 24
"""Bytes that are written at a time."""
CHUNK = 256
"""Rows that are compressed together: whole rows, and few, as all are needed to read one."""


def split_place(place: str) -> tuple[str, str]:
    """Return the path and the dataset of ``file.h5:/dataset`` or ``file.npy``.

    A path that exists is taken as it stands, also where its folders have a colon in their names.
    """
    colons = [number for number, letter in enumerate(place) if letter == ":"]
    for end in (len(place), *colons):
        if os.path.isfile(place[:end]):
            return place[:end], place[end + 1 :]
    path, _, dataset = (place, "", "") if place.endswith(".npy") else place.partition(":")
    return path, dataset


@contextmanager
def open_hdf5(path: str) -> Iterator[h5py.File]:
    """An HDF5 file to read from; one that is missing, damaged or something else is told in one line."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: expected an HDF5 file, found {kind_of(path)}")
    try:
        file = h5py.File(path, "r")
    except FileNotFoundError:  # it went away meanwhile
        raise UserError(f"{path}: expected an HDF5 file, found nothing there") from None
    except Exception as error:
        raise UserError(f"{path}: expected an HDF5 file, found something else ({brief(error)})") from None
    with gate(path, "a sound HDF5 file", "damage"), file:
        yield file


def dataset_of(file: h5py.File, path: str, name: str) -> h5py.Dataset:
    """The dataset of that name, or the line that says what is there instead."""
    if name and isinstance(file.get(name), h5py.Dataset):
        return file[name]
    there: list[str] = []
    file.visititems(lambda key, item: there.append(f"/{key}") if isinstance(item, h5py.Dataset) else None)
    near = get_close_matches(name, there, 1) or there[:8]
    found = ", ".join(near) + (", …" if len(near) < len(there) else "") if there else "no dataset at all"
    if there and not name:
        raise UserError(f"{path}: expected a dataset of it, as in {path}:{there[0]}, found none named; it has {found}")
    raise UserError(f"{path}: expected a dataset {name}".rstrip() + f", found {found}")


def read_array(path: str, name: str) -> np.ndarray:
    """One whole dataset as float64."""
    with open_hdf5(path) as file:
        return _numbers(dataset_of(file, path, name), path)


def read_group(path: str, name: str) -> dict[str, np.ndarray]:
    """All datasets of one group as float64."""
    with open_hdf5(path) as file:
        if not isinstance(file.get(name), h5py.Group):
            raise UserError(f"{path}: expected a group /{name}, found {', '.join('/' + key for key in file) or 'none'}")
        return {key: _numbers(item, path) for key, item in file[name].items() if isinstance(item, h5py.Dataset)}


def read_attributes(path: str) -> dict[str, str]:
    """What an HDF5 file says of itself, in words."""
    with open_hdf5(path) as file:
        return {name: str(value) for name, value in file.attrs.items()}


def _numbers(dataset: h5py.Dataset, path: str) -> np.ndarray:
    if dataset.dtype.kind not in "fiub":
        raise UserError(f"{path}: {dataset.name}: expected numbers, found {dataset.dtype}")
    files_of(dataset)
    check_room(f"{path}: {dataset.name}", "an array", 2 * 8 * (dataset.size or 0))
    return np.asarray(dataset[()], np.float64)


def write_rows(source: Any, place: str, compression: str | None = None) -> None:
    """Write all rows of a source of data in single precision to ``file.npy`` or ``file.h5:/dataset``, in pieces."""
    path, name = split_place(place)
    shape, step = (source.points, source.dims), max(1, PIECE // (8 * source.dims))
    with ExitStack() as stack:
        if path.endswith(".npy"):
            table = np.lib.format.open_memmap(path, "w+", np.float32, shape)
        else:
            file = stack.enter_context(h5py.File(path, "a"))
            chunks = (min(source.points, CHUNK), source.dims) if compression else None
            table = file.create_dataset(name, shape, np.float32, chunks=chunks, compression=compression)
        for first in range(0, source.points, step):
            last = min(first + step, source.points)
            table[first:last] = source.read(first, last)[:, : source.dims]
