"""Every kernel is compiled once on a machine: by one rank, for the first run or ahead of it, and never again."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launch import train

import parallel_et
from parallel_et.kernels.cache import is_complete

PACKAGE = Path(parallel_et.__file__).parent
DEMO = PACKAGE.parent / "jobs" / "demo.toml"
SHORT = ("--fresh", "--set", "anneal.iterations=2", "--set", "run.picture=false")


def declared():
    files = (PACKAGE / "kernels").glob("*.py")
    return sum(len(re.findall(r"^@kernel\(", path.read_text(), re.MULTILINE)) for path in files)


def test_kernels_are_compiled_by_one_rank_only_and_never_again(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_DEBUG_CACHE": "1"}
    first = train(3, DEMO, *SHORT, cwd=tmp_path, **cache)
    assert first.returncode == 0, first.stderr
    saved = re.findall(r"\[cache\] data saved to '(.*)'", first.stdout)
    assert len(saved) == len(set(saved)) == declared()
    assert first.stderr == "note: the kernels are compiled for this processor, once; some 20 seconds\n"
    second = train(3, DEMO, *SHORT, cwd=tmp_path, **cache)
    assert second.returncode == 0, second.stderr
    assert "data saved" not in second.stdout
    assert second.stderr == ""
    assert second.stdout.count("data loaded") == 3 * declared()


def test_a_directory_that_may_not_be_looked_into_is_not_complete(monkeypatch):
    def refuse(path):
        raise PermissionError

    monkeypatch.setattr(Path, "exists", refuse)
    assert not is_complete(Path("somewhere"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the package with all kernels compiled ahead, in directories that cannot be written to."""
    place = tmp_path_factory.mktemp("installed")
    shutil.copytree(PACKAGE, place / "parallel_et", ignore=shutil.ignore_patterns("__pycache__"))
    done = run(place, "compile")
    assert done.returncode == 0, done.stderr
    assert f"all kernels are in {place}/parallel_et/kernels/__pycache__/" in done.stdout
    inside = [place, *(p for p in place.rglob("*") if p.is_dir())]
    for path in inside:
        path.chmod(0o555)
    yield place
    for path in inside:
        path.chmod(0o755)


def run(place, command, *args, cwd=None, **more):
    """A command of the package at ``place``, without a home and without the powers of root over directories."""
    variables = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    variables |= {"PYTHONPATH": str(place), "NUMBA_DEBUG_CACHE": "1", **more}
    plain = [] if os.getuid() else ["setpriv", "--bounding-set=-dac_override"]
    line = [*plain, sys.executable, "-m", f"parallel_et.{command}", *map(str, args)]
    return subprocess.run(line, cwd=cwd or place, env=variables, capture_output=True, text=True, timeout=240)


needs_plain_user = pytest.mark.skipif(
    os.getuid() == 0 and shutil.which("setpriv") is None, reason="root can write anywhere, and setpriv is not there"
)


@needs_plain_user
def test_a_read_only_installation_runs_with_what_was_compiled_ahead(installed, tmp_path):
    done = run(installed, "train", DEMO, *SHORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "data saved" not in done.stdout
    assert done.stdout.count("data loaded") == declared()
    assert "note:" not in done.stderr


@needs_plain_user
def test_a_read_only_installation_without_a_home_compiles_elsewhere_and_says_so(installed, tmp_path):
    """As on a node with another processor than that of the machine where it was compiled."""
    (tmp_path / "run").mkdir()
    for saved in (declared(), 0):
        done = run(
            installed,
            "train",
            DEMO,
            *SHORT,
            cwd=tmp_path / "run",
            TMPDIR=str(tmp_path),
            NUMBA_CPU_NAME="generic",
            NUMBA_CPU_FEATURES="+sse2",
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("data saved") == saved
        assert done.stderr.count(f"note: kernels are compiled into {tmp_path}/parallel_et-") == 1
