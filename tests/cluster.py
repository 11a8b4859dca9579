"""A real Slurm of two emulated nodes on this machine, with all that it needs in one directory."""

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
from needs import SEARCH

CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
# a requeued job waits for twice this time, of which 5 is the least that Slurm takes
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
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=8000 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
MOMENT = 30
"""Seconds that a job has at the least until its time is over."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
# By way of UCX MPICH tells its address in lines that may be longer than the 1024 bytes that Slurm reads at once.
NETWORK = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}
PATH = os.pathsep.join([str(Path(sys.executable).parent), SEARCH])


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    """Nodes n1 and n2, and what users do with them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        unlike_ours = ("SLURM", "SBATCH", "SRUN", "OMP_NUM")
        kept = {key: value for key, value in CLEAN.items() if not key.startswith(unlike_ours)}
        self.env = {**kept, **NETWORK, "PATH": PATH, "SLURM_CONF": str(place / "slurm.conf")}
        self.daemons: list[subprocess.Popen] = []

    def start(self) -> None:
        place = self.place
        for name in ("state", "spool-n1", "spool-n2"):
            (place / name).mkdir(mode=0o755)
        key = place / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (place / "slurm.conf").write_text(CONFIGURATION.format(place=place, ports=free_ports(3)))
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._daemon("munged", "--foreground", "--force", *(f"--{o}={place}/munge.{f}" for o, f in files.items()))
        self.wait(lambda: (place / "munge.socket").exists(), "munged")
        self._daemon("slurmctld", "-D", "-i")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        self.wait(lambda: self.ask("sinfo", "-h", "-o", "%T %D", check=False) == "idle 2", "two idle nodes", 120)

    def _daemon(self, *command: str) -> None:
        with (self.place / "daemons.log").open("a") as log:
            self.daemons.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))

    def stop(self) -> None:
        """End all jobs, then the daemons, the last first."""
        self.ask("scancel", "--me", check=False)
        try:
            self.wait(lambda: not self.ask("squeue", "-h", "-o", "%i"), "jobs that end", 120)
        finally:
            for daemon in reversed(self.daemons):
                daemon.terminate()
                daemon.wait(60)

    def ask(self, *command: object, cwd: Path | None = None, check: bool = True, **env: str) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            [*map(str, command)], env={**self.env, **env}, cwd=cwd, capture_output=True, text=True, timeout=60
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}{self._logs()}"
        return done.stdout.strip()

    def submit(self, *args: object, cwd: Path, **env: str) -> str:
        """``sbatch args``; returns the number of the job."""
        return self.ask("sbatch", "--parsable", *args, cwd=cwd, **env)

    def ranks(self, job: str) -> list[int]:
        """Process ids of the ranks of a job."""
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
        """Wait until a job pauses after its first checkpoint; its ranks then sleep until Slurm or we wake them."""
        self.wait((log.parent / "here").exists, f"a checkpoint in {run}", 240, log, 0.02)
        pids = self.ranks(job)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        assert len(pids) == ranks
        assert any(run.glob("checkpoints/*.h5"))
        (log.parent / "go").touch()

    def thaw(self, job: str, log: Path | None = None) -> None:
        """Wake the ranks of a job, if its log is given once it has had the notice of its time limit."""
        if log is not None:
            self.wait(lambda: "time is nearly over" in log.read_text(), "the notice", 60, log)
        for pid in self.ranks(job):
            os.kill(pid, signal.SIGCONT)

    def limit(self, job: str, log: Path) -> None:
        """Bring the time limit of a job near, however long its start took; queued again it has time enough."""
        hours, minutes, seconds = map(int, self.field(job, "RunTime").split(":"))
        whole = 1 + (3600 * hours + 60 * minutes + seconds + MOMENT) // 60
        restarts = self.field(job, "Restarts")
        self.ask("scontrol", "update", f"JobId={job}", f"TimeLimit={whole}")

        def give_time() -> None:
            self.wait(lambda: self.field(job, "Restarts") != restarts, f"job {job} queued again", 240, log)
            self.ask("scontrol", "update", f"JobId={job}", "TimeLimit=10")

        threading.Thread(target=give_time, daemon=True).start()

    def field(self, job: str, name: str) -> str:
        """A field of ``scontrol show job``."""
        shown = self.ask("scontrol", "show", "job", "-o", job)
        return next(word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}="))

    def end(self, job: str, seconds: float, log: Path) -> tuple[str, int, str]:
        """Wait for a job's end; returns its state, its exit code and what it said."""
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
        logs = [self.place / name for name in ("daemons.log", "slurmctld.log")]
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs if log.exists())
