"""Results of a small run, and damage to files with a checksum."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from mpi4py import MPI
from problems import job_table

from parallel_et import fit
from parallel_et.runs.result import Result
from parallel_et.storage.checksum import TRAILER_BYTES, checksum_trailer


def small_result(name: str = "linca") -> Result:
    """Return the result of a run of three iterations, D = 4, H = 3, with snapshots and true parameters."""
    table = job_table({"name": name, "causes": 3}, {"candidates": 2, "gamma": 2}, {"temperature": 2.0})
    table["run"]["snapshots"] = 1
    Y = np.abs(np.random.default_rng(1).normal(size=(40, 4)))
    return replace(fit(table, Y, comm=MPI.COMM_SELF), truth={"W": np.ones((4, 2)), "pi": np.array(0.5)})


def change(path: Path, how: Callable[[h5py.File], object]) -> None:
    """Change the content of a file and its checksum."""
    content = BytesIO(path.read_bytes()[:-TRAILER_BYTES])
    with h5py.File(content, "r+") as file:
        how(file)
    path.write_bytes(content.getvalue() + checksum_trailer(content.getvalue()))


def put(name: str, value: object) -> Callable[[h5py.File], None]:
    """Return a function that sets a dataset, or an attribute if the name has no slash. None deletes it."""

    def how(file: h5py.File) -> None:
        table = file if "/" in name else file.attrs
        if name in table:
            del table[name]
        if value is not None:
            table[name] = value

    return how


VALUES: tuple[Any, ...] = (
    *(np.nan, np.inf, -np.inf, -1.0, 0.0, 0.5, 1.0, 1e-300, 1e300, 5e-324, 3, -3, 2**63 - 1, -(2**63), True),
    *("", "1e400", "words", "two\nlines", "a = 1e400", "[model]\nname = 'mca'", "[" * 5000, b"\xff\xfe", 1j),
    *([], [1.0], [[1.0, 2.0]], np.ones((4, 3)), np.ones((3, 4), np.float32), np.zeros((2, 2, 2), ">i4")),
    *(np.ones(3), np.arange(3), np.full((4, 3), np.nan), np.float16(2.0), np.longdouble(2.0), np.bytes_(b"bytes")),
    *(h5py.Empty("f8"), np.zeros(3, [("a", "f8")]), np.array(["a", "b"], object)),
)
"""Wrong values for datasets and attributes."""


def spoil(rng: np.random.Generator, content: bytes) -> bytes:
    """Flip bits; clear, delete or repeat a piece; cut off or extend the end."""
    spoilt = bytearray(content)
    first, length = int(rng.integers(len(spoilt))), int(rng.integers(1, 200))
    match rng.integers(6):
        case 0:
            for index in rng.integers(len(spoilt), size=rng.integers(1, 6)):
                spoilt[index] ^= 1 << int(rng.integers(8))
        case 1:
            spoilt[first : first + length] = bytes(len(spoilt[first : first + length]))
        case 2:
            del spoilt[first:]
        case 3:
            del spoilt[first : first + length]
        case 4:
            spoilt[first:first] = spoilt[first // 2 : first // 2 + length]
        case _:
            spoilt += rng.bytes(length)
    return bytes(spoilt)


def disturb(rng: np.random.Generator, file: h5py.File) -> None:
    """Remove, rename or replace datasets and attributes of an HDF5 file."""
    datasets: list[str] = []
    file.visititems(lambda name, item: datasets.append(name))
    for _ in range(rng.integers(1, 4)):
        table, names = (file, datasets) if rng.random() < 0.6 else (file.attrs, list(file.attrs))
        name = names[rng.integers(len(names))] if names else ""
        if not name or name not in table:
            continue
        old, value = table[name], VALUES[rng.integers(len(VALUES))]
        way = rng.integers(6)
        if way == 0 and isinstance(old, h5py.Dataset) and old.size and old.dtype.kind in "fiu":
            flat = np.atleast_1d(old[()]).copy()
            raw = flat.view(np.uint8).reshape(-1)
            raw[rng.integers(raw.size)] ^= 1 << int(rng.integers(8))  # a number that is wrong by a bit
            value, way = flat.reshape(old.shape), 4
        elif way == 1 and isinstance(old, str) and old:
            value, way = spoil(rng, old.encode(errors="replace")), 4
        elif way == 2 and isinstance(old, h5py.Dataset) and old.ndim:
            value, way = old[()][:-1] if rng.random() < 0.5 else old[()][..., None], 4
        del table[name]
        if way >= 3:
            with suppress(OSError, TypeError, ValueError, RuntimeError):  # HDF5 cannot store every value
                table[f"{name}{rng.choice(['x', '/y', chr(10)]) if way == 3 else ''}"] = value
