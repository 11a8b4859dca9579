"""Missing numbers that HDF5 would invent, and files that crash HDF5: each is refused in one line."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from fuzzers.hdf5 import numbered

from parallel_et.data import files
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.storage.hdf5 import read_array
from parallel_et.storage.row_tables import Table, create_tables, table_offsets

TABLE = np.random.default_rng(1).normal(size=(40, 6))


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with h5py.File("part.h5", "w") as file:
        file["padding"] = np.zeros(5000)
        file["group/rows"] = TABLE
    return tmp_path


def virtual(path, *sources, shape=(40, 6), name="rows"):
    """Create a virtual dataset of sources, each (first row, last row, file, dataset)."""
    layout = h5py.VirtualLayout(shape, float)
    for first, last, file_name, dataset in sources:
        layout[first:last] = h5py.VirtualSource(file_name, dataset, (last - first, shape[1]))
    with h5py.File(path, "a") as file:
        file.create_virtual_dataset(name, layout, fillvalue=1.0)


def refused(words, source="d.h5:/rows"):
    def read():
        rows = FileRows(source)
        rows.read(0, rows.points)

    with pytest.raises(UserError, match=words) as caught:
        read()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["rows", "all/rows", "soft"])
def test_rows_behind_a_link_to_another_file_are_those_of_that_file(name):
    with h5py.File("d.h5", "w") as file:
        file["rows"] = h5py.ExternalLink("part.h5", "/group/rows")
        file["all"] = h5py.ExternalLink("part.h5", "/group")
        file["soft"] = h5py.SoftLink("/all/rows")
        file["more"] = np.ones(20000)
    np.testing.assert_array_equal(FileRows(f"d.h5:/{name}").read(0, 40), TABLE)
    np.testing.assert_array_equal(read_array("d.h5", name), TABLE)


def test_a_linked_file_must_stay_as_it_is_too():
    with h5py.File("d.h5", "w") as file:
        file["rows"] = h5py.ExternalLink("part.h5", "/group/rows")
    rows = FileRows("d.h5:/rows")
    with h5py.File("part.h5", "r+") as file:
        file["more"] = np.ones(3)
    with pytest.raises(UserError, match=r"part\.h5: expected the file that the run began with, found another"):
        rows.read(3, 5)


def test_rows_of_virtual_datasets_are_those_of_their_sources():
    with h5py.File("twice.h5", "w") as file:
        file["rows"] = TABLE[:20]
    virtual("d.h5", (0, 20, "twice.h5", "rows"), (20, 40, "twice.h5", "rows"))
    virtual("d.h5", (0, 40, ".", "rows"), name="again")
    for name in ("rows", "again"):
        np.testing.assert_array_equal(FileRows(f"d.h5:/{name}").read(0, 40), np.concatenate([TABLE[:20], TABLE[:20]]))


def test_a_virtual_dataset_of_which_some_is_nowhere_is_refused():
    virtual("none.h5", (0, 20, "part.h5", "group/rows"), (20, 40, "gone.h5", "rows"))
    refused(r"none\.h5: /rows: expected rows 20 to 39 in gone\.h5, found nothing there", "none.h5:/rows")
    virtual("name.h5", (0, 40, "part.h5", "group/row"))
    refused(r"name\.h5: /rows: expected a source group/row in part\.h5, found none", "name.h5:/rows")
    virtual("hole.h5", (0, 10, "part.h5", "group/rows"), (15, 40, "part.h5", "group/rows"))
    refused(r"hole\.h5: /rows: rows 0 to 39: expected sources of all values, found 30 values without", "hole.h5:/rows")
    virtual("short.h5", (0, 50, "part.h5", "group/rows"), shape=(50, 6))
    refused(r"short\.h5: /rows: expected 300 values in part\.h5, found 60 missing", "short.h5:/rows")
    virtual("d.h5", (0, 40, "none.h5", "rows"))
    refused(r"none\.h5: /rows: expected rows 20 to 39 in gone\.h5, found nothing there")
    with pytest.raises(UserError, match=r"expected rows 20 to 39 in gone\.h5, found nothing there"):
        read_array("none.h5", "rows")


def test_sources_whose_names_have_a_number_must_all_be_there():
    with h5py.File("d.h5", "w", libver="latest") as file:
        numbered(file, "piece-%b.h5", 3)
    for number in range(3):
        with h5py.File(f"piece-{number}.h5", "w") as file:
            file["rows"] = TABLE[5 * number : 5 * number + 5]
    rows = FileRows("d.h5:/rows")
    np.testing.assert_array_equal(rows.read(0, 15), TABLE[:15])
    Path("piece-1.h5").unlink()
    refused(r"d\.h5: /rows: expected piece-1\.h5 before number 2, found that it cannot be read")
    with pytest.raises(UserError, match=r"piece-1\.h5: expected the file that the run began with, found nothing there"):
        rows.read(0, 15)


@pytest.mark.parametrize("around", [1, 2, 3])
def test_a_virtual_dataset_that_leads_to_itself_is_refused(around):
    for number in range(around):
        virtual(f"{number}.h5", (0, 40, f"{(number + 1) % around}.h5", "rows"))
    refused(r"0\.h5: /rows: expected a virtual dataset of other datasets, found that it leads to itself", "0.h5:/rows")


def test_rows_that_were_never_written_are_refused():
    with h5py.File("d.h5", "w") as file:
        file.create_dataset("whole", (40, 6), float)
        file.create_dataset("chunks", (10**12, 6), float, chunks=(100, 6))
        file.create_dataset("some", (10**12, 6), float, chunks=(10, 4))[:35] = TABLE[:35]
    for name in ("whole", "chunks"):
        refused(f"d.h5: /{name}: expected numbers, found that nothing was ever written", f"d.h5:/{name}")
    refused(r"d\.h5: /some: expected 2 chunks for rows 9+ to 9+, found that 0 were written", "d.h5:/some")


def test_chunks_that_are_missing_in_the_middle_are_refused_where_they_are_needed():
    with h5py.File("d.h5", "w") as file:
        rows = file.create_dataset("rows", (40, 6), float, chunks=(10, 4))
        rows[:18], rows[30:] = TABLE[:18], TABLE[30:]
    rows = FileRows("d.h5:/rows")
    np.testing.assert_array_equal(rows.read(3, 18), TABLE[3:18])
    np.testing.assert_array_equal(rows.read(30, 40), TABLE[30:])
    with pytest.raises(UserError, match="expected 4 chunks for rows 15 to 20, found that 2 were written"):
        rows.read(15, 21)


def test_a_file_of_raw_bytes_that_is_too_short_or_missing_is_refused():
    for name, size in (("short", 100), ("gone", None)):
        with h5py.File(f"{name}.h5", "w") as file:
            file.create_dataset("rows", (40, 6), float, external=[(name, 8, h5py.h5f.UNLIMITED)])
        if size:
            Path(name).write_bytes(bytes(size))
        found = size - 8 if size else 0
        refused(f"expected 1920 bytes at 8 of {name}, found {found}", f"{name}.h5:/rows")


def test_plain_reads_that_differ_from_those_of_hdf5_are_refused(monkeypatch):
    find = files.byte_offset
    monkeypatch.setattr(files, "byte_offset", lambda table, path: find(table, path) + 8)
    refused(r"part\.h5:/group/rows: row 0: expected one, found another at byte \d+", "part.h5:/group/rows")


@pytest.mark.parametrize("damage", [{2204: 0x0C}, {2206: 0xFE}, {2136: 0x08}, {2135: 0x80, 2210: 0x20}])
def test_a_file_at_which_hdf5_itself_crashes_is_refused_in_one_line(damage):
    with h5py.File("part.h5", "w") as file:
        file["rows"] = TABLE
    virtual("d.h5", (0, 40, "part.h5", "rows"), (40, 80, "part.h5", "rows"), shape=(80, 6))
    raw = bytearray(Path("d.h5").read_bytes())
    for byte, value in damage.items():
        raw[byte] = value
    Path("d.h5").write_bytes(raw)
    refused("d.h5.*: expected ")


def test_a_chunk_that_has_no_bytes_is_refused():
    with h5py.File("d.h5", "w") as file:
        rows = file.create_dataset("rows", data=TABLE, chunks=(7, 6), compression="lzf")
        found = rows.id.get_chunk_info(2)
    raw = bytearray(Path("d.h5").read_bytes())
    sizes = found.size.to_bytes(4, "little") + found.filter_mask.to_bytes(4, "little")
    record = sizes + (14).to_bytes(8, "little")  # in the tree of the chunks
    assert raw.count(record) == 1
    raw[raw.index(record) : raw.index(record) + 4] = bytes(4)
    Path("d.h5").write_bytes(raw)
    refused(r"d\.h5: /rows: row 14: expected a chunk of numbers, found one of no bytes")


def test_names_in_a_file_that_cannot_be_printed_do_not_break_the_line():
    with h5py.File("d.h5", "w") as file:
        file["ro\nws"] = TABLE
    refused(r"d\.h5: expected a dataset /rows, found /ro\?ws")


def test_an_output_is_written_only_where_its_tables_lie_in_one_piece(place):
    table = Table((40, 6), "f8")
    create_tables(place / "good.h5", {"rows": table}, {})
    assert table_offsets(place / "good.h5", {"rows": table})["rows"] > 0
    with h5py.File("chunked.h5", "w") as file:
        file.create_dataset("rows", data=TABLE, chunks=(5, 6))
    with h5py.File("link.h5", "w") as file:
        file["rows"] = h5py.ExternalLink("part.h5", "/group/rows")
    for name in ("chunked.h5", "link.h5"):
        with pytest.raises(UserError, match=f"{name}: rows: expected a table of 1920 bytes in one piece"):
            table_offsets(place / name, {"rows": table})
