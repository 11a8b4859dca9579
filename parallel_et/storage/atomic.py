"""Atomic writes: a file is complete or absent, also after a crash of the machine."""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np

_image_numbers = count()


def write_atomically(path: Path, *parts: bytes) -> None:
    """Write ``<path>.part``, flush it to the disk, then rename it to ``path``.

    Existing files of both names are replaced. A link is replaced, and its target stays untouched.
    An OSError leaves no part behind.
    """
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    make_durable(path.parent)


def make_durable(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hdf5_image(groups: Mapping[str, Mapping[str, np.ndarray]], attributes: Mapping[str, Any]) -> bytes:
    """Return an HDF5 file as bytes: one dataset per array, and ``attributes`` of the root.

    The file is built in memory, so that a full disk makes a plain write fail and not the HDF5 library.
    """
    name = f"image-{next(_image_numbers)}"  # HDF5 refuses a name that another thread has open
    with h5py.File(name, "w", driver="core", backing_store=False) as file:
        for group, arrays in groups.items():
            for name, array in arrays.items():
                file[f"{group}/{name}"] = array
        file.attrs.update(attributes)
        file.flush()
        return file.id.get_file_image()


def unwritable_reason(path: str | os.PathLike[str], error: OSError, parents: bool = False) -> str:
    """Return why a path cannot be written. A missing folder is named, which the system does not do.

    Parameters
    ----------
    parents : whether the folders above the path were to be created as well
    """
    if error.errno != errno.ENOENT:
        return error.strerror or str(error)
    folder = Path(path).parent
    while parents and not folder.exists():
        folder = folder.parent
    return f"{folder}, where nothing can be created" if folder.exists() else f"no folder {folder}"
