"""Works that are shared out, on one node and on several; ranks believe what ``neighbours`` tells them."""

import os
from itertools import chain

import numpy as np
import pytest
from launch import launch
from mpi4py import MPI

from parallel_et.kernels import fixed
from parallel_et.parallel import shared_memory
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shared_memory import Node
from parallel_et.parallel.work_sharing import Alone

TOGETHER = {
    "one node": lambda rank: 0,
    "two nodes": lambda rank: rank % 2,
    "a node and a single rank": lambda rank: min(rank, 1),
    "nodes of one rank": lambda rank: rank,
}


@pytest.fixture(params=TOGETHER)
def deal(request, monkeypatch):
    monkeypatch.setattr(shared_memory, "neighbours", lambda comm: comm.Split(TOGETHER[request.param](comm.rank)))
    return Node(MPI.COMM_WORLD)


@pytest.mark.mpi
def test_pieces_are_each_done_once_and_then_everywhere(deal):
    sizes, table = [1, 12, 3, 8, 2, 30], deal.room("table", (8, 7))
    parts = np.split(np.arange(56), np.cumsum(sizes))[:-1]
    done = []

    def work(k):
        done.append(k)
        out(k)[:] = k + 0.5

    def out(k):
        return table.reshape(-1)[parts[k][0] : parts[k][-1] + 1]

    deal(sizes, work, out)
    assert sorted(chain(*MPI.COMM_WORLD.allgather(done))) == list(range(6))
    assert (table == np.repeat(np.arange(6) + 0.5, sizes).reshape(8, 7)).all()


@pytest.mark.mpi
def test_pieces_need_not_lie_together(deal):
    table = deal.room("table", (6, 10))
    parts = [slice(start, start + 2) for start in range(0, 10, 2)]

    def work(k):
        table[:, parts[k]] = np.arange(12).reshape(6, 2) + 100 * k

    deal([12] * 5, work, lambda k: table[:, parts[k]])
    assert all((table[:, part] == np.arange(12).reshape(6, 2) + 100 * k).all() for k, part in enumerate(parts))


@pytest.mark.mpi
def test_every_node_does_all_that_it_is_to_do_for_itself(deal):
    table = deal.room("table", (5,))
    deal.here(5, lambda first, last: table.__setitem__(slice(first, last), np.arange(first, last)))
    assert table.tolist() == [0, 1, 2, 3, 4]
    assert deal.own("table", table).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.mpi
@pytest.mark.parametrize("count", [2, 40_001])
def test_words_are_summed_over_all_ranks(deal, count):
    words, values = deal.room("words", (deal.size, 2, count), np.int64), deal.room("values", (count,))
    every = np.random.default_rng(3).integers(-(1 << 40), 1 << 40, (MPI.COMM_WORLD.size, 2, count))
    words[deal.rank] = every[MPI.COMM_WORLD.rank]
    deal.sum(words, lambda total, first: fixed.value(1.0, *total, values[first : first + total.shape[1]]), values)
    expected = np.empty(count)
    fixed.value(1.0, *every.sum(0), expected)
    assert values.tobytes() == expected.tobytes()


@pytest.mark.mpi
def test_low_words_that_are_nearly_full_do_not_overflow(deal):
    words, values = deal.room("words", (deal.size, 2, 3), np.int64), deal.room("values", (3,))
    words[deal.rank] = np.array([[5, 5, 5], [fixed.FULL, -fixed.FULL, 1 - fixed.FULL]])
    total, exact = np.empty((2, 3), np.int64), 5 + words[deal.rank, 1] / fixed.LOW
    deal.sum(words, lambda total, first: fixed.value(1.0, *total, values[first : first + total.shape[1]]), values)
    np.testing.assert_allclose(values, MPI.COMM_WORLD.size * exact, rtol=1e-15)
    fixed.add_up(np.tile(words[[deal.rank]], (9, 1, 1)), 0, total)  # more ranks than are here
    fixed.value(1.0, *total, mine := np.empty(3))
    np.testing.assert_allclose(mine, 9 * exact, rtol=1e-15)


@pytest.mark.mpi
def test_memory_that_one_rank_cannot_have_is_an_error_on_all_of_its_node(monkeypatch):
    deal, last = Node(MPI.COMM_WORLD), MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1

    def refuse(*args):
        raise OSError(12, "no more")

    monkeypatch.setattr(shared_memory, "mmap", refuse if last else shared_memory.mmap)
    if deal.size > 1:
        with pytest.raises(MemoryError, match=r"^expected 8000 bytes that the ranks of a node share, found .*no more"):
            deal.room("table", (1000,))


@pytest.mark.mpi
def test_what_mpi_has_for_it_goes_with_its_communicator():
    comm = MPI.COMM_WORLD.Dup()
    found = Node.of(comm)
    comm.Free()
    assert found._comm == MPI.COMM_NULL


@pytest.mark.mpi
def test_a_room_grows_and_what_it_was_before_stays(deal):
    small = deal.room("table", (3,))
    deal.here(3, lambda first, last: small.__setitem__(slice(first, last), 1.0))
    large = deal.room("table", (3000,))
    deal.here(3000, lambda first, last: large.__setitem__(slice(first, last), 2.0))
    assert small.tolist() == [1.0] * 3
    assert deal.room("table", (10,))[:].tolist() == [2.0] * 10


@pytest.mark.mpi
def test_a_communicator_keeps_its_own():
    assert Ranks().node is Ranks().node
    again = MPI.COMM_WORLD.Dup()
    assert Ranks(again).node is not Ranks().node
    assert Ranks.alone().node.size == 1


@pytest.mark.mpi
def test_where_memory_cannot_be_shared_each_rank_has_its_own_and_a_note_says_so(monkeypatch, capfd):
    def refuse(name):
        raise OSError(38, "not here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    found = Node(MPI.COMM_WORLD)
    assert (found.size, found.nodes) == (1, MPI.COMM_WORLD.size)
    said = capfd.readouterr().err
    if MPI.COMM_WORLD.size > 1 and MPI.COMM_WORLD.rank == 0:
        expected = "note: the ranks of a node cannot share memory, and have copies of their own: [Errno 38] not here\n"
        assert said == expected
    else:
        assert said == ""


@pytest.mark.mpi
def test_a_rank_that_sees_other_memory_than_its_neighbours_is_noticed(monkeypatch, capfd):
    strange = os.open

    def other(path, *args):
        path = "/dev/zero" if str(path).startswith("/proc/") else path
        return strange(path, *args)

    monkeypatch.setattr(os, "open", other)
    assert Node(MPI.COMM_WORLD).size == 1
    capfd.readouterr()


def test_alone_does_all_of_it():
    deal, table = Alone(), np.zeros(4)
    deal([2, 2], lambda k: table.__setitem__(slice(2 * k, 2 * k + 2), k + 1.0), lambda k: table)
    assert table.tolist() == [1.0, 1.0, 2.0, 2.0]


def test_nothing_is_left_of_shared_memory_when_a_rank_is_killed(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal\n"
        "from parallel_et.parallel.communicator import Ranks\n"
        "ranks = Ranks()\n"
        "ranks.node.room('table', (1 << 20,))[:] = 1.0\n"
        "ranks.meet()\n"
        "os.kill(os.getpid(), signal.SIGKILL) if ranks.rank == 1 else ranks.meet()\n"
    )
    before = set(os.listdir("/dev/shm"))
    assert launch(3, script).returncode != 0
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "parallel_et" in name]
