"""The form of the output of the benchmark; never its speed."""

import json
import re

import pytest
from launch import call, launch

from parallel_et.bench.measure import Network, predict
from parallel_et.bench.workloads import WORKLOADS
from parallel_et.em.timer import PHASES

TINY = ("--scale", "0.02", "--seconds", "0.01")


def test_one_rank_prints_a_table_of_all_workloads():
    small = [w.id for w in WORKLOADS if w.causes < 600 or w.gamma is None]
    done = call("bench", *small, *TINY, "--profile")
    assert done.returncode == 0, done.stderr
    title, *lines = done.stdout.splitlines()
    assert title.split()[:3] == ["id", "model", "N"]
    assert [line.split()[0] for line in lines[::2]] == small
    assert all(f"{phase} " in line for line in lines[1::2] for phase in PHASES)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.id)
def test_a_workload_is_a_job(workload):
    assert workload.job().model.causes == workload.causes


def test_two_ranks_print_objects_with_their_efficiency():
    args = ("W1", "M2", "--json", "--model-scaling", "--threads", "2", "--temperature", "3")
    done = launch(2, "-m", "parallel_et", "bench", *args, *TINY)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["id"] for row in rows] == ["W1", "M2"]
    for row in rows:
        assert set(row["phases"]) == set(PHASES)
        assert (row["ranks"], row["threads"], row["temperature"]) == (2, 2, 3.0)
        for name in ("ratio", "us_per_point", "ns_per_state", "peak_mb", "strong", "weak", "points_per_second"):
            assert row[name] > 0
        assert row["one_rank"]["ranks"] == 1
        assert set(row["scaling"]["strong"]) == {"64", "1024", "10000"}


def test_writers_are_compared_with_gathering(tmp_path):
    done = launch(2, "-m", "parallel_et", "bench", "--io", "--megabytes", "0.3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    title, heads, *lines = done.stdout.splitlines()
    assert title.startswith("0 MB on 2 ranks")
    assert heads.split() == ["way", "seconds", "MB/s", "of", "gather"]
    assert [line.split()[0] for line in lines if "mpio" not in line] == ["gather", "direct", "virtual"]
    done = call("bench", "--io", "--megabytes", "0.3", "--json", cwd=tmp_path)
    rows = json.loads(done.stdout)
    assert rows[0]["ratio"] == 1.0
    for row in rows:
        assert row["seconds"] >= row["fastest"] > 0
        assert row["megabytes_per_second"] > 0
    assert not list(tmp_path.iterdir())


def test_the_prediction_is_the_sum_of_its_parts():
    phases = dict.fromkeys(PHASES, 0.0) | {"select": 2.0, "states": 5.0, "statistics": 3.0, "mstep": 0.5}
    row = {"N": 1000, "D": 10, "H": 10, "block": 10, "message_mb": 0.0, "phases": phases, "dealt": []}
    at_once, narrow = Network(0.0, 1e30, 1e30), Network(0.0, 1e9, 1e30)
    found = predict(row, at_once)
    assert found["weak"][1024] == pytest.approx(1.0)
    assert found["strong"][64] == pytest.approx(10.5 / (64 * (10 * 2 / 100 + 0.5)))
    assert found["root_dominates_at"] == 32
    assert found["network_dominates_at"] is None
    assert found["holds"][0.5] == 20
    assert found["strong"][64] < 0.5 < 10.5 / (20 * (10 * 5 / 100 + 0.5))
    piece = {"sizes": [1, 2, 1], "seconds": 0.2e-6 * 1000, "once": True}
    anyhow = {"sizes": [], "seconds": 0.1e-6 * 1000, "once": True}
    each_node = {**anyhow, "once": False}
    sharing = {**row, "message_mb": 1.0, "dealt": [piece, anyhow, each_node]}
    shared = predict(sharing, at_once, 8)
    rest = 0.1 + 0.2 / 2 + 0.1 / 64 + 0.1 / 8
    assert shared["strong"][64] == pytest.approx(10.5 / (64 * (10 * 2 / 100 + rest)))
    assert shared["holds"][0.5] > found["holds"][0.5]
    sent = 7 / 8 * (1.5 + 32e-6) / 8  # by each of the 8 ranks of a node
    assert predict(sharing, narrow, 8)["weak"][64] == pytest.approx(10.5 / (10 + rest + sent))
    one_node = predict(sharing, narrow, 64)["weak"][64]
    assert one_node == pytest.approx(10.5 / (10 + 0.1 + 0.2 / 2 + 0.2 / 64))
    read = predict(sharing, Network(0.0, 1e30, 1e9), 64)["weak"][64]
    assert read == pytest.approx(10.5 / (10 + 0.1 + 0.2 / 2 + 0.2 / 64 + 1 + 800e-6))
    alone = predict({**row, "message_mb": 1.0}, narrow)
    assert alone["weak"][64] == pytest.approx(10.5 / (10.5 + 63 / 64 * (2 + 1600e-6)))
    slow = predict(row, Network(1e-3, 1e30, 1e30), 64, 3)
    assert slow["network_dominates_at"] == 2
    assert slow["weak"][64] == pytest.approx(10.5 / (10.5 + 60))
    assert slow["strong"][3] == pytest.approx(10.5 / (3 * (10 * 34 / 100 + 0.5 + 20)))


def test_the_computing_time_of_ranks_is_printed_with_the_prediction():
    done = launch(3, "-m", "parallel_et", "bench", "W1", "--computing", "--seconds", "0.1", "--scale", "0.5")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"W1 with 1000 points on 3 ranks, without messages: found [\d.]+% and predicted [\d.]+% efficient\n",
        done.stdout,
    )


def test_streaming_is_compared_with_rows_in_memory():
    done = call("bench", "--stream", *TINY)
    assert done.returncode == 0, done.stderr
    title, *lines = done.stdout.splitlines()
    assert title.split()[:3] == ["id", "file", "N"]
    assert [line.split()[1] for line in lines] == ["npy", "hdf5", "hdf5"]
    done = launch(2, "-m", "parallel_et", "bench", "--stream", "--json", "--threads", "2", *TINY)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["file"] for row in rows] == ["npy", "hdf5", "hdf5 gzip"]
    for row in rows:
        assert (row["N"], row["ranks"], row["threads"]) == (2000, 2, 2)
        assert min(row[name] for name in ("ratio", "us_per_point", "streamed_us_per_point", "held_mb")) > 0
