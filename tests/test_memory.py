"""The memory of a rank: at most 1.25 times its part of the data, or of ``data.memory``, plus 250 MB."""

import numpy as np
import pytest
from launch import call, launch

from parallel_et import fit
from parallel_et.cli.infer import PIECE_BYTES
from parallel_et.control import process
from parallel_et.errors import UserError

CODE = """
import atexit, os, pathlib, resource, sys
here = pathlib.Path(sys.argv[1], f"peak-{os.getpid()}")
atexit.register(lambda: here.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)))
from parallel_et.launch import start
start(sys.argv[2], sys.argv[3:])
"""
POINTS, DIMS = 400_000, 128
SMALL = """
    model = { name = "linca", causes = 10 }
    data = { source = "bars", points = 500 }
    inference = { candidates = 5, gamma = 3 }
"""
TOO_LARGE = {
    "points": (["data.points=100000000000"], "TiB of data", "data.memory"),
    "streamed points": (["data.points=1000000000000", "data.memory=1 GB"], "953.7 MiB of data", "causes"),
    "fields": (["model.causes=1000000", "data.grid=316"], "TiB of working memory", "causes, dimensions or snapshots"),
    "bars": (["data.grid=4000"], "TiB of working memory", "causes, dimensions or snapshots"),
    "snapshots": (["run.snapshots=1", "anneal.iterations=1000000000000"], "2328.3 TiB more on the root", "snapshots"),
    "threads": (["run.threads=1024", "model.causes=100000"], "TiB of working memory", "causes, dimensions"),
}


@pytest.mark.parametrize("command", [("train",), ("train", "--dry-run"), ("trials", "--count", 2)])
@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_job_too_large_for_the_node_is_refused_before_allocation(command, name, tmp_path):
    settings, why, way_out = TOO_LARGE[name]
    (tmp_path / "job.toml").write_text(SMALL)
    name, *more = command
    done = call(name, "job.toml", *more, *(word for s in settings for word in ("--set", s)), cwd=tmp_path)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith("memory: expected at most ")
    assert why in line
    assert way_out in line.rpartition("; use more nodes, or reduce ")[2]
    assert len(line) < 400
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


@pytest.mark.parametrize("command, found", [
    (("train",), "TiB for 3 ranks (6.1 TiB of data"),
    (("trials", "--count", 3), "TiB for 3 ranks (18.2 TiB of data"),
])  # fmt: skip
def test_the_ranks_of_a_node_share_its_memory(command, found, tmp_path):
    (tmp_path / "job.toml").write_text(SMALL)
    name, *more = command
    words = ("job.toml", "--set", "data.points=100000000000", *more)
    done = launch(3, "-m", "parallel_et", name, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert found in done.stderr
    assert done.stderr.count("memory: expected") == 1


def test_a_script_raises_an_error_for_data_too_large_for_the_node():
    job = {"model": {"name": "mca", "causes": 1_000_000}, "inference": {"candidates": 5, "gamma": 3}}
    with pytest.raises(UserError, match=r"memory: expected at most .* TiB for 1 rank "):
        fit(job, np.broadcast_to(np.float32(1.0), (100, 100_000)))


@pytest.mark.parametrize("line, kind, file", [
    ("0::/a/b", "", "memory.max"),
    ("4:memory:/a/b", "memory", "memory.limit_in_bytes"),
])  # fmt: skip
def test_the_limits_of_nested_control_groups_count(line, kind, file, tmp_path, monkeypatch):
    inner = tmp_path / "groups" / kind / "a/b"
    inner.mkdir(parents=True)
    (tmp_path / "cgroup").write_text(f"9:name=systemd:/x\n{line}\n")
    monkeypatch.setattr(process, "SELF", tmp_path)
    monkeypatch.setattr(process, "CONTROL_GROUPS", tmp_path / "groups")
    free = process.node_available_bytes(0)
    assert 0 < free < float("inf")
    (inner / file).write_text("max\n" if kind == "" else f"{2**63 - 4096}\n")
    assert process.node_available_bytes(0) == pytest.approx(free, rel=0.2)
    (inner.parent / file).write_text("5000000\n")
    assert process.node_available_bytes(1_000_000) == 4_000_000
    (inner / file).write_text("3000000\n")
    assert process.node_available_bytes(1_000_000) == 2_000_000
    assert process.node_available_bytes(7_000_000) == 0


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


def test_streamed_rows_are_never_all_in_memory(tmp_path):
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
    message = "a rank's rows, 390.6 MiB, exceed data.memory = 40 MB: they are read again in every pass\n"
    assert done.stdout.count(message) == 1
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
    words = ("infer", tmp_path / "run", data, "--output", tmp_path / "out.h5", "--what", "evidence")
    done = launch(1, "-c", CODE, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    (peak,) = [1024 * int(path.read_text()) for path in tmp_path.glob("peak-*")]
    assert peak <= 2 * PIECE_BYTES + 250e6
