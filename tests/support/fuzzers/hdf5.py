"""Damaged HDF5 files as data of a run."""

import os

import h5py
import numpy as np
from damage import spoil

from parallel_et.data import files
from parallel_et.storage.subprocess_reader import SubprocessReader

from .npy import check


class LastingReader(SubprocessReader):
    """The reading process, kept for many files."""

    def __exit__(self, *error):
        pass


READER = LastingReader()
ROWS = np.random.default_rng(1).normal(size=(40, 6))
KINDS = {  # options of file and dataset; no scaleoffset, as HDF5 reads its damaged chunks differently each time
    "contiguous": ({}, {"data": ROWS}),
    "single": ({}, {"data": ROWS.astype("f4")}),
    "integers": ({"userblock_size": 512}, {"data": (99 * ROWS).astype("i2")}),
    "big-endian": ({}, {"data": ROWS, "dtype": ">f8"}),
    "half": ({}, {"data": ROWS.astype("f2")}),
    "truth": ({}, {"data": ROWS > 0}),
    "chunked": ({}, {"data": ROWS, "chunks": (7, 4)}),
    "gzip": ({}, {"data": ROWS, "chunks": (7, 6), "compression": "gzip", "shuffle": True, "fletcher32": True}),
    "lzf": ({}, {"data": ROWS, "chunks": (7, 6), "compression": "lzf"}),
    "growing": ({"libver": "latest"}, {"data": ROWS, "chunks": (7, 6), "maxshape": (None, 6)}),
    "latest": ({"libver": "latest"}, {"data": ROWS}),
    "wide": ({}, {"data": np.ones((4, 10, 300), "f4")}),
    "external": ({}, {"shape": ROWS.shape, "dtype": "f8", "external": [("raw", 0, h5py.h5f.UNLIMITED)]}),
}


def prepare(folder):
    os.chdir(folder)
    (folder / "raw").write_bytes(ROWS.tobytes())
    for name, (of_file, of_dataset) in KINDS.items():
        with h5py.File(f"seed-{name}.h5", "w", **of_file) as file:
            file.create_dataset("rows", **of_dataset)
            file.attrs["about"] = "words"
    with h5py.File("part.h5", "w") as file:
        file["rows"] = ROWS
    with h5py.File("seed-link.h5", "w") as file:
        file["rows"] = h5py.ExternalLink("part.h5", "/rows")
    with h5py.File("seed-soft.h5", "w") as file:
        file["group/table"] = ROWS
        file["rows"] = h5py.SoftLink("/group/table")
    for version in ("earliest", "latest"):
        layout = h5py.VirtualLayout((80, 6), "f8")
        for first in (0, 40):
            layout[first : first + 40] = h5py.VirtualSource("part.h5", "rows", (40, 6))
        with h5py.File(f"seed-virtual-{version}.h5", "w", libver=version) as file:
            file.create_virtual_dataset("rows", layout)
    with h5py.File("seed-numbered.h5", "w", libver="latest") as file:
        numbered(file, "part%b.h5", 2)
    for number in range(2):
        with h5py.File(f"part{number}.h5", "w") as file:
            file["rows"] = ROWS[:5]


def numbered(file, name, count):
    """Create a virtual dataset of five rows of each numbered file."""
    endless, properties = h5py.h5s.UNLIMITED, h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    table = h5py.h5s.create_simple((5 * count, 6), (endless, 6))
    table.select_hyperslab((0, 0), (endless, 1), (5, 1), (5, 6))
    properties.set_virtual(table, name.encode(), b"rows", h5py.h5s.create_simple((5, 6)))
    h5py.h5d.create(
        file.id, b"rows", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((5 * count, 6), (endless, 6)), properties
    )


def case(rng, folder):
    os.chdir(folder)
    files.SubprocessReader = lambda: READER
    raw = rng.choice(sorted(folder.glob("seed-*.h5"))).read_bytes()
    (folder / "spoilt.h5").write_bytes(spoil(rng, raw, 2600) if rng.random() < 0.95 else raw)
    rows = files.FileRows("spoilt.h5:/rows")
    check(rows)
    with h5py.File("spoilt.h5") as file:
        stored = file["rows"][()].reshape(rows.points, rows.dims)
    assert np.array_equal(stored, rows.read(0, rows.points)[:, : rows.dims], equal_nan=True)
