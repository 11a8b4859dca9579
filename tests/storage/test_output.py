import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import CLEAN, TIMEOUT_SECONDS, command, launch, ranks_of, wait_for

from parallel_et.errors import UserError
from parallel_et.parallel import shared_file
from parallel_et.parallel.communicator import Ranks
from parallel_et.storage import output
from parallel_et.storage.output import Table, best_writer, discard, open_output, read_rows
from parallel_et.storage.writers import has_mpio

SERIAL = pytest.mark.skipif(not has_mpio(), reason="h5py is serial; make parallel-hdf5 builds a parallel one")
each_writer = pytest.mark.parametrize("writer", [pytest.param("mpio", marks=SERIAL), "direct", "virtual"])
ROWS = 103
ABOUT = {"job": "[model]\n" * 20, "seed": 3, "sizes": [1, 2], "nothing": np.nan}


@pytest.fixture
def path(tmp_path):
    """The same place on all ranks."""
    return Path(Ranks().broadcast_object(tmp_path)) / "out.h5"


def expected(rows=ROWS):
    n = np.arange(rows)
    return {
        "evidence": -1.5 - n,
        "kept/states": (n[:, None, None] * 7 + np.arange(6).reshape(2, 3)).astype(np.uint8),
        "candidates": (n[:, None] + np.arange(4)).astype(np.int32),
        "means": np.sin(n[:, None] + np.arange(5)).astype(np.float32),
        "empty": np.empty((rows, 0)),
    }


def tables(rows=ROWS):
    return {name: Table(array.shape, array.dtype) for name, array in expected(rows).items()}


def write(out, first, last, rows=ROWS):
    out.write(first, {name: array[first:last] for name, array in expected(rows).items()})


def check(path, rows=ROWS, about=ABOUT):
    with h5py.File(path) as file:
        for name, array in expected(rows).items():
            assert file[name].dtype == array.dtype
            np.testing.assert_array_equal(file[name][()], array)
            np.testing.assert_array_equal(read_rows(path, name, rows // 3, rows // 2), array[rows // 3 : rows // 2])
        for name, value in about.items():
            np.testing.assert_array_equal(file.attrs[name], value)


def left_over(path):
    """Return the names of files next to the output."""
    return sorted(p.name for p in path.parent.iterdir() if p not in (path, path.with_name(path.name + ".parts")))


SHARES = {
    "uneven runs": lambda r, size: [(ROWS * r * r // size**2, ROWS * (r + 1) ** 2 // size**2)],
    "all on the last rank": lambda r, size: [(0, ROWS)] if r == size - 1 else [],
    "row by row in turn, backwards": lambda r, size: [(n, n + 1) for n in reversed(range(r, ROWS, size))],
    "with empty writes and some rows twice": lambda r, size: [(5, 5), (0, 60), (r, r), (40, ROWS), (ROWS, ROWS)],
}


@pytest.mark.mpi
@each_writer
@pytest.mark.parametrize("share", SHARES)
def test_plain_h5py_reads_what_the_ranks_wrote(path, writer, share):
    ranks = Ranks()
    with open_output(path, tables(), ranks, ABOUT, writer) as out:
        assert (out.writer, out.written) == (writer, [])
        for first, last in SHARES[share](ranks.rank, ranks.size):
            write(out, first, last)
        assert not path.exists()
    check(path)
    assert left_over(path) == []


@pytest.mark.mpi
@each_writer
def test_tables_without_rows_are_written(path, writer):
    with open_output(path, tables(0), Ranks(), writer=writer) as out:
        write(out, 0, 0, rows=0)
    check(path, rows=0, about={})


@pytest.mark.mpi
@each_writer
def test_arrays_of_other_order_and_dtype_are_converted(path, writer):
    ranks = Ranks()
    values = np.arange(60.0).reshape(20, 3)
    with open_output(path, {"a": Table((20, 3), np.float64), "b": Table((20,), np.int32)}, ranks, writer=writer) as out:
        if ranks.is_root:
            out.write(0, {"a": np.asfortranarray(values)[:10], "b": np.arange(10, dtype=">i8")})
            out.write(10, {"a": np.repeat(values, 2, axis=1)[10:, ::2].astype(">f8"), "b": np.arange(20)[10:][::1]})
    np.testing.assert_array_equal(read_rows(path, "a", 0, 20), values)
    np.testing.assert_array_equal(read_rows(path, "b", 0, 20), np.arange(20))


@pytest.mark.mpi
@each_writer
def test_tables_have_attributes_and_arrays_lie_beside_them(path, writer):
    ranks, arrays = Ranks(), {"zca/matrix": np.arange(12.0).reshape(3, 4)}
    table = {"rows": Table((ranks.size, 2), np.float32, {"steps": "long " * 50_000})}
    first = open_output(path, table, ranks, ABOUT, writer, arrays)
    first.write(ranks.rank, {"rows": np.full((1, 2), ranks.rank)})
    first.abandon()
    ranks.barrier()
    with open_output(path, table, ranks, ABOUT, writer, arrays) as again:
        again.write(ranks.rank, {"rows": np.full((1, 2), ranks.rank)})
    with h5py.File(path) as file:
        assert file["rows"].attrs["steps"] == "long " * 50_000
        assert file.attrs["seed"] == 3
        np.testing.assert_array_equal(file["zca/matrix"], arrays["zca/matrix"])
        np.testing.assert_array_equal(file["rows"][:, 0], np.arange(ranks.size))


@pytest.mark.mpi
@each_writer
def test_an_abandoned_output_is_continued_by_the_writer_that_began_it(path, writer):
    ranks = Ranks()
    out = open_output(path, tables(), ranks, ABOUT, writer)
    write(out, 10 * ranks.rank, 10 * ranks.rank + 7)
    out.abandon()
    ranks.barrier()
    assert not path.exists()
    with open_output(path, tables(), ranks, ABOUT, "direct") as out:
        assert out.writer == writer
        assert out.written == [(10 * r, 10 * r + 7) for r in range(ranks.size)]
        if ranks.rank == ranks.size - 1:
            for first, last in zip([b for _, b in out.written], [a for a, _ in out.written[1:]] + [ROWS], strict=True):
                write(out, first, last)
    check(path)
    assert left_over(path) == []


@pytest.mark.mpi
@each_writer
@pytest.mark.parametrize("late", [0.0, 0.5])
def test_an_exception_on_one_rank_hangs_no_rank_and_keeps_all_rows(path, writer, late, monkeypatch):
    monkeypatch.setattr(shared_file, "GIVE_UP_SECONDS", 0.2)
    ranks = Ranks()
    last = ranks.size - 1

    def work():
        with open_output(path, tables(), ranks, ABOUT, writer) as out:
            write(out, 10 * ranks.rank, 10 * ranks.rank + 7)
            if ranks.rank == last:
                raise KeyError("a fault of this rank")
            time.sleep(late)

    with pytest.raises(KeyError if ranks.rank == last else OSError) as caught:
        work()
    assert ranks.rank == last or f"rank {last} has given up" in str(caught.value)
    ranks.barrier()
    out = open_output(path, tables(), ranks, ABOUT)
    assert out.written == [(10 * r, 10 * r + 7) for r in range(ranks.size)]
    write(out, 0, ROWS)
    out.close()
    check(path)


@pytest.mark.mpi
@each_writer
def test_missing_rows_are_named(path, writer):
    ranks = Ranks()
    out = open_output(path, tables(), ranks, writer=writer)
    if ranks.rank == ranks.size - 1:
        write(out, 3, 50)
        write(out, 60, 100)
    with pytest.raises(UserError, match="103 rows written, found rows 0 to 2, 50 to 59, 100 to 102 missing"):
        out.close()
    assert not path.exists()


@pytest.mark.mpi
@each_writer
def test_the_part_of_another_output_is_refused_with_what_differs(path, writer):
    ranks = Ranks()
    open_output(path, tables(), ranks, ABOUT, writer).abandon()
    ranks.barrier()
    for other, about, said in (
        (tables(), {**ABOUT, "seed": 4}, "attribute seed: expected 4, found 3; remove it or choose another name"),
        (tables(), {**ABOUT, "job": "[model]\n" * 19 + "[data]"}, r"expected ….*\[data\]', found ….*\[model\]"),
        (tables(), {**ABOUT, "extra": 1}, "attribute extra: expected 1, found none"),
        (tables(99), ABOUT, "table candidates: expected 99x4 of int32, found 103x4 of int32; table empty"),
        ({"evidence": Table((ROWS,), np.float64)}, ABOUT, "table candidates: expected none, found 103x4"),
    ):
        with pytest.raises(UserError, match=said):
            open_output(path, other, ranks, about)
    open_output(path, tables(), ranks, ABOUT).abandon()


@pytest.mark.mpi
def test_a_part_that_is_no_hdf5_is_refused(path):
    ranks = Ranks()
    if ranks.is_root:
        path.with_name("out.h5.part").write_bytes(b"something")
    with pytest.raises(UserError, match="expected an HDF5 file, found something else"):
        open_output(path, tables(), ranks)


@pytest.mark.mpi
@each_writer
def test_a_full_disk_is_a_plain_error_of_the_rank_that_met_it(path, writer):
    ranks = Ranks()
    rows, last = 3000, ranks.size - 1
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def work():
        with open_output(path, tables(rows), ranks, writer=writer) as out:
            if ranks.rank == last:
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
                write(out, 0, rows, rows)

    try:
        with pytest.raises(OSError) as caught:
            work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert caught.value.errno == (errno.EFBIG if ranks.rank == last else errno.ECANCELED)
    ranks.barrier()
    with open_output(path, tables(rows), ranks) as out:
        assert out.written == []
        write(out, 0, rows, rows)
    check(path, rows, {})


@pytest.mark.mpi
def test_a_place_that_is_not_there_is_the_users_mistake(path):
    for writer in (None, "direct", "virtual"):
        with pytest.raises(UserError, match="expected a place to write to, found no folder"):
            open_output(path / "no" / "out.h5", tables(), Ranks(), writer=writer)


def test_an_unknown_writer_and_rows_outside_are_refused(path):
    with pytest.raises(UserError, match="writer: expected mpio, direct, virtual, found gather"):
        open_output(path, tables(), Ranks(), writer="gather")
    out = open_output(path, tables(), Ranks())
    for first, last in ((-1, 3), (100, 104)):
        with pytest.raises(ValueError, match="expected rows of"):
            out.write(first, {name: np.zeros((last - first, *t.shape[1:])) for name, t in tables().items()})
    out.abandon()
    with pytest.raises(ValueError, match="found it closed"):
        write(out, 0, 1)


@pytest.mark.skipif(has_mpio(), reason="h5py is parallel")
def test_mpio_without_a_parallel_h5py_is_refused(path):
    with pytest.raises(UserError, match="found a serial one; make parallel-hdf5"):
        open_output(path, tables(), Ranks(), writer="mpio")


def test_a_torn_line_of_a_journal_is_ignored(path):
    out = open_output(path, tables(), Ranks(), writer="direct")
    write(out, 0, 20)
    out.abandon()
    journal = path.with_name("out.h5.part.journal")
    with open(journal / "0-0.rows", "ab") as file:
        file.write(b"20 30\nnonsense\n30 4")
    out = open_output(path, tables(), Ranks())
    assert out.written == [(0, 30)]
    write(out, 50, 60)
    out.abandon()
    assert sorted(p.name for p in journal.iterdir()) == ["0-0.rows", "1-0.rows", "way"]
    out = open_output(path, tables(), Ranks())
    assert out.written == [(0, 30), (50, 60)]
    out.abandon()
    shutil.rmtree(journal)
    with pytest.raises(UserError, match=r"expected .*journal/way next to it, found none; remove it"):
        open_output(path, tables(), Ranks())


def test_rows_are_noted_while_the_output_is_open(path, monkeypatch):
    monkeypatch.setattr(output, "SYNC_SECONDS", 0.0)
    out = open_output(path, tables(), Ranks(), writer="direct")
    write(out, 0, 20)
    assert path.with_name("out.h5.part.journal").joinpath("0-0.rows").read_text().split() == ["0", "20"]
    out.abandon()


def test_a_virtual_output_can_be_moved_with_its_folder_and_misses_a_piece(path, monkeypatch):
    with open_output(path, tables(), Ranks(), ABOUT, "virtual") as out:
        for first in range(0, ROWS, 10):
            write(out, first, min(first + 10, ROWS))
    moved = path.parent / "elsewhere" / "out.h5"
    moved.parent.mkdir()
    path.rename(moved)
    shutil.move(f"{path}.parts", moved.parent)
    check(moved)
    monkeypatch.chdir(moved.parent)
    check(Path("out.h5"))
    piece = sorted(moved.with_name("out.h5.parts").iterdir())[5]
    piece.unlink()
    assert read_rows(moved, "evidence", 40, 50)[0] == -41.5
    with pytest.raises(UserError, match=f"expected rows 50 to 59 in .*{piece.name}, found nothing there"):
        read_rows(moved, "evidence", 45, 55)
    with pytest.raises(UserError, match=r"out\.h5\.parts: expected nothing there yet, found an earlier output"):
        open_output(moved, tables(), Ranks(), writer="virtual")


def test_a_whole_output_goes_with_its_pieces_when_it_is_discarded(path):
    for writer, stays in (("direct", True), ("virtual", False)):
        with open_output(path, tables(), Ranks(), ABOUT, writer) as out:
            write(out, 0, ROWS)
        output.discard(path)
        assert path.exists() == stays
        path.unlink(missing_ok=True)


@each_writer
def test_more_than_2_gib_in_one_call(path, writer):
    if shutil.disk_usage(path.parent).free < 6e9:
        pytest.skip("less than 6 GB free on the disk")
    rows, tail = (1 << 31) // 4096 + 5, 300
    block = np.zeros((rows, 4096), np.uint8)
    block[::997, 0], block[-1] = 5, 7  # the rest stays untouched, and so takes no memory
    try:
        with open_output(
            path, {"before": Table((rows,), np.int32), "a": Table((rows, 4096), np.uint8)}, Ranks(), writer=writer
        ) as out:
            out.write(0, {"before": np.arange(rows), "a": block})
        assert read_rows(path, "before", rows - 1, rows) == rows - 1
        for first in (0, rows // 2, rows - tail):
            np.testing.assert_array_equal(read_rows(path, "a", first, first + tail), block[first : first + tail])
    finally:  # pytest keeps the folders of its last three runs
        shutil.rmtree(path.parent)


WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from parallel_et.storage import output
from parallel_et.parallel.communicator import Ranks
path, writer, pause = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
output.SYNC_SECONDS = 0.02
ranks, rows = Ranks(), 4000
tables = {"a": output.Table((rows, 3), np.float64), "b": output.Table((rows,), np.uint8)}
with output.open_output(path, tables, ranks, {"job": "x"}, writer) as out:
    there = np.zeros(rows, bool)
    for first, last in out.written:
        there[first:last] = True
    print(there.sum(), flush=True) if ranks.is_root else None
    for first in range(10 * ranks.rank, rows, 10 * ranks.size):
        if not there[first : first + 10].all():
            n = np.arange(first, first + 10)
            out.write(first, {"a": np.repeat(n + 0.5, 3).reshape(10, 3), "b": n % 250 + 1})
            time.sleep(pause if first < 3500 else 100 * pause)  # it does not come to its end before it is killed
"""


def journal_size(place):
    return sum(path.stat().st_size for path in place.glob("out.h5.part.journal/*.rows"))


@each_writer
def test_killed_again_and_again_and_continued_on_other_numbers_of_ranks(tmp_path, writer):
    (tmp_path / "write.py").write_text(WRITER)
    path = tmp_path / "out.h5"
    rng = random.Random(f"{writer} 5")
    safe = 0
    for ranks in (3, 1, 4, 2):
        process = subprocess.Popen(
            command(ranks, "write.py", path, writer, 0.004 * ranks),
            cwd=tmp_path,
            env=CLEAN,
            stdout=subprocess.PIPE,
            text=True,
        )
        before = int(process.stdout.readline())
        assert before >= safe
        noted = journal_size(tmp_path)
        wait_for(lambda noted=noted: journal_size(tmp_path) > noted, process)
        time.sleep(rng.uniform(0.0, 0.3))
        os.kill(rng.choice(ranks_of(tmp_path)), signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode != 0
        out = open_output(path, {"a": Table((4000, 3), float), "b": Table((4000,), np.uint8)}, Ranks(), {"job": "x"})
        out.abandon()
        safe = sum(last - first for first, last in out.written)
        assert before < safe < 4000
        if writer != "virtual":
            for first, last in out.written:
                there = read_rows(path.with_name("out.h5.part"), "a", first, last)
                np.testing.assert_array_equal(there, np.repeat(np.arange(first, last) + 0.5, 3).reshape(-1, 3))
    done = launch(3, "write.py", path, writer, 0, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == safe
    np.testing.assert_array_equal(read_rows(path, "a", 0, 4000), np.repeat(np.arange(4000) + 0.5, 3).reshape(-1, 3))
    np.testing.assert_array_equal(read_rows(path, "b", 0, 4000), np.arange(4000) % 250 + 1)


@pytest.mark.mpi
def test_the_best_writer_is_that_of_the_installed_h5py(path):
    assert best_writer(Ranks(), path.parent) == ("mpio" if has_mpio() else "direct")
    Ranks().barrier()
    assert left_over(path) == []


def test_where_mpi_io_fails_the_best_writer_is_virtual_and_a_warning_is_printed(tmp_path):
    code = (
        "from pathlib import Path\nfrom parallel_et.storage.output import best_writer\n"
        "from parallel_et.parallel.communicator import Ranks\n"
        "ranks = Ranks()\nfound = ranks.gather(best_writer(ranks, Path()))\nprint(*found) if ranks.is_root else None"
    )
    done = launch(2, "-c", code, cwd=tmp_path, ROMIO_FSTYPE_FORCE="daos:")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["virtual"] * 2
    assert done.stderr.count("note: .: MPI-IO cannot be used there") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("kind", ["a file", "a symbolic link", "a pipe", "'thesis.tex' in it"])
def test_what_has_the_name_of_a_journal_is_refused_and_left_alone(path, kind, fresh):
    journal = path.with_name("out.h5.part.journal")
    match kind:
        case "a file":
            journal.write_text("precious")
        case "a symbolic link":
            journal.symlink_to("nowhere")
        case "a pipe":
            os.mkfifo(journal)
        case _:
            journal.mkdir()
            (journal / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match=f"journal: expected the journal .* nothing, found {kind}; move it"):
        discard(path) if fresh else open_output(path, {"a": Table((4, 2), float)}, Ranks.self_only())
    assert os.path.lexists(journal / "thesis.tex" if kind.startswith("'") else journal)


@pytest.mark.parametrize("harm", ["another writer", "a pipe", "rows beyond the end"])
def test_a_damaged_journal_is_refused(path, harm):
    tables = {"a": Table((4, 2), float)}
    output = open_output(path, tables, Ranks.self_only(), writer="direct")
    output.write(0, {"a": np.ones((2, 2))})
    output.abandon()
    journal = path.with_name("out.h5.part.journal")
    if harm == "rows beyond the end":
        (journal / "7-0.rows").write_text("0 99\n")
    else:
        (journal / "way").unlink()
        os.mkfifo(journal / "way") if harm == "a pipe" else (journal / "way").write_bytes(b"\xff\0")
    with pytest.raises(UserError, match=r"expected (one of mpio, direct, virtual, found|some of 4 rows, found 0 99)"):
        open_output(path, tables, Ranks.self_only())
