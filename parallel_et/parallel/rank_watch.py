"""A watch over the other ranks, which ends the job if a node or its network fails.

The first rank of each node has a TCP connection with the root. The other ranks of a node have one with its first rank.
No data are sent. The operating systems on both sides exchange keepalive probes, also while a rank computes or is
stopped. They close a connection whose other side is silent for too long.
"""

import fcntl
import os
import secrets
import selectors
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

from parallel_et.parallel.mpi import MPI
from parallel_et.parallel.shared_memory import node_communicator
from parallel_et.parallel.watched_start import seconds_from

SILENCE_LIMIT_VARIABLE = "PARALLEL_ET_SILENCE_LIMIT"
"""Environment variable: seconds after which a silent node counts as lost."""
DEFAULT_SILENCE_SECONDS = 30.0
LOST_FILE = "PARALLEL_ET_LOST_FILE"
"""Environment variable: file in which the root reports the loss of a node to the script that started the job."""
EXIT_NODE_LOST = 200
"""Exit code of a job that lost a silent node.

Launchers pass on the highest exit code of all ranks, so it must be above the codes of killed ranks, at most 128 + 64.
"""
EXIT_RANK_ENDED = 1
"""Exit code of a job that lost a rank because its process had ended."""
LAUNCHER_SECONDS = 5.0
"""Time for the launcher to end the job after a rank has died. Then the other ranks end it."""
CONNECT_SECONDS = 3.0
OUTPUT_SECONDS = 0.5
"""Time for the launcher to pass on the output of a rank, which some launchers drop when the rank aborts the job."""
ABORT_SECONDS = 5.0
"""Time for MPI to abort the job. Then the process exits without MPI."""
TURN_SECONDS = 2.0
MAX_TURN_SECONDS = 10.0
"""Longest delay of a node. If several nodes lose the same rank, the first prints the message and ends the others."""
PROBES = 4
"""Unanswered probes after which the kernel closes a connection."""
TOKEN_BYTES = 16
GOODBYE = b"."
SIOCGIFADDR = 0x8915
"""Linux: the request for the address of a network interface."""


class RankWatch:
    """The connections of this rank with other ranks, and a thread that ends the job when a connection is lost.

    As a context manager, it sends a goodbye at the end of the block, so that no rank counts this one as lost.
    """

    def __init__(self) -> None:
        self._peers: list[tuple[socket.socket, str]] = []
        self._rank = 0

    def __enter__(self) -> "RankWatch":
        return self

    def __exit__(self, *_: object) -> None:
        for connection, _name in self._peers:
            with suppress(OSError):
                connection.send(GOODBYE)
                connection.shutdown(socket.SHUT_WR)

    def start(self, comm: MPI.Intracomm) -> None:
        """Connect the ranks of a communicator, and watch them from now on. All ranks call it together."""
        if comm.size == 1:
            return
        self._comm, self._rank, self._seconds = (
            comm,
            comm.rank,
            seconds_from(SILENCE_LIMIT_VARIABLE, DEFAULT_SILENCE_SECONDS),
        )
        node = node_communicator(comm)
        firsts = cast(MPI.Intracomm, comm.Split(0 if node.rank == 0 else MPI.UNDEFINED, comm.rank))
        self._turn = min(TURN_SECONDS * firsts.rank, MAX_TURN_SECONDS) if firsts else 0.0
        for group in (node, firsts):
            if group:
                self._connect(group)
                group.Free()
        if self._peers:
            threading.Thread(target=self._watch, daemon=True).start()

    def _connect(self, group: MPI.Intracomm) -> None:
        """Connect all ranks of a group with its first rank."""
        if group.size == 1:
            return
        names = group.allgather(f"rank {self._rank} on {socket.gethostname()}")
        if group.rank == 0:
            self._accept(group, names)
        else:
            port, token, addresses = group.bcast(None)
            connection, reason = connect(addresses, port, token, group.rank)
            wait_idly(group.Ibarrier())
            group.gather(reason)
            if connection is not None:
                self._add(connection, names[0])

    def _accept(self, group: MPI.Intracomm, names: list[str]) -> None:
        """Accept the connections of the other ranks, until each rank is connected or has given up."""
        token = secrets.token_bytes(TOKEN_BYTES)
        with socket.create_server(("", 0), backlog=group.size) as server:
            group.bcast((server.getsockname()[1], token, own_addresses()))
            server.settimeout(0.02)
            done = group.Ibarrier()
            while not done.Test():
                with suppress(OSError):
                    connection, _ = server.accept()
                    connection.settimeout(CONNECT_SECONDS)
                    word = connection.recv(TOKEN_BYTES + 4, socket.MSG_WAITALL)
                    if word[:TOKEN_BYTES] == token:
                        connection.send(token)
                        self._add(connection, names[int.from_bytes(word[TOKEN_BYTES:], "big")])
        reasons = group.gather("") or []
        if missing := [name for name, reason in zip(names, reasons, strict=True) if reason]:
            text = f"no connection with {', '.join(missing)}: if these ranks are lost, the job hangs"
            print(f"note: {text} ({next(filter(None, reasons))})", file=sys.stderr, flush=True)

    def _add(self, connection: socket.socket, name: str) -> None:
        """Watch a connection with the rank of a name."""
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        interval = max(1, round(self._seconds / (PROBES + 1)))
        for option, value in (("TCP_KEEPIDLE", interval), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", PROBES)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._peers.append((connection, name))

    def _watch(self) -> None:
        """Wait until all peers have said goodbye, or end the job if one is lost."""
        with selectors.DefaultSelector() as selector:
            for connection, name in self._peers:
                selector.register(connection, selectors.EVENT_READ, name)
            while selector.get_map():
                for key, _ in selector.select():
                    reason = ""
                    try:
                        word = key.fileobj.recv(1)  # type: ignore[union-attr]
                    except OSError as error:
                        word, reason = b"", error.strerror or str(error)
                    if not word:
                        self._end_all(key.data, reason)
                    selector.unregister(key.fileobj)

    def _end_all(self, name: str, reason: str) -> None:
        """Print the name of the lost rank and end the job, if its launcher does not do so first."""
        if reason:
            code = EXIT_NODE_LOST
            found = f"none for {self._seconds:g} s ({reason}; {SILENCE_LIMIT_VARIABLE} sets the time)"
        else:
            code = EXIT_RANK_ENDED
            found = "that its process has ended"
            time.sleep(LAUNCHER_SECONDS)
        time.sleep(self._turn)
        text = f"lost {name}: expected signs of life, found {found}; the same command resumes the run"
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)
            if reason and self._rank == 0 and LOST_FILE in os.environ:
                Path(os.environ[LOST_FILE]).write_text(f"{text}\n")
        threading.Timer(ABORT_SECONDS, os._exit, (code,)).start()
        time.sleep(OUTPUT_SECONDS)
        self._comm.Abort(code)
        os._exit(code)


def connect(addresses: list[str], port: int, token: bytes, rank: int) -> tuple[socket.socket | None, str]:
    """Return a connection with the rank that listens at one of the addresses, or the reason of the failure."""
    reason = ""
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), CONNECT_SECONDS)
            connection.send(token + rank.to_bytes(4, "big"))
            if connection.recv(TOKEN_BYTES, socket.MSG_WAITALL) == token:
                return connection, ""
            reason = f"{address} port {port}: another program listens there"
        except OSError as error:
            reason = f"{address} port {port}: {error.strerror or error}"
    return None, reason


def own_addresses() -> list[str]:
    """Return addresses of this node: external ones first, then loopback ones, then its name."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an IPv4 address
                request = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(any_socket, SIOCGIFADDR, request)[20:24]))
    return [*sorted(found, key=lambda address: address.startswith("127.")), socket.gethostname()]


def wait_idly(request: MPI.Request) -> None:
    """Wait for a request with an idle core."""
    while not request.Test():
        time.sleep(0.01)
