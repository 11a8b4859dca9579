"""Arrays of HDF5 files."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from typing import Any

import h5py
import numpy as np

from parallel_et.control.paths import describe_path
from parallel_et.errors import UserError
from parallel_et.storage.error_translation import check_fits_memory, one_line, translate_errors
from parallel_et.storage.stored_rows import files_of

WRITE_BYTES = 1 << 24
"""Bytes written at a time."""
CHUNK_ROWS = 256
"""Rows compressed together; few, as reading one row decompresses all of them."""


def split_location(location: str) -> tuple[str, str]:
    """Return the path and the dataset of ``file.h5:/dataset`` or ``file.npy``.

    An existing path may have colons in the names of its folders.
    """
    colons = [number for number, letter in enumerate(location) if letter == ":"]
    for end in (len(location), *colons):
        if os.path.isfile(location[:end]):
            return location[:end], location[end + 1 :]
    path, _, dataset = (location, "", "") if location.endswith(".npy") else location.partition(":")
    return path, dataset


@contextmanager
def open_hdf5(path: str) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading. A missing or damaged file is refused in one line."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: expected an HDF5 file, found {describe_path(path)}")
    try:
        file = h5py.File(path, "r")
    except FileNotFoundError:  # it was removed meanwhile
        raise UserError(f"{path}: expected an HDF5 file, found nothing there") from None
    except Exception as error:
        raise UserError(f"{path}: expected an HDF5 file, found something else ({one_line(error)})") from None
    with translate_errors(path, "a sound HDF5 file", "damage"), file:
        yield file


def dataset_of(file: h5py.File, path: str, name: str) -> h5py.Dataset:
    """Return the dataset of that name; UserError with the names in the file if there is none."""
    if name and isinstance(file.get(name), h5py.Dataset):
        return file[name]
    names: list[str] = []
    file.visititems(lambda key, item: names.append(f"/{key}") if isinstance(item, h5py.Dataset) else None)
    similar = get_close_matches(name, names, 1) or names[:8]
    found = ", ".join(similar) + (", …" if len(similar) < len(names) else "") if names else "no dataset at all"
    if names and not name:
        raise UserError(
            f"{path}: expected the name of a dataset, as in {path}:{names[0]}, found none; the file contains {found}"
        )
    raise UserError(f"{path}: expected a dataset {name}".rstrip() + f", found {found}")


def read_array(path: str, name: str) -> np.ndarray:
    """Return a whole dataset as float64."""
    with open_hdf5(path) as file:
        return _as_float64(dataset_of(file, path, name), path)


def read_group(path: str, name: str) -> dict[str, np.ndarray]:
    """Return all datasets of a group as float64."""
    with open_hdf5(path) as file:
        if not isinstance(file.get(name), h5py.Group):
            raise UserError(f"{path}: expected a group /{name}, found {', '.join('/' + key for key in file) or 'none'}")
        return {key: _as_float64(item, path) for key, item in file[name].items() if isinstance(item, h5py.Dataset)}


def read_attributes(path: str) -> dict[str, str]:
    """Return the attributes of an HDF5 file as text."""
    with open_hdf5(path) as file:
        return {name: str(value) for name, value in file.attrs.items()}


def _as_float64(dataset: h5py.Dataset, path: str) -> np.ndarray:
    if dataset.dtype.kind not in "fiub":
        raise UserError(f"{path}: {dataset.name}: expected numbers, found {dataset.dtype}")
    files_of(dataset)
    check_fits_memory(f"{path}: {dataset.name}", "an array", 2 * 8 * (dataset.size or 0))
    return np.asarray(dataset[()], np.float64)


def write_rows(source: Any, location: str, compression: str | None = None) -> None:
    """Write all rows of a data source in single precision to ``file.npy`` or ``file.h5:/dataset``."""
    path, name = split_location(location)
    shape = (source.points, source.dims)
    step = max(1, WRITE_BYTES // (8 * source.dims))
    with ExitStack() as stack:
        if path.endswith(".npy"):
            table = np.lib.format.open_memmap(path, "w+", np.float32, shape)
        else:
            file = stack.enter_context(h5py.File(path, "a"))
            chunks = (min(source.points, CHUNK_ROWS), source.dims) if compression else None
            table = file.create_dataset(name, shape, np.float32, chunks=chunks, compression=compression)
        for first in range(0, source.points, step):
            last = min(first + step, source.points)
            table[first:last] = source.read(first, last)[:, : source.dims]
