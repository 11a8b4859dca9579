"""The lock of a directory, seen by two jobs on different nodes."""

import json
import os
import subprocess
import sys
import threading

import pytest

from parallel_et.errors import UserError
from parallel_et.storage import lock as module
from parallel_et.storage.lock import Lock, read


@pytest.fixture(autouse=True)
def fast_heartbeats(monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(module, "HEARTBEAT_TIMEOUT_SECONDS", 0.5)


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
    a._ended.set()  # no more heartbeats
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


SOUND = {"host": "a", "boot": "b", "pid": 1, "start": "1", "job": "", "restart": "0", "token": "t", "beat": "1"}


def make_obstacle(path, kind):
    """Create something other than a lock at ``path``."""
    if kind == "dangling link":
        path.symlink_to(path.with_name("nowhere"))
    elif kind == "loop of links":
        path.symlink_to(path)
    elif kind == "link to a lock":
        path.with_name("elsewhere").write_text(json.dumps(SOUND))
        path.symlink_to(path.with_name("elsewhere"))
    elif kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif isinstance(kind, bytes):
        path.write_bytes(kind)
    else:
        path.write_text(json.dumps(kind))


@pytest.mark.parametrize(
    "kind",
    [
        *("dangling link", "loop of links", "link to a lock", "directory", "pipe", "huge"),
        *(b"", b"{", b"{}", b"[]", b"3", b"null", b'"host"', b"\xff\xfe", b"[" * 5000, b"9" * 5000),
        {key: value for key, value in SOUND.items() if key != "pid"},
        {**SOUND, "pid": "1"},
        {**SOUND, "pid": True},
        {**SOUND, "pid": 1 << 70},
        {**SOUND, "host": 3},
        {**SOUND, "host": "two\nlines"},
        {**SOUND, "job": None},
        {**SOUND, "token": "../t"},
        {**SOUND, "token": ""},
        {**SOUND, "beat": None},
    ],
    ids=lambda kind: str(kind)[-40:],
)
def test_what_is_no_lock_is_refused_in_one_line_and_left_alone(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(module, "REREAD_SECONDS", 0.0)
    path = tmp_path / "lock"
    make_obstacle(path, kind)
    before = sorted(tmp_path.iterdir())
    for look in (Lock(path, "the run").take, Lock(path, "the run").holder):
        with pytest.raises(UserError) as error:
            look()
        line = str(error.value)
        assert line.startswith(f"{path}: expected the lock of a job, found ")
        assert line.endswith("; remove it if no job is running")
        assert "\n" not in line
    assert sorted(tmp_path.iterdir()) == before


HOLD = """
import sys
from pathlib import Path
from parallel_et.storage import lock
lock.HEARTBEAT_SECONDS = 0.05
mine = lock.Lock(Path(sys.argv[1]), "the run")
mine.take()
print(mine.me["pid"], flush=True)
sys.stdin.read()
"""


def test_a_job_in_another_container_is_known_by_its_signs_of_life_not_by_its_number(tmp_path, monkeypatch):
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no container can be made here")
    path = tmp_path / "lock"
    command = [*inside, sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        number = int(process.stdout.readline())  # of a process that is another one here, or none
        assert number < os.getpid()
        monkeypatch.setattr(module, "HEARTBEAT_TIMEOUT_SECONDS", 500.0)
        with pytest.raises(UserError, match=f"the run: expected that no other job .* found process {number} on "):
            Lock(path, "the run").take()
        process.kill()
    monkeypatch.setattr(module, "HEARTBEAT_TIMEOUT_SECONDS", 0.5)
    lines = []
    lock = Lock(path, "the run", lines.append)
    lock.take()
    lock.release()
    assert "waiting up to" in lines[0]
    assert "is taken over" in lines[1]


def test_a_dead_job_of_this_system_is_taken_over_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT_TIMEOUT_SECONDS", 500.0)
    path = tmp_path / "lock"
    process = subprocess.run([sys.executable, "-c", HOLD, path], input="", capture_output=True, text=True, check=True)
    lines = []
    lock = Lock(path, "the run", lines.append)
    lock.take()
    lock.release()
    assert [f"process {int(process.stdout)}) is taken over" in line for line in lines] == [True]
