"""A rank's memory: its shard of the data, a quarter as much again, and 250 MB."""

import numpy as np
import pytest
from launch import launch

CODE = """
import atexit, os, pathlib, resource, sys
here = pathlib.Path(sys.argv[1], f"peak-{os.getpid()}")
atexit.register(lambda: here.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)))
from parallel_et.commands import start
start("train", sys.argv[2:])
"""
POINTS, DIMS = 400_000, 128


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "data.npy"
    table = np.lib.format.open_memmap(path, "w+", np.float32, (POINTS, DIMS))
    rng = np.random.default_rng(1)
    for start in range(0, POINTS, 50_000):
        table[start : start + 50_000] = rng.standard_normal((50_000, DIMS), np.float32)
    return path


@pytest.mark.parametrize("name, ranks", [("linca", 1), ("mca", 2)])
def test_peak_under_a_cut_with_single_causes_and_float32(name, ranks, data, tmp_path):
    (tmp_path / "job.toml").write_text(f"""
        model = {{ name = "{name}", causes = 40, learn = ["W", "sigma", "pi"] }}
        data = {{ source = "{data}" }}
        inference = {{ candidates = 6, gamma = 3, singletons = true }}
        anneal = {{ iterations = 2, temperature = 1.5, cut = {{ schedule = 1.0, share = 0.9 }} }}
    """)
    done = launch(ranks, "-c", CODE, tmp_path, tmp_path / "job.toml", "--output", tmp_path / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    peaks = [1024 * int(path.read_text()) for path in tmp_path.glob("peak-*")]
    assert len(peaks) == ranks
    assert max(peaks) <= 1.25 * POINTS * DIMS * 4 / ranks + 250e6
    assert min(peaks) > POINTS * DIMS * 4 / ranks
