"""A real Slurm with two emulated nodes on this machine, with all files in one directory. See also box.py."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from launch import CLEAN
from requirements import SEARCH

CONFIGURATION = """
ClusterName=test
SlurmctldHost={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
# a requeued job waits for twice this time; 5 is the minimum of Slurm
AuthInfo=cred_expire=5,socket={place}/munge.socket
MpiDefault=pmi2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
ReturnToService=2
JobRequeue=1
KillWait=10
MinJobAge=3600
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=0,bf_interval=2
SlurmdParameters=config_overrides
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
NodeName=DEFAULT CPUs=16 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
SECONDS_TO_LIMIT = 30
"""Least number of seconds until the time limit of a job."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
# With UCX, MPICH sends its address in lines that may exceed the 1024 bytes that Slurm reads at once.
NETWORK = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}
PATH = os.pathsep.join([str(Path(sys.executable).parent), SEARCH])


def free_ports(count: int) -> list[int]:
    """Return free ports."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    """A Slurm cluster, and the commands of its users.

    Attributes
    ----------
    place : directory of the daemons on each machine
    nodes : configuration of each node, by name
    machines : machines with a munged and the directory
    control : machine of slurmctld and of the users
    extra_lines : further lines of the configuration
    """

    def __init__(self, place: Path) -> None:
        ports = free_ports(3)
        self.place, self.control, self.machines = place, "localhost", ["localhost"]
        at = "NodeHostname=localhost NodeAddr=127.0.0.1 Port="
        self.nodes = {f"n{i}": f"{at}{ports[i]}" for i in (1, 2)}
        self.extra_lines = [f"SlurmctldPort={ports[0]}"]
        unlike_ours = ("SLURM", "SBATCH", "SRUN", "OMP_NUM")
        kept = {key: value for key, value in CLEAN.items() if not key.startswith(unlike_ours)}
        self.env = {**kept, **NETWORK, "PATH": PATH, "SLURM_CONF": str(place / "slurm.conf")}
        self.key = os.urandom(128)
        self.daemons: list[subprocess.Popen] = []

    def machine(self, node: str) -> str:
        """Return the machine of a node."""
        return "localhost"

    def enter(self, machine: str, cwd: Path | None) -> list[str]:
        """Return the beginning of a command line that runs on a machine."""
        return [] if cwd is None else ["env", f"--chdir={cwd}"]

    def local_path(self, machine: str) -> Path:
        """Return the directory of a machine as a path in this process."""
        return self.place

    def start(self) -> None:
        for machine in self.machines:
            self.prepare(machine)
        self.start_control()
        for node in self.nodes:
            self.start_node(node)
        count = len(self.nodes)
        self.wait(lambda: self.ask("sinfo", "-h", "-o", "%T %D", check=False) == f"idle {count}", "idle nodes", 120)

    def prepare(self, machine: str) -> None:
        """Create the directory of a machine and start its munged."""
        place, at = self.place, self.local_path(machine)
        at.mkdir(exist_ok=True)
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (at / name).mkdir(mode=0o755)
        key = at / "munge.key"
        key.write_bytes(self.key)
        key.chmod(0o400)
        lines = [*self.extra_lines, *(f"NodeName={name} {words}" for name, words in self.nodes.items())]
        text = CONFIGURATION.replace("PartitionName", "\n".join([*lines, "PartitionName"]))
        (at / "slurm.conf").write_text(text.format(place=place, control=self.control))
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = (f"--{o}={place}/munge.{f}" for o, f in files.items())
        self._daemon(machine, "munged", "--foreground", "--force", *options)
        self.wait(lambda: (at / "munge.socket").exists(), "munged")

    def start_control(self) -> None:
        """Start slurmctld."""
        self._daemon(self.control, "slurmctld", "-D")

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        self._daemon(self.machine(node), "slurmd", "-D", "-N", node)

    def _daemon(self, machine: str, *command: str) -> None:
        with (self.local_path(machine) / "daemons.log").open("a") as log:
            words = [*self.enter(machine, None), *command]
            self.daemons.append(subprocess.Popen(words, env=self.env, stdout=log, stderr=log))

    def stop(self) -> None:
        """End all jobs, then the daemons in reverse order."""
        self.ask("scancel", "--me", check=False)
        try:
            self.wait(lambda: not self.ask("squeue", "-h", "-o", "%i"), "jobs that end", 120)
        finally:
            for daemon in reversed(self.daemons):
                daemon.terminate()
                daemon.wait(60)

    def ask(self, *command: object, cwd: Path | None = None, check: bool = True, **env: str) -> str:
        """Run a command of Slurm, and return its output."""
        done = subprocess.run(
            [*self.enter(self.control, cwd), *map(str, command)],
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}{self._logs()}"
        return done.stdout.strip()

    def submit(self, *args: object, cwd: Path, **env: str) -> str:
        """Run ``sbatch args``, and return the number of the job."""
        return self.ask("sbatch", "--parsable", *args, cwd=cwd, **env)

    def ranks(self, job: str) -> list[int]:
        """Return the process ids of the ranks of a job."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            mine = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_CONF={self.env['SLURM_CONF']}".encode()} <= {*environment}
            if mine and b"parallel_et.train" in words and any(e.startswith(b"PMI_RANK=") for e in environment):
                found.append(int(entry.name))
        return found

    def freeze(self, job: str, run: Path, ranks: int, log: Path) -> None:
        """Wait until a job pauses after its first checkpoint, and stop its ranks. ``thaw`` or Slurm continues them."""
        self.wait((log.parent / "here").exists, f"a checkpoint in {run}", 240, log, 0.02)
        pids = self.ranks(job)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        assert len(pids) == ranks
        assert any(run.glob("checkpoints/*.h5"))
        (log.parent / "go").touch()

    def thaw(self, job: str, log: Path | None = None) -> None:
        """Continue the ranks of a job. With a log, first wait for the notice of the time limit in the log."""
        if log is not None:
            self.wait(lambda: "the time limit is near" in log.read_text(), "the notice", 60, log)
        for pid in self.ranks(job):
            os.kill(pid, signal.SIGCONT)

    def limit(self, job: str, log: Path) -> None:
        """Set the time limit of a running job to the near future, and extend the limit after the job is requeued."""
        hours, minutes, seconds = map(int, self.field(job, "RunTime").split(":"))
        whole = 1 + (3600 * hours + 60 * minutes + seconds + SECONDS_TO_LIMIT) // 60
        restarts = self.field(job, "Restarts")
        self.ask("scontrol", "update", f"JobId={job}", f"TimeLimit={whole}")

        def give_time() -> None:
            self.wait(lambda: self.field(job, "Restarts") != restarts, f"job {job} queued again", 240, log)
            self.ask("scontrol", "update", f"JobId={job}", "TimeLimit=10")

        threading.Thread(target=give_time, daemon=True).start()

    def field(self, job: str, name: str) -> str:
        """Return a field of ``scontrol show job``."""
        shown = self.ask("scontrol", "show", "job", "-o", job)
        return next(word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}="))

    def end(self, job: str, seconds: float, log: Path) -> tuple[str, int, str]:
        """Wait for the end of a job. Return its state, its exit code and its output."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE")
        self.wait(lambda: self.field(job, "JobState") in over, f"end of job {job}", seconds, log)
        code = int(self.field(job, "ExitCode").partition(":")[0])
        return self.field(job, "JobState"), code, log.read_text() if log.exists() else ""

    def wait(
        self, true: Callable[[], object], what: str, seconds: float = 60, log: Path | None = None, pause: float = 0.2
    ) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                said = log.read_text() if log is not None and log.exists() else ""
                queue = self.ask("squeue", check=False)
                raise AssertionError(f"expected {what} within {seconds} s\n{queue}\n{said}\n{self._logs()}")
            time.sleep(pause)

    def _logs(self) -> str:
        logs = [self.local_path(self.control) / name for name in ("daemons.log", "slurmctld.log")]
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs if log.exists())
