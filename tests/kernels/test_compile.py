"""Every kernel is compiled once on a machine: by one rank, for the first run or ahead of it, and never again."""

import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numba
import pytest
from launch import CLEAN, PATIENCE, command

import parallel_et
from parallel_et.kernels.cache import is_complete, key

PACKAGE = Path(parallel_et.__file__).parent
DEMO = PACKAGE.parent / "jobs" / "demo.toml"
SHORT = ("--fresh", "--set", "anneal.iterations=2", "--set", "run.picture=false")


def declared():
    files = (PACKAGE / "kernels").glob("*.py")
    return sum(len(re.findall(r"^@kernel\(", path.read_text(), re.MULTILINE)) for path in files)


def test_a_directory_that_may_not_be_looked_into_is_not_complete(monkeypatch):
    def refuse(path):
        raise PermissionError

    monkeypatch.setattr(Path, "exists", refuse)
    assert not is_complete(Path("somewhere"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the package, its kernels compiled by the first run on it, in directories that cannot be written to."""
    place = tmp_path_factory.mktemp("installed")
    shutil.copytree(PACKAGE, place / "parallel_et", ignore=NO_KERNELS)
    first = run(place, "train", DEMO, *SHORT, ranks=3)
    assert first.returncode == 0, first.stderr
    with read_only(place):
        yield place, first


NO_KERNELS = shutil.ignore_patterns("__pycache__")


@contextmanager
def read_only(place):
    inside = [place, *(p for p in place.rglob("*") if p.is_dir())]
    for path in inside:
        path.chmod(0o555)
    yield
    for path in inside:
        path.chmod(0o755)


def run(place, name, *args, ranks=None, cwd=None, **more):
    """A command of the package at ``place``, without a home and without the powers of root over directories."""
    variables = {k: v for k, v in CLEAN.items() if k not in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    variables |= {"PYTHONPATH": str(place), "NUMBA_DEBUG_CACHE": "1", **more}
    plain = [] if os.getuid() else ["setpriv", "--bounding-set=-dac_override"]
    line = [*plain, *command(ranks, "-m", f"parallel_et.{name}", *args)]
    return subprocess.run(line, cwd=cwd or place, env=variables, capture_output=True, text=True, timeout=PATIENCE)


needs_plain_user = pytest.mark.skipif(
    os.getuid() == 0 and shutil.which("setpriv") is None, reason="root can write anywhere, and setpriv is not there"
)


@needs_plain_user
def test_kernels_are_compiled_by_one_rank_only_and_never_again_also_if_nothing_can_be_written(installed, tmp_path):
    place, first = installed
    saved = re.findall(r"\[cache\] data saved to '(.*)'", first.stdout)
    assert len(saved) == len(set(saved)) == declared()
    assert first.stderr == "note: the kernels are compiled for this processor, once; some 20 seconds\n"
    second = run(place, "train", DEMO, *SHORT, ranks=3, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "data saved" not in second.stdout
    assert second.stderr == ""
    assert second.stdout.count("data loaded") == 3 * declared()
    done = run(place, "compile", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "data saved" not in done.stdout
    assert f"all kernels are in {place}/parallel_et/kernels/__pycache__/" in done.stdout


@needs_plain_user
def test_a_read_only_installation_without_a_home_compiles_elsewhere_and_says_so(installed, tmp_path):
    """As on a node with another processor than that of the machine where it was compiled."""
    (compiled,) = (installed[0] / "parallel_et/kernels/__pycache__").glob("*/complete")
    shutil.copytree(installed[0] / "parallel_et", tmp_path / "package/parallel_et", ignore=NO_KERNELS)
    elsewhere = tmp_path / f"parallel_et-{os.getuid()}" / compiled.parent.name
    shutil.copytree(compiled.parent, elsewhere)  # all but one, which is enough to be compiled
    elsewhere.chmod(0o755)
    elsewhere.parent.chmod(0o700)
    for path in (elsewhere / "complete", *elsewhere.glob("*digest*")):
        path.unlink()
    (tmp_path / "run").mkdir()
    with read_only(tmp_path / "package"):
        for saved in (1, 0):
            done = run(tmp_path / "package", "train", DEMO, *SHORT, cwd=tmp_path / "run", TMPDIR=str(tmp_path))
            assert done.returncode == 0, done.stderr
            assert done.stdout.count("data saved") == saved
            assert done.stdout.count("data loaded") == declared() - saved
            assert done.stderr.count(f"note: kernels are compiled into {elsewhere}") == 1


def test_kernels_of_another_processor_lie_elsewhere(monkeypatch):
    here = key()
    monkeypatch.setattr(numba.config, "CPU_NAME", "generic")
    assert key() != here
