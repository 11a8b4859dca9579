"""Work sharing on one node and on several nodes, which a replaced ``node_communicator`` pretends."""

import os
from itertools import chain

import numpy as np
import pytest
from launch import launch
from mpi4py import MPI

from parallel_et.kernels import fixed
from parallel_et.parallel import shared_memory
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shared_memory import NodeSharing
from parallel_et.parallel.work_sharing import Serial

NODE_OF_RANK = {
    "one node": lambda rank: 0,
    "two nodes": lambda rank: rank % 2,
    "a node and a single rank": lambda rank: min(rank, 1),
    "nodes of one rank": lambda rank: rank,
}


@pytest.fixture(params=NODE_OF_RANK)
def work_sharing(request, monkeypatch):
    monkeypatch.setattr(
        shared_memory, "node_communicator", lambda comm: comm.Split(NODE_OF_RANK[request.param](comm.rank))
    )
    return NodeSharing(MPI.COMM_WORLD)


@pytest.mark.mpi
def test_each_piece_is_done_once_and_copied_to_all_ranks(work_sharing):
    sizes, table = [1, 12, 3, 8, 2, 30], work_sharing.shared_array("table", (8, 7))
    parts = np.split(np.arange(56), np.cumsum(sizes))[:-1]
    done = []

    def work(k):
        done.append(k)
        out(k)[:] = k + 0.5

    def out(k):
        return table.reshape(-1)[parts[k][0] : parts[k][-1] + 1]

    work_sharing.map_pieces(sizes, work, out)
    assert sorted(chain(*MPI.COMM_WORLD.allgather(done))) == list(range(6))
    assert (table == np.repeat(np.arange(6) + 0.5, sizes).reshape(8, 7)).all()


@pytest.mark.mpi
def test_pieces_need_not_be_contiguous(work_sharing):
    table = work_sharing.shared_array("table", (6, 10))
    parts = [slice(start, start + 2) for start in range(0, 10, 2)]

    def work(k):
        table[:, parts[k]] = np.arange(12).reshape(6, 2) + 100 * k

    work_sharing.map_pieces([12] * 5, work, lambda k: table[:, parts[k]])
    assert all((table[:, part] == np.arange(12).reshape(6, 2) + 100 * k).all() for k, part in enumerate(parts))


@pytest.mark.mpi
def test_map_range_does_the_whole_work_on_every_node(work_sharing):
    table = work_sharing.shared_array("table", (5,))
    work_sharing.map_range(5, lambda first, last: table.__setitem__(slice(first, last), np.arange(first, last)))
    assert table.tolist() == [0, 1, 2, 3, 4]
    assert work_sharing.private_copy("table", table).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.mpi
@pytest.mark.parametrize("count", [2, 40_001])
def test_words_are_summed_over_all_ranks(work_sharing, count):
    words, values = (
        work_sharing.shared_array("words", (work_sharing.size, 2, count), np.int64),
        work_sharing.shared_array("values", (count,)),
    )
    every = np.random.default_rng(3).integers(-(1 << 40), 1 << 40, (MPI.COMM_WORLD.size, 2, count))
    words[work_sharing.rank] = every[MPI.COMM_WORLD.rank]
    work_sharing.sum(
        words, lambda total, first: fixed.to_float(1.0, *total, values[first : first + total.shape[1]]), values
    )
    expected = np.empty(count)
    fixed.to_float(1.0, *every.sum(0), expected)
    assert values.tobytes() == expected.tobytes()


@pytest.mark.mpi
def test_low_words_that_are_nearly_full_do_not_overflow(work_sharing):
    words, values = (
        work_sharing.shared_array("words", (work_sharing.size, 2, 3), np.int64),
        work_sharing.shared_array("values", (3,)),
    )
    words[work_sharing.rank] = np.array([[5, 5, 5], [fixed.CARRY_LIMIT, -fixed.CARRY_LIMIT, 1 - fixed.CARRY_LIMIT]])
    total, exact = np.empty((2, 3), np.int64), 5 + words[work_sharing.rank, 1] / fixed.LOW
    work_sharing.sum(
        words, lambda total, first: fixed.to_float(1.0, *total, values[first : first + total.shape[1]]), values
    )
    np.testing.assert_allclose(values, MPI.COMM_WORLD.size * exact, rtol=1e-15)
    fixed.sum_words(np.tile(words[[work_sharing.rank]], (9, 1, 1)), 0, total)  # more ranks than this run has
    fixed.to_float(1.0, *total, mine := np.empty(3))
    np.testing.assert_allclose(mine, 9 * exact, rtol=1e-15)


@pytest.mark.mpi
def test_a_failed_allocation_of_one_rank_is_an_error_on_its_whole_node(monkeypatch):
    work_sharing, last = NodeSharing(MPI.COMM_WORLD), MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1

    def refuse(*args):
        raise OSError(12, "no more")

    monkeypatch.setattr(shared_memory, "mmap", refuse if last else shared_memory.mmap)
    if work_sharing.size > 1:
        with pytest.raises(MemoryError, match=r"^expected 8000 bytes that the ranks of a node share, found .*no more"):
            work_sharing.shared_array("table", (1000,))


@pytest.mark.mpi
def test_a_freed_communicator_frees_its_work_sharing():
    comm = MPI.COMM_WORLD.Dup()
    found = NodeSharing.of(comm)
    comm.Free()
    assert found._comm == MPI.COMM_NULL


@pytest.mark.mpi
def test_a_shared_array_can_grow_and_earlier_arrays_stay_valid(work_sharing):
    small = work_sharing.shared_array("table", (3,))
    work_sharing.map_range(3, lambda first, last: small.__setitem__(slice(first, last), 1.0))
    large = work_sharing.shared_array("table", (3000,))
    work_sharing.map_range(3000, lambda first, last: large.__setitem__(slice(first, last), 2.0))
    assert small.tolist() == [1.0] * 3
    assert work_sharing.shared_array("table", (10,))[:].tolist() == [2.0] * 10


@pytest.mark.mpi
def test_work_sharing_is_stored_with_its_communicator():
    assert Ranks().work_sharing is Ranks().work_sharing
    again = MPI.COMM_WORLD.Dup()
    assert Ranks(again).work_sharing is not Ranks().work_sharing
    assert Ranks.self_only().work_sharing.size == 1


@pytest.mark.mpi
def test_ranks_that_cannot_share_memory_have_copies_and_print_a_note(monkeypatch, capfd):
    def refuse(name):
        raise OSError(38, "not here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    found = NodeSharing(MPI.COMM_WORLD)
    assert (found.size, found.nodes) == (1, MPI.COMM_WORLD.size)
    said = capfd.readouterr().err
    if MPI.COMM_WORLD.size > 1 and MPI.COMM_WORLD.rank == 0:
        expected = (
            "note: the ranks of a node cannot share memory, so every rank has its own copies: [Errno 38] not here\n"
        )
        assert said == expected
    else:
        assert said == ""


@pytest.mark.mpi
def test_a_rank_that_maps_different_memory_is_noticed(monkeypatch, capfd):
    true_open = os.open

    def open_zeros(path, *args):
        path = "/dev/zero" if str(path).startswith("/proc/") else path
        return true_open(path, *args)

    monkeypatch.setattr(os, "open", open_zeros)
    assert NodeSharing(MPI.COMM_WORLD).size == 1
    capfd.readouterr()


def test_serial_work_sharing_does_all_pieces():
    work_sharing, table = Serial(), np.zeros(4)
    work_sharing.map_pieces([2, 2], lambda k: table.__setitem__(slice(2 * k, 2 * k + 2), k + 1.0), lambda k: table)
    assert table.tolist() == [1.0, 1.0, 2.0, 2.0]


def test_shared_memory_is_freed_when_a_rank_is_killed(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal\n"
        "from parallel_et.parallel.communicator import Ranks\n"
        "ranks = Ranks()\n"
        "ranks.work_sharing.shared_array('table', (1 << 20,))[:] = 1.0\n"
        "ranks.barrier()\n"
        "os.kill(os.getpid(), signal.SIGKILL) if ranks.rank == 1 else ranks.barrier()\n"
    )
    before = set(os.listdir("/dev/shm"))
    assert launch(3, script).returncode != 0
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "parallel_et" in name]
