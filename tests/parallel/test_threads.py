import threading

import pytest

from parallel_et.parallel.threads import Team

BLOCKS = [slice(i, i + 1) for i in range(40)]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_block_is_done_once_by_some_thread(size):
    done, lock = [], threading.Lock()

    def work(block, thread):
        assert 0 <= thread < size
        with lock:
            done.append(block.start)

    Team(size).share(BLOCKS, work)
    assert sorted(done) == list(range(40))


@pytest.mark.parametrize("size", [1, 3])
def test_an_error_of_one_thread_is_everybodys(size):
    def work(block, thread):
        if block.start == 7:
            raise ArithmeticError("block 7")

    with pytest.raises(ArithmeticError, match="block 7"):
        Team(size).share(BLOCKS, work)


def test_threads_work_at_the_same_time():
    meeting = threading.Barrier(3, timeout=20)
    Team(3).share(BLOCKS[:3], lambda block, thread: meeting.wait())
