"""HDF5 files that carry their checksum behind their data, which HDF5 does not mind: no other is ever opened as ours."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import h5py

from parallel_et.control.paths import check_plain
from parallel_et.errors import UserError
from parallel_et.storage.atomic import write_whole

MARK = b"\nparallel_et checkpoint sha256 "
"""Stands between the HDF5 data and their checksum, in hexadecimal digits."""
TAIL = len(MARK) + 64
STEP = 1 << 20
"""Bytes that are read at a time."""
DAMAGE = (OSError, AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
"""What h5py says of files that are not what they seem; it has no common kind."""


def seal(image: bytes) -> bytes:
    """What stands behind an HDF5 file."""
    return MARK + sha256(image).hexdigest().encode()


def write_sealed(path: Path, image: bytes) -> None:
    """Write an HDF5 file, given as bytes, with its checksum; OSError if that fails, and no trace of it."""
    write_whole(path, image, seal(image))


@contextmanager
def open_sealed(path: Path, what: str) -> Iterator[h5py.File]:
    """A file that ``write_sealed`` wrote, to read from; HDF5 gets to see it only if its checksum is right.

    Parameters
    ----------
    what : it should be, in words, for the one line that says what it is instead
    """
    try:
        if not path.is_file():
            raise UserError(f"{path}: expected {what}, found {'no file' if path.exists() else 'nothing there'}")
        with path.open("rb") as raw:
            right = verify(raw)
            if right is None:
                why = "it is cut off, changed, of an older version or something else"
                raise UserError(f"{path}: expected {what}, found a file without its checksum at the end: {why}")
            if not right:
                raise UserError(f"{path}: expected {what}, found a damaged one: its checksum is wrong")
            with h5py.File(raw, "r") as file:
                yield file
    except DAMAGE as error:
        raise UserError(f"{path}: expected {what}, found {' '.join(str(error).split())}") from None


def check_seal(path: str) -> None:
    """Refuse a file that has a checksum, and a wrong one; any other will do."""
    check_plain(path, "an HDF5 file")
    try:
        with open(path, "rb") as raw:
            right = verify(raw)
    except OSError:  # who reads it will tell
        return
    if right is False:
        raise UserError(f"{path}: expected a sound HDF5 file, found a damaged one: its checksum is wrong")


def verify(raw: BinaryIO) -> bool | None:
    """Whether the checksum at the end of an open file is right; None if it has none."""
    left = max(0, raw.seek(0, os.SEEK_END) - TAIL)
    raw.seek(left)
    tail = raw.read(TAIL)
    if not tail.startswith(MARK):
        return None
    digest = sha256()
    raw.seek(0)
    while left and (piece := raw.read(min(left, STEP))):
        digest.update(piece)
        left -= len(piece)
    raw.seek(0)
    return digest.hexdigest().encode() == tail.removeprefix(MARK)
