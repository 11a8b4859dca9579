import h5py
import numpy as np
import pytest

from parallel_et.io.files import FileRows


@pytest.mark.parametrize(
    "stored, read",
    [("float64", "float64"), ("float32", "float32"), ("int16", "float64"), ("uint8", "float64"), ("bool", "float64")],
)
@pytest.mark.parametrize("kind", ["h5", "npy"])
def test_rows_are_read_as_they_are_and_integers_converted(tmp_path, kind, stored, read):
    table = (np.random.default_rng(1).random((17, 2, 3)) * 9).astype(stored)
    if kind == "npy":
        np.save(tmp_path / "d.npy", table)
        place = f"{tmp_path}/d.npy"
    else:
        with h5py.File(tmp_path / "d.h5", "w") as file:
            file["a/rows"] = table
        place = f"{tmp_path}/d.h5:/a/rows"
    rows = FileRows(place)
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
    assert (rows._place is not None) == plain
    np.testing.assert_array_equal(rows.read(3, 15), table[3:15])


def test_virtual_and_unwritten_rows_and_columns_first_are_left_to_their_libraries(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = np.random.default_rng(1).random((17, 6))
    np.save("d.npy", np.asfortranarray(table))
    with h5py.File("d.h5", "w") as file:
        file["part"] = table
        layout = h5py.VirtualLayout((17, 6), float)
        layout[:] = h5py.VirtualSource(file["part"])
        file.create_virtual_dataset("rows", layout)
        file.create_dataset("later", (17, 6), "f4", fillvalue=3.0)
    for place, rows in (("d.npy", table), ("d.h5:/rows", table), ("d.h5:/later", np.full((17, 6), 3.0, np.float32))):
        assert FileRows(place)._place is None
        np.testing.assert_array_equal(FileRows(place).read(3, 15), rows[3:15])
