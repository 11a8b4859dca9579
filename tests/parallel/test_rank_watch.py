"""Ranks end when they lose another rank. tests/test_box.py tests the loss of a node."""

import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from launch import ended, ranks_of, start, wait_for, with_startup_code

from parallel_et.parallel.rank_watch import connect, own_addresses

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
    """Yield the ancestors of a process, up to the child of pytest."""
    while (pid := int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])) != os.getpid():
        yield pid


@pytest.mark.parametrize("rank", [0, 2])
def test_ranks_end_without_the_launcher_when_one_is_killed(rank, tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    log = tmp_path / "runs/job/log.txt"
    # the launcher may drop the output of ranks while it is stopped
    into_file = with_startup_code(
        tmp_path, 'import os\nos.dup2(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)\n'
    )
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


def test_another_program_at_the_port_of_a_rank_is_noticed():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]

        def answer():
            for _ in own_addresses():
                connection, _ = server.accept()
                connection.recv(20, socket.MSG_WAITALL)
                connection.sendall(b"HTTP/1.1 400 Bad request")

        threading.Thread(target=answer, daemon=True).start()
        connection, reason = connect(own_addresses(), port, bytes(16), 1)
    assert connection is None
    assert "another program listens there" in reason


def test_a_failed_connection_names_its_address():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        connection, reason = connect(["127.0.0.1"], port, bytes(16), 1)
    assert (connection, reason) == (None, f"127.0.0.1 port {port}: Connection refused")
