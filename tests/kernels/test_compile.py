"""Every kernel is compiled once on a machine: by one rank, for the first run or ahead of it."""

import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numba
import pytest
from launch import CLEAN, TIMEOUT_SECONDS, command

import parallel_et
from parallel_et.kernels import cache

PACKAGE = Path(parallel_et.__file__).parent
JOB = """
[model]
name = "noisyor"
causes = 4
[data]
source = "bars"
points = 50
grid = 4
value = 1.0
overlap = "max"
noise = { kind = "none" }
[inference]
candidates = 3
gamma = 2
[anneal]
iterations = 2
"""
OWN = ("fixed", "random", "select", "truncated")
"""The modules with all kernels that this job needs: of the engine and of expectation truncation."""
ALL = (*OWN, "counts")
"""The modules of the tested copy; the others would only take time to compile."""


def declared(modules):
    """Return the number of kernels in some modules."""
    return sum(len(kernels_in(PACKAGE / "kernels" / f"{module}.py")) for module in modules)


def kernels_in(path):
    """Return the first lines of the kernels in a file."""
    return re.findall(r"^@kernel\(", path.read_text(), re.MULTILINE)


def loaded(done):
    """Return the modules whose kernels were compiled or loaded."""
    return {
        Path(path).name.partition(".")[0]
        for path in re.findall(r"data (?:saved to|loaded from) ['\"]([^'\"]*)", done.stdout)
    }


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the package in read-only directories, with kernels that its first run has compiled."""
    place = tmp_path_factory.mktemp("installed")
    shutil.copytree(PACKAGE, place / "parallel_et", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (place / "parallel_et/kernels").glob("*.py"):
        if path.stem not in ALL and kernels_in(path):
            path.unlink()
    (place / "job.toml").write_text(JOB)
    first = run(place, "train", "job.toml", ranks=2)
    assert first.returncode == 0, first.stderr
    with read_only(place):
        yield place, first


@contextmanager
def read_only(place):
    inside = [place, *(p for p in place.rglob("*") if p.is_dir())]
    for path in inside:
        path.chmod(0o555)
    yield
    for path in inside:
        path.chmod(0o755)


def run(place, name, *args, ranks=None, cwd=None, **more):
    """Run a command of the package at ``place``, without a home and without the rights of root over directories."""
    variables = {k: v for k, v in CLEAN.items() if k not in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    variables |= {"PYTHONPATH": str(place), "NUMBA_DEBUG_CACHE": "1", "PYTHONUNBUFFERED": "1", **more}
    plain = [] if os.getuid() else ["setpriv", "--bounding-set=-dac_override"]
    line = [*plain, *command(ranks, "-m", "parallel_et", name, *args)]
    return subprocess.run(
        line, cwd=cwd or place, env=variables, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )


needs_plain_user = pytest.mark.skipif(
    os.getuid() == 0 and shutil.which("setpriv") is None, reason="root can write anywhere, and setpriv is missing"
)


@needs_plain_user
def test_each_kernel_is_compiled_once_by_one_rank_also_in_a_read_only_installation(installed, tmp_path):
    place, first = installed
    saved = re.findall(r"\[cache\] data saved to ['\"]([^'\"]*)", first.stdout)
    assert len(saved) == len(set(saved)) == declared(OWN)
    assert first.stdout.count("data loaded") == declared(OWN)
    assert loaded(first) == set(OWN)
    assert first.stderr == "note: the kernels are compiled for this processor, once; about 20 seconds\n"
    second = run(place, "train", place / "job.toml", ranks=3, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "data saved" not in second.stdout
    assert second.stderr == ""
    assert second.stdout.count("data loaded") == 3 * declared(OWN)
    assert loaded(second) == set(OWN)


@needs_plain_user
def test_kernels_that_a_read_only_installation_lacks_are_compiled_elsewhere_with_a_note(installed, tmp_path):
    place, elsewhere = installed[0], tmp_path / f"parallel_et-{os.getuid()}"
    inside = next(path for path in (place / "parallel_et/kernels/__pycache__").glob("*") if path.is_dir())
    for saved in (declared(ALL) - declared(OWN), 0):
        done = run(place, "compile", cwd=tmp_path, TMPDIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("data saved") == done.stdout.count(f"data saved to '{elsewhere}") == saved
        assert done.stdout.count("data loaded") == declared(ALL) - saved
        assert f"all kernels are in {inside} and {elsewhere}/{inside.name}" in done.stdout
        assert done.stderr.count(f"note: compiled kernels are stored in {elsewhere}") == 1
        assert done.stderr.count("20 seconds") == bool(saved)


def test_kernels_of_another_processor_have_another_directory(monkeypatch):
    here = cache.directory_name()
    monkeypatch.setattr(numba.config, "CPU_NAME", "generic")
    assert cache.directory_name() != here


@needs_plain_user
def test_damaged_kernels_of_a_read_only_installation_are_compiled_again_elsewhere_with_one_line(installed, tmp_path):
    place = installed[0]
    compiled = sorted((place / "parallel_et/kernels/__pycache__").rglob("fixed.*.kernel"))
    sound = {path: path.read_bytes() for path in compiled}
    for path, content in sound.items():
        path.write_bytes(content[: len(content) // 2])
    done = run(place, "train", place / "job.toml", ranks=2, cwd=tmp_path, TMPDIR=str(tmp_path))
    for path, content in sound.items():
        path.write_bytes(content)
    assert done.returncode == 0, done.stderr
    damaged, elsewhere = done.stderr.splitlines()
    more = f"found a damaged file and {len(compiled) - 1} more; it is compiled again"
    assert damaged == f"note: {compiled[0]}: expected a compiled kernel, {more}"
    assert elsewhere.startswith(f"note: compiled kernels are stored in {tmp_path}/parallel_et-")
    assert done.stdout.count("data saved") == len(compiled)
