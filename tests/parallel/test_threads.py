import threading

import pytest

from parallel_et.parallel.threads import ThreadTeam

BLOCKS = [slice(i, i + 1) for i in range(40)]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_block_is_done_once(size):
    done, lock = [], threading.Lock()

    def work(block, thread):
        assert 0 <= thread < size
        with lock:
            done.append(block.start)

    ThreadTeam(size).map_blocks(BLOCKS, work)
    assert sorted(done) == list(range(40))


@pytest.mark.parametrize("size", [1, 3])
def test_an_error_of_one_thread_is_raised(size):
    def work(block, thread):
        if block.start == 7:
            raise ArithmeticError("block 7")

    with pytest.raises(ArithmeticError, match="block 7"):
        ThreadTeam(size).map_blocks(BLOCKS, work)


def test_threads_run_in_parallel():
    meeting = threading.Barrier(3, timeout=20)
    ThreadTeam(3).map_blocks(BLOCKS[:3], lambda block, thread: meeting.wait())
