"""Files that are there as a whole or not at all, also after a crash of the machine."""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np

_numbers = count()


def write_whole(path: Path, *parts: bytes) -> None:
    """Write a file beside, flush it to the disk, then give it its name; OSError if that fails, and no trace of it.

    What has one of the two names goes away; if it is a link, what it leads to is not touched.
    """
    beside = path.with_name(path.name + ".part")
    beside.unlink(missing_ok=True)
    try:
        with open(beside, "xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
    make_durable(path.parent)


def make_durable(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hdf5_image(groups: Mapping[str, Mapping[str, np.ndarray]], about: Mapping[str, Any]) -> bytes:
    """An HDF5 file as bytes: one dataset an array, ``about`` as attributes of the root.

    Made in memory, so that a disk that is full fails a plain write and not the HDF5 library.
    """
    name = f"image-{next(_numbers)}"  # HDF5 refuses a name that another thread has open
    with h5py.File(name, "w", driver="core", backing_store=False) as file:
        for group, arrays in groups.items():
            for name, array in arrays.items():
                file[f"{group}/{name}"] = array
        file.attrs.update(about)
        file.flush()
        return file.id.get_file_image()


def why_no_place(path: str | os.PathLike[str], error: OSError, parents: bool = False) -> str:
    """Why nothing can be written at a path; of what is missing, what that is, which the system does not say.

    ``parents`` : whether the folders above it were to be made as well
    """
    if error.errno != errno.ENOENT:
        return error.strerror or str(error)
    folder = Path(path).parent
    while parents and not folder.exists():
        folder = folder.parent
    return f"{folder}, where nothing can be made" if folder.exists() else f"no folder {folder}"
