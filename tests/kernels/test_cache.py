"""The cache of compiled kernels: damaged files, several processes and threads at once, no folder or no memory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from damaged_results import spoil
from launch import CLEAN, TIMEOUT_SECONDS, launch

SCRIPT = """
from parallel_et.kernels import cache, kernel

@kernel("f8(f8, i8)")
def add(x, n):
    return x * x + n

@kernel("f8(f8, i8)")
def subtract(x, n):
    return x * x - n

for note in cache.notes():
    print(note)
print(add(1.5, 4), subtract(2.0, 3))
"""
RIGHT = "6.25 1.0\n"
THREADS = """
import threading
import numpy as np
from mpi4py import MPI
from parallel_et import fit

JOB = {
    "model": {"name": "noisyor", "causes": 3},
    "inference": {"candidates": 2, "gamma": 1},
    "anneal": {"iterations": 2},
}
Y = (np.random.default_rng(1).random((50, 6)) < 0.5).astype(float)
start, found = threading.Barrier(4), []

def learn():
    start.wait()
    found.append(fit(JOB, Y, comm=MPI.COMM_SELF).params["W"].tobytes())

threads = [threading.Thread(target=learn) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 4, "a thread has failed"
assert len(set(found)) == 1
"""
DAMAGES = {
    "cut off": lambda path, raw, other: path.write_bytes(raw[: len(raw) // 2]),
    "flipped": lambda path, raw, other: path.write_bytes(spoil(np.random.default_rng(6), raw)),
    "a bit in its middle": lambda path, raw, other: path.write_bytes(
        raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 4]) + raw[len(raw) // 2 + 1 :]
    ),
    "zeros": lambda path, raw, other: path.write_bytes(bytes(len(raw))),
    "empty": lambda path, raw, other: path.write_bytes(b""),
    "another kernel": lambda path, raw, other: path.write_bytes(other),
    "longer": lambda path, raw, other: path.write_bytes(raw + b"x"),
}


def run(place, **more):
    """Run the two kernels in a separate process."""
    (place / "script.py").write_text(SCRIPT)
    env = {**CLEAN, "NUMBA_CACHE_DIR": str(place / "cache"), "TMPDIR": str(place), **more}
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("cache")
    assert run(place).stdout.endswith(RIGHT)
    assert run(place).stdout == RIGHT
    return place


def file_of(place, name):
    """Return the file of a kernel."""
    return next((place / "cache").glob(f"*/__main__.{name}.kernel"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_kernel_is_compiled_again_with_one_line(place, damage):
    path, other = file_of(place, "add"), file_of(place, "subtract").read_bytes()
    DAMAGES[damage](path, path.read_bytes(), other)
    done = run(place)
    line = f"{path}: expected a compiled kernel, found a damaged file; it is compiled again\n"
    assert (done.returncode, done.stdout) == (0, line + RIGHT), done.stderr
    assert run(place).stdout == RIGHT


@pytest.mark.parametrize("name", ["a directory", "a pipe", "a link to nowhere", "a device"])
def test_a_path_that_is_no_file_is_skipped(place, name):
    path = file_of(place, "add")
    content = path.read_bytes()
    path.unlink()
    if name == "a directory":
        path.mkdir()
    elif name == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere" if name == "a link to nowhere" else "/dev/zero")
    done = run(place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(RIGHT)
    assert run(place).stdout.endswith(RIGHT)
    if name == "a directory":
        path.rmdir()
        path.write_bytes(content)


def test_several_processes_at_once_create_and_repair_a_cache(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**CLEAN, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for _ in range(2):
        command = [sys.executable, "script.py"]
        several = [subprocess.Popen(command, cwd=tmp_path, env=env, stdout=-1, stderr=-1, text=True) for _ in range(4)]
        for process in several:
            out, err = process.communicate(timeout=TIMEOUT_SECONDS)
            assert out.endswith(RIGHT), err
        file_of(tmp_path, "add").write_bytes(b"damaged")
    assert not [*tmp_path.rglob("*.part")]


def test_first_fits_in_several_threads_share_the_kernels(tmp_path):
    (tmp_path / "threads.py").write_text(THREADS)
    done = launch(None, "threads.py", cwd=tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "note: the kernels are compiled for this processor, once; about 20 seconds\n"


JOB = '[model]\nname = "noisyor"\ncauses = 3\n[data]\nsource = "bars"\npoints = 9\n[inference]\nscheme = "exact"\n'


@pytest.mark.parametrize("ranks", [None, 2])
def test_settings_that_kernels_cannot_run_with_are_one_line(tmp_path, ranks):
    (tmp_path / "job.toml").write_text(JOB)
    for variable, value, line in (
        ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT: expected 0, as kernels only run compiled, found 1; unset this"),
        ("NUMBA_CACHE_DIR", str(Path(__file__)), "expected a folder for compiled kernels, found a file; name a folder"),
    ):
        done = launch(ranks, "-m", "parallel_et.train", "job.toml", cwd=tmp_path, **{variable: value})
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert line in done.stderr


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("kind, size, least", [("v", 100_000, 300), ("v", 500_000, 800), ("d", 100_000, 260)])
def test_too_little_memory_to_load_is_one_line(tmp_path, ranks, kind, size, least):
    (tmp_path / "limited.sh").write_text(
        f"ulimit -{kind} {size}\nexec {sys.executable} -m parallel_et.train job.toml\n"
    )
    done = launch(ranks, "-c", "import os; os.execvp('bash', ['bash', 'limited.sh'])", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"memory: expected at least {least} MB of ")
