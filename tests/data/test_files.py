import os
import socket

import h5py
import numpy as np
import pytest
from scipy import sparse

from parallel_et.data.base import ArrayRows
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.job.job import read_job
from parallel_et.runs.setup import largest_magnitudes
from parallel_et.storage.checksum import check_checksum


@pytest.mark.parametrize(
    "stored, read",
    [("float64", "float64"), ("float32", "float32"), ("int16", "float64"), ("uint8", "float64"), ("bool", "float64")],
)
@pytest.mark.parametrize("kind", ["h5", "npy"])
def test_rows_are_read_as_they_are_and_integers_converted(tmp_path, kind, stored, read):
    table = (np.random.default_rng(1).random((17, 2, 3)) * 9).astype(stored)
    if kind == "npy":
        np.save(tmp_path / "d.npy", table)
        location = f"{tmp_path}/d.npy"
    else:
        with h5py.File(tmp_path / "d.h5", "w") as file:
            file["a/rows"] = table
        location = f"{tmp_path}/d.h5:/a/rows"
    rows = FileRows(location)
    assert (rows.points, rows.dims, rows.shape) == (17, 6, (2, 3))
    part = rows.read(5, 9)
    assert part.dtype == read
    assert part.flags.c_contiguous
    assert part.flags.writeable
    np.testing.assert_array_equal(part, table[5:9].reshape(4, 6))
    assert rows.read(4, 4).shape == (0, 6)


LAYOUTS = {  # how the rows lie in the file, and whether plain reads find them there
    "after a user block": ({"userblock_size": 1024}, {}, True),
    "big-endian": ({}, {"dtype": ">f4"}, True),
    "half precision": ({}, {"dtype": "f2"}, True),
    "in chunks": ({}, {"chunks": (5, 4)}, False),
    "compressed": ({}, {"chunks": (5, 4), "compression": "gzip"}, False),
    "in other files": ({}, {"external": [("raw-1", 0, 100), ("raw-2", 8, h5py.h5f.UNLIMITED)]}, False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hdf5_rows_are_read_however_they_lie(layout, tmp_path, monkeypatch):
    of_file, of_dataset, plain = LAYOUTS[layout]
    monkeypatch.chdir(tmp_path)
    table = (np.random.default_rng(1).random((17, 6)) * 9).astype(np.float16).astype(np.float32)
    with h5py.File("d.h5", "w", **of_file) as file:
        file.create_dataset("rows", **({"shape": table.shape, "dtype": "f4"} | of_dataset))[...] = table
    rows = FileRows("d.h5:/rows")
    assert (rows._offset is not None) == plain
    np.testing.assert_array_equal(rows.read(3, 15), table[3:15])


def test_virtual_rows_and_columns_first_are_left_to_their_libraries(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = np.random.default_rng(1).random((17, 6))
    np.save("d.npy", np.asfortranarray(table))
    with h5py.File("d.h5", "w") as file:
        file["part"] = table
        layout = h5py.VirtualLayout((17, 6), float)
        layout[:] = h5py.VirtualSource(file["part"])
        file.create_virtual_dataset("rows", layout)
    for location in ("d.npy", "d.h5:/rows"):
        assert FileRows(location)._offset is None
        np.testing.assert_array_equal(FileRows(location).read(3, 15), table[3:15])


HEADERS = [  # each was the end of NumPy with another kind of error
    "{'descr': '<f8', 'fortran_order': False, 'shape': (40, 6",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (18446744073709551616, 6), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-40, -6), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (41, 6), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': 40, }",
    "{'descr': ('<f8', -3), 'fortran_order': False, 'shape': (40, 6), }",
    "{'descr': {}, 'fortran_order': False, 'shape': (40, 6), }",
    "{'descr': '<f8', [1]: 2, 'fortran_order': False, 'shape': (40, 6), }",
    "(" * 300 + "1" + ")" * 300,
    "{'descr': '|O', 'fortran_order': False, 'shape': (40, 6), }",
    "{'descr': '(3,)<f8', 'fortran_order': False, 'shape': (40, 2), }",
    "\x00\x01\n\n  \t",
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_npy_file_whose_header_makes_no_sense_is_refused_in_one_line(header, tmp_path):
    size = len(header).to_bytes(2, "little")
    (tmp_path / "d.npy").write_bytes(b"\x93NUMPY\1\0" + size + header.encode() + bytes(40 * 6 * 8))
    with pytest.raises(UserError, match=r"d\.npy: expected .*, found ") as caught:
        FileRows(f"{tmp_path}/d.npy")
    assert str(caught.value).isprintable()


def test_a_value_that_is_not_finite_is_named_in_any_precision():
    for kind in (np.float32, np.float64):
        rows = np.zeros((4, 3), kind)
        rows[2, 1] = np.inf
        with pytest.raises(UserError, match=r"data: row 12: expected numbers below 1e\+100, found inf in column 1"):
            largest_magnitudes(rows, 10, "data")


@pytest.mark.parametrize("location", ["d.npy", "d.h5:/plain", "d.h5:/chunked"])
def test_a_file_that_vanishes_while_it_is_read_is_not_called_damaged(location, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("d.npy", np.ones((40, 6)))
    with h5py.File("d.h5", "w") as file:
        file["plain"] = np.ones((40, 6))
        file.create_dataset("chunked", data=np.ones((40, 6)), chunks=(8, 6))
    rows, read, path = FileRows(location), FileRows._read_unchecked, location.partition(":")[0]
    monkeypatch.setattr(
        FileRows, "_read_unchecked", lambda *args: os.unlink(path) or read(*args)
    )  # between a look and the next
    with pytest.raises(UserError, match=f"^{path}: expected the file that the run began with, found nothing there$"):
        rows.read(3, 15)


@pytest.mark.parametrize("location", ["at 10:30/d.npy", "at 10:30/d.h5:/a:b", "d:1.npy", "d.h5:/a:b"])
def test_colons_in_the_names_of_folders_files_and_datasets_are_no_hindrance(location, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "at 10:30").mkdir()
    table = np.arange(12.0).reshape(4, 3)
    for path in ("at 10:30/d.npy", "d:1.npy"):
        np.save(path, table)
    for path in ("at 10:30/d.h5", "d.h5"):
        with h5py.File(path, "w") as file:
            file["a:b"] = table
    np.testing.assert_array_equal(FileRows(location).read(0, 4)[:, :3], table)


@pytest.mark.parametrize("location", ["d.npy", "d.h5:/rows"])
@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device", "a directory"])
def test_what_is_no_file_is_refused_at_once(location, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = location.partition(":")[0]
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a socket":
            socket.socket(socket.AF_UNIX).bind(path)
        case "a device":
            os.symlink("/dev/zero", path)
        case _:
            os.mkdir(path)
    with pytest.raises(UserError, match=f"^{path}: expected an? .* file, found {kind}$"):
        FileRows(location)
    with pytest.raises(UserError, match=f"^{path}: expected a job file of at most [0-9]+ bytes, found {kind}$"):
        read_job(path)
    with pytest.raises(UserError, match=f"expected .*, found .*{kind.partition(' ')[2]}"):
        check_checksum(path)


@pytest.mark.parametrize(
    "table, words",
    [
        (sparse.eye_array(500, 8, format="csr"), r"a dense array, found a sparse one \(csr_array\); data.toarray\(\) "),
        ([[1.0, 2.0], [3.0]], "points x dimensions, found list: "),
        (object(), "points x dimensions, found the shape"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(table, words):
    with pytest.raises(UserError, match=f"^data: expected {words}") as caught:
        ArrayRows(table)
    assert "\n" not in str(caught.value)
