"""The lock of a directory, as two jobs on different nodes see it."""

import threading

import pytest

from parallel_et.errors import UserError
from parallel_et.io import lock as module
from parallel_et.io.lock import Lock, read


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.05)
    monkeypatch.setattr(module, "PATIENCE", 0.5)


def lock_on(host, path):
    lock = Lock(path, "the run", lambda line: None)
    lock.me["host"] = host
    return lock


def test_one_that_lives_is_respected_and_one_that_was_given_back_is_free(tmp_path):
    a, b = lock_on("a", tmp_path / "lock"), lock_on("b", tmp_path / "lock")
    a.take()
    with pytest.raises(UserError, match=r"the run: expected that no other job works on it, found process \d+ on a"):
        b.take()
    a.release()
    b.take()
    b.release()
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_was_suspended_does_not_disturb_who_took_over(tmp_path):
    a, b = lock_on("a", tmp_path / "lock"), lock_on("b", tmp_path / "lock")
    a.take()
    a._ended.set()  # no more signs of life
    b.take()
    a._write(a._file, 77)  # it wakes up
    assert read(tmp_path / "lock")["host"] == "b"
    assert b.keep()
    assert not a.keep()
    a.release()
    assert b.keep()
    b.release()


def test_of_many_that_find_a_dead_one_exactly_one_gets_it(tmp_path):
    dead = lock_on("dead", tmp_path / "lock")
    dead.take()
    dead._ended.set()
    got, refused = [], []

    def try_it(number):
        lock = lock_on(f"node{number}", tmp_path / "lock")
        try:
            lock.take()
            got.append(lock)
        except UserError:
            refused.append(lock)

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [lock.keep() for lock in got].count(True) == 1
    assert len(got) == 1
    assert len(refused) == 7
    got[0].release()
