"""A cluster in a box: four emulated nodes with their own network on one machine. It needs root.

A node is a set of namespaces: host name, network, processes, mounts, clocks, and its own /tmp, /dev/shm and /run.
Nodes share /mnt and the programs of this machine. A bridge in the namespace of ``head``, the login node, connects
the nodes. All processes of a node end with its first process, and all nodes end with the head. The head ends with
the process that created the box, also if this process is killed, so nothing remains.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster import Cluster
from launch import CLEAN, TIMEOUT_SECONDS, command
from requirements import SEARCH

PROGRAMS = ("ip", "mount", "nsenter", "setpriv", "unshare", "ssh", "sshd", "ssh-keygen")
SHARED = Path("/mnt")
"""Directory that all nodes share: a memory file system that is hidden from this machine."""
HEAD = "head"
LOCAL_BYTES = 64 << 20
"""Size of /tmp and of /run on a node."""
SHARED_BYTES = 512 << 20
"""Size of the shared directory."""
SLURMD_SECONDS = 30
"""Seconds after which Slurm gives up a silent node. The default is 300."""
SLOW_NODE_SECONDS = (0.15, 0.05)
"""Seconds for which a slow node is stopped and runs, in turn."""
NETWORK = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"}

FIRST_PROCESS = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
programs=("${@:6}") # they stay visible if a mount of the node hides their directory
for i in "${!programs[@]}"; do exec {hidden[i]}<"${programs[i]}"; done
hostname "$1"
ip link set lo up
for place in tmp run dev/shm; do mount -t tmpfs -o "mode=1777,size=$2" "$1" "/$place"; done
chmod 755 /run
if [[ $1 == head ]]; then mount -t tmpfs -o "mode=1777,size=$3" shared /mnt; fi
echo "$4" >/run/boot_id && mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
echo "$5" >/run/hosts && mount --bind /run/hosts /etc/hosts
for i in "${!programs[@]}"; do
    place=${programs[i]}
    [[ -e $place ]] || { mkdir -p "$place" && mount --no-canonicalize --bind "/proc/self/fd/${hidden[i]}" "$place"; }
    exec {hidden[i]}<&-
done
echo ready
exec >/dev/null
while :; do sleep 86400 & wait; done
"""
"""Script of process 1 of a node, which also adopts orphaned processes."""
VISIBLE = (str(Path(__file__).resolve().parents[2]), sys.prefix, sys.base_prefix)
"""Directories of this machine with the programs that nodes run."""
SSHD = """
ListenAddress 0.0.0.0
HostKey /mnt/.ssh/host
AuthorizedKeysFile /mnt/.ssh/user.pub
PermitRootLogin yes
StrictModes no
UsePAM no
MaxStartups 100
PidFile /run/sshd.pid
"""
SSH = """
Host *
    IdentityFile /mnt/.ssh/user
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""


class Node:
    """A node of a box.

    Attributes
    ----------
    init : process id of its first process on this machine
    dead : True if the node is switched off
    cut_off : True if its network is down
    """

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.dead, self.cut_off = True, False

    @property
    def root(self) -> Path:
        """File system of the node."""
        return Path(f"/proc/{self.init}/root")

    def enter(self, cwd: Path | str = "/") -> list[str]:
        """Return the beginning of a command line that runs on this node, in one of its directories."""
        return ["nsenter", f"--target={self.init}", "--all", f"--wdns={cwd}", "--"]

    def run(self, *words: object, **options: object) -> str:
        """Run a command on the node, and return its output."""
        done = subprocess.run(
            [*self.enter(), *map(str, words)], env={**CLEAN, "PATH": SEARCH}, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def pids(self) -> list[int]:
        """Return the process ids on this machine of all processes of the node, without the first process."""
        if self.dead:
            return []
        space, found = os.readlink(f"/proc/{self.init}/ns/pid"), []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(entry / "ns/pid") == space and int(entry.name) != self.init:
                    found.append(int(entry.name))
        return found

    def ranks(self) -> dict[int, int]:
        """Return the process ids of the MPI ranks on this node, by rank."""
        found = {}
        for pid in self.pids():
            with suppress(OSError, ValueError, IndexError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"parallel_et." in words and b"python" in words.partition(b"\0")[0]:
                    found[int(environment.split(b"\0PMI_RANK=")[1].partition(b"\0")[0])] = pid
        return found

    def signal(self, number: int) -> None:
        """Send a signal to all processes, without the first process."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


class Box:
    """Nodes ``n1`` to ``n4`` and the head, connected by a bridge.

    The box is a context manager. ``start`` runs a command under mpirun on all nodes that are alive.
    """

    def __init__(self, nodes: int = 4) -> None:
        self.head = Node(HEAD, "10.99.0.1")
        self.nodes = {f"n{i}": Node(f"n{i}", f"10.99.0.{10 + i}") for i in range(1, nodes + 1)}
        self.env = {**CLEAN, **NETWORK}

    def __enter__(self) -> "Box":
        try:
            self._boot(self.head, [])
            for command_line in (
                ("ip", "link", "add", "eth0", "type", "bridge"),
                ("ip", "address", "add", f"{self.head.address}/24", "dev", "eth0"),
                ("ip", "link", "set", "eth0", "up"),
            ):
                self.head.run(*command_line)
            self._make_keys()
            for name in self.nodes:
                self.boot(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the head, which ends all nodes."""
        if not self.head.dead:
            self.head.dead = True
            for node in self.nodes.values():
                node.dead = True
            with suppress(ProcessLookupError):
                os.kill(self.head.init, signal.SIGKILL)
            self._outside.wait(60)

    def __getitem__(self, name: str) -> Node:
        return self.head if name == HEAD else self.nodes[name]

    def boot(self, name: str) -> None:
        """Switch a node on, for the first time or after it vanished."""
        node = self.nodes[name]
        self._boot(node, self.head.enter())
        # only the network of the head is entered, so process ids are those of this machine
        link = ["nsenter", f"--target={self.head.init}", "--net", "ip", "link"]
        subprocess.run([*link, "delete", f"to-{name}"], stderr=subprocess.DEVNULL)
        peer = ["peer", "name", "eth0", "netns", str(node.init)]
        subprocess.run([*link, "add", f"to-{name}", "type", "veth", *peer], check=True)
        node.run("ip", "address", "add", f"{node.address}/24", "dev", "eth0")
        node.run("ip", "link", "set", "eth0", "up")
        self.head.run("ip", "link", "set", f"to-{name}", "master", "eth0", "up")
        node.run("mkdir", "/run/sshd")
        node.run(shutil.which("sshd", path=SEARCH), "-f", SHARED / ".ssh/sshd_config")

    def _boot(self, node: Node, inside: Sequence[str]) -> None:
        uptime = random.Random(node.name).randrange(10**6)  # nodes are switched on at different times
        hosts = "\n".join(f"{each.address} {each.name}" for each in (self.head, *self.nodes.values()))
        spaces = ["--net", "--uts", "--mount", "--pid", "--ipc", "--time", f"--boottime={uptime}"]
        words = [node.name, LOCAL_BYTES, SHARED_BYTES, uuid.uuid4(), f"127.0.0.1 localhost\n{hosts}", *VISIBLE]
        outside = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", *inside, "unshare", *spaces, f"--monotonic={uptime}", "--fork",
             "--kill-child", "bash", "-c", FIRST_PROCESS, "bash", *map(str, words)],
            env={**CLEAN, "PATH": SEARCH}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        if outside.stdout.readline() != "ready\n":
            outside.kill()
            raise RuntimeError(f"{node.name}: expected a node, found: {outside.stderr.read()}")
        node.init, node.dead, node.cut_off = inner(outside.pid, "bash"), False, False
        if node is self.head:
            self._outside = outside

    def _make_keys(self) -> None:
        keys = self.shared / ".ssh"
        keys.mkdir(mode=0o700)
        for name in ("host", "user"):
            self.head.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", SHARED / ".ssh" / name)
        (keys / "sshd_config").write_text(SSHD)
        (keys / "config").write_text(SSH)
        (keys / "ssh").write_text(f'#!/bin/sh\nexec ssh -F {SHARED}/.ssh/config "$@"\n')
        (keys / "ssh").chmod(0o755)

    @property
    def shared(self) -> Path:
        """Path of the directory ``SHARED`` of the nodes on this machine."""
        return self.head.root / SHARED.relative_to("/")

    @property
    def alive(self) -> list[Node]:
        """Nodes that can be reached."""
        return [node for node in self.nodes.values() if not (node.dead or node.cut_off)]

    def ranks(self) -> dict[int, int]:
        """Return the process ids of all MPI ranks, by rank."""
        return {rank: pid for node in self.nodes.values() for rank, pid in node.ranks().items()}

    def start(
        self,
        ranks: int,
        *args: object,
        cwd: Path = SHARED,
        name: str = "train",
        python: str = "",
        nodes: Sequence[str] = (),
        **env: str,
    ) -> subprocess.Popen:
        """Start ``python -m parallel_et.train args`` from the head, on the given nodes or on all live nodes."""
        mpirun, *rest = command(ranks, "-m", "parallel_et", name, *args)
        if python:
            rest[2] = python
        hosts = ["-launcher", "ssh", "-launcher-exec", str(SHARED / ".ssh/ssh"), "-hosts"]
        hosts += [",".join(nodes or [node.name for node in self.alive]), "-iface", "eth0"]
        return subprocess.Popen(
            [*self.head.enter(cwd), mpirun, *hosts, *rest],
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def launch(self, ranks: int, *args: object, cwd: Path = SHARED, **options) -> tuple[int, str]:
        """Run a command as ``start`` does, and return its exit code and output."""
        process = self.start(ranks, *args, cwd=cwd, **options)
        said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        return process.returncode, said

    def cut(self, name: str) -> None:
        """Disconnect a node from the network."""
        self.nodes[name].cut_off = True
        self.head.run("ip", "link", "set", f"to-{name}", "down")

    def join(self, name: str) -> None:
        """Connect a node to the network again."""
        self.nodes[name].cut_off = False
        self.head.run("ip", "link", "set", f"to-{name}", "up")

    def crash(self, name: str) -> None:
        """Kill all processes of a node. Its kernel closes their connections."""
        node = self.nodes[name]
        node.signal(signal.SIGKILL)
        self._off(node)

    def vanish(self, name: str) -> None:
        """Switch a node off. Its connections are silent from then on."""
        self.cut(name)
        self._off(self.nodes[name])

    def _off(self, node: Node) -> None:
        node.dead = True
        with suppress(ProcessLookupError):
            os.kill(node.init, signal.SIGKILL)
        gone = time.monotonic() + 20
        while Path(f"/proc/{node.init}").exists() and time.monotonic() < gone:
            time.sleep(0.05)

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Stop all processes of a node in this block."""
        self.nodes[name].signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.nodes[name].signal(signal.SIGCONT)

    @contextmanager
    def slow(self, name: str) -> Iterator[None]:
        """Let a node run for a quarter of the time in this block."""
        ended = threading.Event()

        def hold() -> None:
            while not ended.is_set():
                with self.stopped(name):
                    time.sleep(SLOW_NODE_SECONDS[0])
                time.sleep(SLOW_NODE_SECONDS[1])

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @contextmanager
    def full(self, *places: Path) -> Iterator[None]:
        """Fill the file systems of some directories, given as paths on this machine, in this block."""
        files = [place / ".filler" for place in places]
        try:
            for file in files:
                fill(file)
            yield
        finally:
            for file in files:
                file.unlink(missing_ok=True)


class BoxCluster(Cluster):
    """Slurm on the nodes of a box, with the controller on the head."""

    def __init__(self, box: Box) -> None:
        super().__init__(Path("/run/slurm"))
        self.box = box
        self.control, self.machines = HEAD, [HEAD, *box.nodes]
        self.nodes = {name: f"NodeHostname={name} NodeAddr={name}" for name in box.nodes}
        self.extra_lines = [f"SlurmdTimeout={SLURMD_SECONDS}"]
        self.env.update(NETWORK)

    def machine(self, node: str) -> str:
        return node

    def enter(self, machine: str, cwd: Path | None) -> list[str]:
        return self.box[machine].enter(cwd or "/")

    def local_path(self, machine: str) -> Path:
        return self.box[machine].root / "run/slurm"

    def _daemon(self, machine: str, *command: str) -> None:
        # as a child of the node's first process: nsenter would stop with the daemon, and not continue
        super()._daemon(machine, "setsid", "--fork", *command)

    def kill(self, machine: str, daemon: str) -> None:
        """Kill a daemon of a machine."""
        for pid in self.box[machine].pids():
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == daemon:
                    os.kill(pid, signal.SIGKILL)


def fill(path: Path) -> None:
    """Write zeros until the file system is full."""
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with open(path, "ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1))


def inner(pid: int, name: str) -> int:
    """Return the first process with a name among the only child, grandchild and further descendants of a process."""
    while Path(f"/proc/{pid}/comm").read_text().strip() != name:
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


def until(true: Callable[[], object], seconds: float, pause: float = 0.05) -> bool:
    """Wait until a function returns a true value. Return False after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True
