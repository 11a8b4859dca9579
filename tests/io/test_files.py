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
