"""A rank's memory: its shard of the data, or what it may keep of it, a quarter as much again, and 250 MB."""

import numpy as np
import pytest
from launch import launch

from parallel_et.commands.infer import PIECE

CODE = """
import atexit, os, pathlib, resource, sys
here = pathlib.Path(sys.argv[1], f"peak-{os.getpid()}")
atexit.register(lambda: here.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)))
from parallel_et.start import start
start(sys.argv[2], sys.argv[3:])
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
    done = launch(ranks, "-c", CODE, tmp_path, "train", tmp_path / "job.toml", "--output", tmp_path / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    peaks = [1024 * int(path.read_text()) for path in tmp_path.glob("peak-*")]
    assert len(peaks) == ranks
    assert max(peaks) <= 1.25 * POINTS * DIMS * 4 / ranks + 250e6
    assert min(peaks) > POINTS * DIMS * 4 / ranks


def test_rows_that_are_streamed_are_never_all_in_memory(tmp_path):
    table = np.lib.format.open_memmap(tmp_path / "data.npy", "w+", np.float32, (POINTS, 2 * DIMS))
    for start in range(0, POINTS, 50_000):
        table[start : start + 50_000] = np.random.default_rng(start).standard_normal((50_000, 2 * DIMS), np.float32)
    (tmp_path / "job.toml").write_text(f"""
        model = {{ name = "linca", causes = 20, learn = ["W", "sigma", "pi"] }}
        data = {{ source = "{tmp_path}/data.npy", memory = "40 MB" }}
        inference = {{ candidates = 4, gamma = 2 }}
        anneal = {{ iterations = 2, cut = {{ schedule = 1.0, share = 0.9 }} }}
    """)
    done = launch(1, "-c", CODE, tmp_path, "train", tmp_path / "job.toml", "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    told = "a rank's rows, 390.6 MiB, are more than data.memory = 40 MB: they are read again in every pass\n"
    assert done.stdout.count(told) == 1
    (peak,) = [1024 * int(path.read_text()) for path in tmp_path.glob("peak-*")]
    assert peak <= 1.25 * 40e6 + 50 * POINTS + 250e6
    assert peak < 0.8 * table.nbytes


def test_infer_never_has_all_rows_in_memory(data, tmp_path):
    small = np.lib.format.open_memmap(data, "r")[:2000]
    np.save(tmp_path / "small.npy", small)
    (tmp_path / "job.toml").write_text(f"""
        model = {{ name = "linca", causes = 20 }}
        data = {{ source = "{tmp_path}/small.npy" }}
        inference = {{ candidates = 4, gamma = 2 }}
        anneal = {{ iterations = 1 }}
    """)
    assert launch(1, "-m", "parallel_et.train", tmp_path / "job.toml", "--output", tmp_path / "run").returncode == 0
    call = ("infer", tmp_path / "run", data, "--output", tmp_path / "out.h5", "--what", "evidence")
    done = launch(1, "-c", CODE, tmp_path, *call)
    assert done.returncode == 0, done.stderr
    (peak,) = [1024 * int(path.read_text()) for path in tmp_path.glob("peak-*")]
    assert peak <= 2 * PIECE + 250e6
