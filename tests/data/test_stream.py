"""Streamed rows: same rows and same bits as in memory, bounded memory, and immediate errors."""

import dataclasses
import os
import threading
import time
import weakref
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import h5py
import numpy as np
import pytest
from launch import ended, launch
from problems import job_table, problem_of, settings_at
from test_faults import SECONDS, start_training

from parallel_et import fit
from parallel_et.data.base import ArrayRows, Source
from parallel_et.data.files import FileRows
from parallel_et.data.stream import CHUNKS_IN_MEMORY, StreamedRows, open_rows
from parallel_et.em.e_step import EStep
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard
from parallel_et.parallel.threads import ThreadTeam

TABLE = np.random.default_rng(1).normal(size=(1003, 7))
SHARD = Shard.of(1003, 16, 1, 2)  # rows 496 to 1002 in 32 blocks, the last one of 11
ROW = 7 * 8


class Watched(Source):
    """Rows of a table, with records of all reads and of the number of chunks in memory."""

    def __init__(self):
        self.points, self.dims, self.shape = 1003, 7, (7,)
        self.read_from, self.alive, self.most, self.broken = [], 0, 0, -1
        self.lock = threading.Lock()

    def read(self, first, last):
        if first == self.broken:
            raise UserError(f"row {first} is broken")
        rows = TABLE[first:last].copy()
        if last > first:
            with self.lock:
                self.read_from.append(first)
                self.alive += 1
                self.most = max(self.most, self.alive)
            weakref.finalize(rows, self.gone)
        return rows

    def gone(self):
        with self.lock:
            self.alive -= 1


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_pass_reads_every_chunk_once_and_the_first_again_ahead_of_the_next():
    source = Watched()
    rows = StreamedRows(source, SHARD, memory_bytes=CHUNKS_IN_MEMORY * 5 * 16 * ROW)
    chunks = list(range(496, 1003, 5 * 16))
    for _ in range(3):
        for block in SHARD.blocks():
            np.testing.assert_array_equal(rows[block][:, :7], TABLE[496:][block])
    wait_for(lambda: len(source.read_from) == 3 * len(chunks) + 1)
    assert source.read_from == [*chunks, *chunks, *chunks, 496]
    assert source.most < CHUNKS_IN_MEMORY
    assert (len(rows), rows.shape, rows.dtype, rows.nbytes) == (
        507,
        (507, 7),
        np.float64,
        CHUNKS_IN_MEMORY * 5 * 16 * ROW,
    )


def test_the_first_chunks_stay_if_memory_is_left(monkeypatch):
    monkeypatch.setattr("parallel_et.data.stream.MAX_CHUNK_BYTES", 16 * ROW)  # a block
    source = Watched()
    rows = StreamedRows(source, SHARD, memory_bytes=(CHUNKS_IN_MEMORY + 20) * 16 * ROW)
    for _ in range(3):
        for block in SHARD.blocks():
            np.testing.assert_array_equal(rows[block][:, :7], TABLE[496:][block])
    chunks = list(range(496, 1003, 16))
    assert source.read_from == [*chunks, *chunks[20:], *chunks[20:]]
    assert rows.nbytes == 24 * 16 * ROW


def test_the_next_chunk_is_read_before_it_is_asked_for():
    source = Watched()
    rows = StreamedRows(source, SHARD, memory_bytes=0)
    rows[slice(0, 16)]
    wait_for(lambda: source.read_from == [496, 512])


@pytest.mark.parametrize("memory_bytes", [0, 4 * 3 * 16 * ROW, 10**9])
def test_blocks_may_be_asked_for_in_any_order_and_several_at_once(memory_bytes):
    rows, blocks = StreamedRows(Watched(), SHARD, memory_bytes), list(SHARD.blocks())
    for index, more in np.random.default_rng(2).integers(0, (len(blocks), 6), (100, 2)):
        part = slice(blocks[index].start, blocks[min(index + more, len(blocks) - 1)].stop)
        np.testing.assert_array_equal(rows[part][:, :7], TABLE[496:][part])


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_get_their_rows_and_at_most_the_allowed_chunks_are_in_memory(threads):
    source = Watched()
    rows, wrong, blocks = StreamedRows(source, SHARD, 0, threads), [], list(SHARD.blocks())

    def work(block, thread):
        part = rows[block]
        time.sleep(0.001 * thread)  # some are slower than others
        if not np.array_equal(part[:, :7], TABLE[496:][block]):
            wrong.append(block)

    team = ThreadTeam(threads)
    for _ in range(5):
        team.map_blocks(blocks, work)
    assert wrong == []
    assert source.most <= CHUNKS_IN_MEMORY


def test_an_error_of_the_reader_is_raised_where_the_rows_are_asked_for():
    source = Watched()
    rows = StreamedRows(source, SHARD, memory_bytes=0)
    source.broken = 512
    rows[slice(0, 16)]
    for _ in range(2):
        with pytest.raises(UserError, match="row 512 is broken"):
            rows[slice(16, 32)]


@pytest.mark.parametrize("threads, points", [(1, 8 * 16), (2, 4 * 16), (20, 16)])
def test_blocks_are_merged_as_far_as_all_threads_together_ask_for_a_chunk(threads, points):
    table = job_table({"name": "linca", "causes": 4}, {"candidates": 3, "gamma": 2})
    problem, params = problem_of({**table, "run": {"seed": 1, "block": 16}}, TABLE)
    rows = StreamedRows(ArrayRows(TABLE), problem.shard, CHUNKS_IN_MEMORY * 8 * 16 * ROW, threads)
    streamed, settings = dataclasses.replace(problem, rows=rows), settings_at(problem, 0, params)
    for one, most in ((problem, 1003), (streamed, points)):
        parts = EStep(one, Ranks(), one.initial_state(params), settings).blocks
        assert max(part.stop - part.start for part in parts) == most
        assert (parts[0].start, parts[-1].stop) == (0, 1003)


def test_only_what_is_larger_than_the_memory_is_streamed():
    source = ArrayRows(TABLE)
    for memory, streamed in (
        (None, False),
        (507 * ROW, False),
        (507 * ROW - 1, True),
        ("27 KiB", True),
        ("28 KiB", False),
    ):
        assert isinstance(open_rows(source, SHARD, memory, 1), StreamedRows) == streamed


def test_a_process_ends_while_rows_are_being_read(tmp_path):
    np.save(tmp_path / "d.npy", TABLE)
    code = "import sys; from parallel_et.data.stream import *; from parallel_et.data.files import FileRows"
    code += "; rows = StreamedRows(FileRows('d.npy'), Shard.of(1003, 16, 0, 1), 0); rows[slice(0, 16)]; sys.exit(7)"
    assert launch(None, "-c", code, cwd=tmp_path).returncode == 7


def write(place, kind, rows):
    """Write rows in a format; returns the source that names them."""
    if kind == "npy":
        np.save(f"{place}/d.npy", rows)
        return f"{place}/d.npy"
    with h5py.File(f"{place}/{kind}.h5", "w") as file:
        file.create_dataset(
            "rows", data=rows, **({"chunks": (700, 7), "compression": "gzip"} if kind == "gzip" else {})
        )
    return f"{place}/{kind}.h5:/rows"


@pytest.mark.mpi
@pytest.mark.parametrize(
    "kind, dtype, model, threads",
    [
        ("npy", "float32", "linca", 1),
        ("npy", "float64", "mca", 2),
        ("plain", "float64", "linca", 2),
        ("plain", "float32", "mca", 1),
        ("gzip", "float64", "nmf", 1),
        ("gzip", "float32", "linca", 2),
        ("bars", "float64", "linca", 1),
    ],
)
def test_streamed_rows_give_the_same_bits(kind, dtype, model, threads, monkeypatch):
    ranks, reads = Ranks(), []
    place = ranks.from_root(mkdtemp)
    anneal = {"iterations": 3, "cut": {"schedule": [[0.2, 0.0], [0.7, 1.0]], "share": 0.8}, "noise": {"W": 0.05}}
    table = job_table({"name": model, "causes": 8}, {"candidates": 4, "gamma": 2, "singletons": model == "mca"}, anneal)
    table["run"]["threads"] = threads
    if kind == "bars":
        table["data"] = {"source": "bars", "points": 40011}
    else:
        make = np.random.default_rng(4).normal(2, 3, (40011, 23)).astype(dtype)
        table["data"] = {"source": ranks.from_root(lambda: write(place, kind, make))}
    kept = fit(table)
    read = StreamedRows._read
    monkeypatch.setattr(StreamedRows, "_read", lambda self, number: reads.append(number) or read(self, number))
    table["data"]["memory"] = "20 KB"
    streamed = fit(table)
    assert len(reads) >= 3 * 4
    for name, value in kept.params.items():
        assert streamed.params[name].tobytes() == value.tobytes()
    assert set(streamed.history) == set(kept.history)
    for name, value in kept.history.items():
        assert name.startswith("seconds") or streamed.history[name].tobytes() == value.tobytes()
    assert streamed.metadata["data fingerprint"] == kept.metadata["data fingerprint"]
    ranks.from_root(lambda: rmtree(place))


def shorten(path):
    os.truncate(path, path.stat().st_size // 2)


def replace(path):
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").replace(path)


def alter(path):
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")


def keeping_times(harm):
    """Return a function that does the same damage, and restores the time of the last change."""

    def harm_in_secret(path):
        before = path.stat()
        harm(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return harm_in_secret


@pytest.mark.parametrize(
    "kind, harm, found",
    [
        ("npy", keeping_times(replace), "another"),
        ("plain", keeping_times(alter), "another"),
        ("npy", shorten, "another"),
        ("npy", Path.unlink, "nothing there"),
        ("plain", alter, "another"),
        ("gzip", replace, "another"),
    ],
)
def test_a_file_that_changes_while_it_is_streamed_ends_all_ranks_with_one_line(kind, harm, found, tmp_path):
    source = write(tmp_path, kind, np.random.default_rng(1).normal(size=(20000, 30)))
    (tmp_path / "job.toml").write_text(f"""
        model = {{ name = "linca", causes = 8 }}
        data = {{ source = "{source}", memory = "100 KB" }}
        inference = {{ candidates = 5, gamma = 3 }}
        anneal = {{ iterations = 100000 }}
    """)
    process = start_training(tmp_path)
    path = source.partition(":")[0]
    harm(Path(path))
    seconds, code, said = ended(process, tmp_path)
    assert seconds < SECONDS
    assert code == 2
    assert said.splitlines()[-1] == f"{path}: expected the file that the run began with, found {found}"
    assert said.count("expected") == 1


@pytest.mark.parametrize("kind", ["npy", "plain"])
def test_a_plain_read_refuses_a_file_that_ends_too_early(kind, tmp_path, monkeypatch):
    source = write(tmp_path, kind, TABLE)
    rows = FileRows(source)
    shorten(Path(source.partition(":")[0]))
    monkeypatch.setattr(FileRows, "_check_unchanged", lambda self: None)  # as if it happened within the read
    assert rows.read(0, 10).tobytes() == TABLE[:10].tobytes()
    with pytest.raises(UserError, match=r"expected [0-9]+ bytes more, found the end of the file"):
        rows.read(900, 1003)
