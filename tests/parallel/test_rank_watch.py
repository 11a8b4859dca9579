"""Ranks that have lost each other end by themselves; tests/test_box.py has those that lose each other's node."""

import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from launch import ended, hooked, ranks_of, start, wait_for

from parallel_et.parallel.rank_watch import own_addresses, reach

JOB = """
[model]
name = "linca"
causes = 8
[data]
source = "bars"
points = 500
[inference]
candidates = 5
gamma = 3
[anneal]
iterations = 100000
"""


def parents(pid):
    """The processes above one, up to the one that pytest has started."""
    while (pid := int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])) != os.getpid():
        yield pid


@pytest.mark.parametrize("rank", [0, 2])
def test_ranks_end_when_one_is_killed_and_the_launcher_does_nothing(rank, tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    log = tmp_path / "runs/job/log.txt"
    # the launcher may drop what the ranks print while it is stopped
    into_file = hooked(tmp_path, 'import os\nos.dup2(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)\n')
    process = start(3, "job.toml", "--quiet", cwd=tmp_path, **into_file)
    wait_for(lambda: log.exists() and "iteration" in log.read_text(), process)
    pids = ranks_of(tmp_path)
    launchers = [*parents(pids[0])]
    for pid in launchers:
        os.kill(pid, signal.SIGSTOP)
    try:
        os.kill(pids[rank], signal.SIGKILL)
        wait_for(lambda: not ranks_of(tmp_path), process, 60)
    finally:
        for pid in launchers:
            os.kill(pid, signal.SIGCONT)
    _, code, _ = ended(process, tmp_path)
    said = (tmp_path / "said").read_text()
    assert code not in (0, 2, 75), said
    assert f"lost rank {rank} on {socket.gethostname()}: expected signs of life, found that its process has" in said


def test_a_rank_is_not_taken_for_another_program_that_listens_at_its_port():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]

        def answer():
            for _ in own_addresses():
                connection, _ = server.accept()
                connection.recv(20, socket.MSG_WAITALL)
                connection.sendall(b"HTTP/1.1 400 Bad request")

        threading.Thread(target=answer, daemon=True).start()
        connection, reason = reach(own_addresses(), port, bytes(16), 1)
    assert connection is None
    assert "somebody else listens there" in reason


def test_a_rank_that_cannot_be_reached_is_named():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        connection, reason = reach(["127.0.0.1"], port, bytes(16), 1)
    assert (connection, reason) == (None, f"127.0.0.1 port {port}: Connection refused")
