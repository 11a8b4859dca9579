"""A few faults on a cluster in a box. ``make cluster`` tests all faults, and more often."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from box import PROGRAMS, SHARED, Box, until
from cluster import PROGRAMS as OF_SLURM
from cluster_soak import choose, soak
from requirements import SEARCH, need, without


@pytest.fixture(scope="module", autouse=True)
def _possible():
    need(*PROGRAMS, *OF_SLURM, "gcc", "ping")
    if os.geteuid():
        without("only root can create nodes")
    spaces = ["--net", "--uts", "--mount", "--pid", "--ipc", "--time", "--fork"]
    tried = subprocess.run(["unshare", *spaces, "true"], env={"PATH": SEARCH}, capture_output=True, text=True)
    if tried.returncode:
        without(f"expected namespaces, found none: {tried.stderr}")


def test_nodes_share_a_directory_and_a_network_and_nothing_else():
    with Box() as box:
        first, second = box["n1"], box["n2"]
        (first.root / "mnt/word").write_text("shared")
        assert second.run("cat", SHARED / "word") == "shared"
        for place in ("tmp", "run", "dev/shm"):
            (first.root / place / "word").write_text("local")
            assert not (second.root / place / "word").exists()
            assert not Path("/", place, "word").exists()
        assert box.head.run(SHARED / ".ssh/ssh", "n2", "hostname") == "n2\n"
        assert len({node.run("cat", "/proc/sys/kernel/random/boot_id") for node in box.nodes.values()}) == 4
        assert len({node.run("cat", "/proc/uptime").split()[0] for node in box.nodes.values()}) == 4
        ping = ("ping", "-c", "1", "-W", "1", "n2")
        first.run(*ping)
        box.cut("n2")
        with pytest.raises(RuntimeError):
            first.run(*ping)
        box.join("n2")
        first.run(*ping)


@pytest.mark.parametrize("end", ["exit", "error", "killed"])
def test_nothing_is_left_of_a_box(end, tmp_path):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from box import Box
with Box() as box:
    box["n1"].run("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")
    print(*(pid for node in (box.head, *box.nodes.values()) for pid in (node.init, *node.pids())), flush=True)
    sys.stdin.readline() == "error\\n" and 1 / 0
"""
    words = [sys.executable, "-c", code, Path(__file__).parent / "support"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pids = process.stdout.readline().split()
    assert len(pids) > 15
    if end == "killed":
        process.send_signal(signal.SIGKILL)
    _, said = process.communicate(f"{end}\n" if end != "killed" else None)
    assert ("ZeroDivisionError" in said) == (end == "error")
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20)


def test_runs_survive_faults_of_nodes_links_and_daemons_with_the_same_bits():
    some = [("mpirun", "cut for 5 s"), ("mpirun", "node vanishes"), ("srun", "node crashes"), ("srun", "clocks differ")]
    assert {*some} < {*choose(100, 1)}
    table = soak(some, boxes=2, seed=1, iterations=40)
    assert table.good
    assert table.made.total() == len(some)
