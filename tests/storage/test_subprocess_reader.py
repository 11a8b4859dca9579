"""Files that crash the reading process are refused, and the main process survives."""

import os

import numpy as np
import pytest

from parallel_et.errors import UserError
from parallel_et.storage import subprocess_reader
from parallel_et.storage.subprocess_reader import SubprocessReader

READER = """
import os, signal, sys
import numpy as np
from parallel_et.errors import UserError
def good(path, count): return [np.arange(int(count)), np.ones((2, 3), ">f4")]
def bad(path): raise UserError(f"{path}: no")
def crash(path): os.kill(os.getpid(), signal.SIGSEGV)
def loop(path):
    while True: pass
def leave(path): sys.exit(3)
def loud(path):
    print("hello"); os.write(1, b"hello"); return [np.zeros(1)]
def later(path):
    import atexit; atexit.register(crash, path); return []
def modules(path): return [np.array(["mpi4py" in sys.modules])]
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    (tmp_path / "reader_of_files.py").write_text(READER)
    (tmp_path / "a").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(subprocess_reader, "TIMEOUT_SECONDS", 0.3)
    with SubprocessReader() as process:
        yield lambda function, *args: process.call(str(tmp_path / "a"), "reader_of_files", function, *args)


def test_arrays_and_refusals_come_back(ask):
    first, second = ask("good", "100000")
    np.testing.assert_array_equal(first, np.arange(100000))
    assert (second.dtype, second.shape) == (np.dtype(">f4"), (2, 3))
    with pytest.raises(UserError, match="/a: no"):
        ask("bad")
    assert ask("loud")[0] == 0
    assert not ask("modules")[0]


@pytest.mark.parametrize(
    "function, words",
    [("crash", r"crashes \(SIGSEGV\)"), ("leave", r"crashes \(exit code 3\)"), ("loop", r"more than 0\.3 s")],
)
def test_a_file_that_ends_the_process_is_refused_and_the_next_one_read(ask, function, words):
    for _ in range(2):
        with pytest.raises(UserError, match=f"/a: expected a sound file, found one .*{words}"):
            ask(function)
        assert len(ask("good", "3")[0]) == 3


def test_the_process_ends_with_the_one_that_asked(ask, tmp_path):
    process = SubprocessReader()
    process.call(str(tmp_path / "a"), "reader_of_files", "good", "1")
    number = process._process.pid
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_a_process_that_crashes_when_it_ends_tells_so_too(ask, tmp_path):
    process = SubprocessReader()
    assert process.call(str(tmp_path / "a"), "reader_of_files", "later") == []
    with pytest.raises(UserError, match=r"crashes \(SIGSEGV\)"):
        process.close()


def test_signals_to_the_command_do_not_end_the_process(ask, tmp_path):
    process = SubprocessReader()
    process.call(str(tmp_path / "a"), "reader_of_files", "good", "1")
    for number in subprocess_reader.COMMAND_SIGNALS:
        os.kill(process._process.pid, number)
    assert len(process.call(str(tmp_path / "a"), "reader_of_files", "good", "2")[0]) == 2
    process.close()
