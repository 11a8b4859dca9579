"""Every kernel is compiled once on a machine: by one rank, for the first run, and never again."""

import re
from pathlib import Path

from launch import train

import parallel_et

DEMO = Path(__file__).parent.parent / "jobs" / "demo.toml"


def test_kernels_are_compiled_by_one_rank_only_and_never_again(tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_DEBUG_CACHE": "1"}
    short = ("--fresh", "--set", "anneal.iterations=2", "--set", "run.picture=false")
    first = train(3, DEMO, *short, cwd=tmp_path, **cache)
    assert first.returncode == 0, first.stderr
    saved = re.findall(r"\[cache\] data saved to '(.*)'", first.stdout)
    declared = sum(
        len(re.findall(r"^@(?:kernel|reducing)\(", path.read_text(), re.MULTILINE))
        for path in (Path(parallel_et.__file__).parent / "kernels").glob("*.py")
    )
    assert len(saved) == len(set(saved)) == declared
    second = train(3, DEMO, *short, cwd=tmp_path, **cache)
    assert second.returncode == 0, second.stderr
    assert "data saved" not in second.stdout
    assert second.stdout.count("data loaded") == 3 * declared
