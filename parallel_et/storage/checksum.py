"""HDF5 files with a checksum behind their data, which HDF5 ignores. Only files with a right checksum are opened."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import h5py

from parallel_et.control.paths import check_regular_file
from parallel_et.errors import UserError
from parallel_et.storage.atomic import write_atomically

TRAILER_MARK = b"\nparallel_et checkpoint sha256 "
"""Text between the HDF5 data and their checksum, which is written in hexadecimal digits."""
TRAILER_BYTES = len(TRAILER_MARK) + 64
READ_BYTES = 1 << 20
"""Bytes that are read at a time."""
HDF5_ERRORS = (OSError, AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
"""Exceptions that h5py raises for damaged files; they have no common base class."""


def checksum_trailer(image: bytes) -> bytes:
    """Return the bytes that follow an HDF5 file: the mark and the checksum."""
    return TRAILER_MARK + sha256(image).hexdigest().encode()


def write_with_checksum(path: Path, image: bytes) -> None:
    """Write an HDF5 file, given as bytes, with its checksum. An OSError leaves no file behind."""
    write_atomically(path, image, checksum_trailer(image))


@contextmanager
def open_with_checksum(path: Path, what: str) -> Iterator[h5py.File]:
    """Open a file of ``write_with_checksum`` for reading. HDF5 opens it only if its checksum is right.

    Parameters
    ----------
    what : description of the expected file, for error messages
    """
    try:
        if not path.is_file():
            raise UserError(f"{path}: expected {what}, found {'no file' if path.exists() else 'nothing there'}")
        with path.open("rb") as raw:
            right = verify(raw)
            if right is None:
                why = "it is truncated, changed, from an older version, or something else"
                raise UserError(f"{path}: expected {what}, found a file without its checksum at the end: {why}")
            if not right:
                raise UserError(f"{path}: expected {what}, found a damaged one: its checksum is wrong")
            with h5py.File(raw, "r") as file:
                yield file
    except HDF5_ERRORS as error:
        raise UserError(f"{path}: expected {what}, found {' '.join(str(error).split())}") from None


def check_checksum(path: str) -> None:
    """Refuse a file with a wrong checksum. Files without a checksum are accepted."""
    check_regular_file(path, "an HDF5 file")
    try:
        with open(path, "rb") as raw:
            right = verify(raw)
    except OSError:  # reading the file will report it
        return
    if right is False:
        raise UserError(f"{path}: expected a sound HDF5 file, found a damaged one: its checksum is wrong")


def verify(raw: BinaryIO) -> bool | None:
    """Return whether the checksum at the end of an open file is right; None if the file has none."""
    left = max(0, raw.seek(0, os.SEEK_END) - TRAILER_BYTES)
    raw.seek(left)
    tail = raw.read(TRAILER_BYTES)
    if not tail.startswith(TRAILER_MARK):
        return None
    digest = sha256()
    raw.seek(0)
    while left and (piece := raw.read(min(left, READ_BYTES))):
        digest.update(piece)
        left -= len(piece)
    raw.seek(0)
    return digest.hexdigest().encode() == tail.removeprefix(TRAILER_MARK)
