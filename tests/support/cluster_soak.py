"""Cause faults on clusters in a box, and compare the results with that of an undisturbed run.

python tests/support/cluster_soak.py [--faults 100] [--boxes 4] [--seed N]    prints a table of the outcomes
python tests/support/cluster_soak.py --shell [--slurm]                        opens a shell on the head of a box
"""

import argparse
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from box import HEAD, SHARED, Box, BoxCluster, until
from cluster import PATH
from launch import TIMEOUT_SECONDS, learned

SCRIPTS = Path(__file__).parents[2] / "slurm"
JOB = """
[model]
name = "linca"
causes = 10
learn = ["W", "sigma", "pi"]
[data]
source = "bars"
points = 1000
[inference]
candidates = 5
gamma = 3
[anneal]
iterations = {iterations}
temperature = [[0.1, 10.0], [0.8, 1.0]]
cut = {{ schedule = [[0.3, 0.0], [0.6, 1.0]], share = 0.9 }}
noise.W = 0.05
[run]
snapshots = 30
checkpoint = {{ every = 5 }}
"""
LATE = """#!/bin/bash
if [[ $(hostname) == "$LATE_NODE" ]]; then
    export LD_PRELOAD=/mnt/late_clock.so
fi
exec {python} "$@"
"""
"""Python interpreter with a wrong clock on one node."""
LONGEST_WAIT_SECONDS = 60.0
"""Seconds after a fatal fault within which a job must end or be requeued."""
SHORT_CUT_SECONDS, LONG_CUT_SECONDS = 5.0, 60.0
"""Seconds for which a link is cut."""
SURVIVED_FAULTS = {
    "cut for 5 s",
    "stopped",
    "slow",
    "local disk full",
    "shared disk full",
    "slurmctld killed",
    "slurmd killed",
}
"""Faults during which a run continues."""
FATAL_FAULTS = {"node vanishes", "first node vanishes", "node crashes", "cut for 60 s"}
DISK_FULL = "expected space to write the result, found No space left on device; the same command resumes"
FAULTS = {
    "mpirun": ["node vanishes", "first node vanishes", "node crashes", "cut for 5 s", "cut for 60 s", "stopped", "slow",
               "local disk full", "shared disk full", "clocks differ"],
    "srun": ["node vanishes", "first node vanishes", "node crashes", "cut for 5 s", "cut for 60 s", "stopped", "slow",
             "local disk full", "shared disk full", "clocks differ", "slurmctld killed", "slurmd killed"],
}  # fmt: skip


class Table:
    """Numbers of faults and failures by the kind of fault. It is shared by threads."""

    def __init__(self) -> None:
        self.made, self.lost, self.wrong, self.bad = Counter(), Counter(), Counter(), Counter()
        self.longest: dict[str, float] = {}
        self.begun = time.monotonic()
        self.lock = threading.Lock()

    def complain(self, counter: Counter, kind: str, words: str) -> None:
        with self.lock:
            counter[kind] += 1
            print(f"WRONG: {kind}: {words}", flush=True)

    def done(self, kind: str, wait: float, words: str) -> None:
        with self.lock:
            self.made[kind] += 1
            self.longest[kind] = max(wait, self.longest.get(kind, 0.0))
            seconds = time.monotonic() - self.begun
            print(
                f"{seconds:5.0f} s  {self.made.total():4d}  {kind}: {words}, {wait:.0f} s after the fault", flush=True
            )

    @property
    def good(self) -> bool:
        return not (self.lost or self.wrong or self.bad)

    def __str__(self) -> str:
        width = max(map(len, ("all", *self.made)))
        head = f"{'fault':<{width}}  how many  lost  wrong bits  other  longest wait"
        lines = [
            f"{kind:<{width}}  {self.made[kind]:8d}  {self.lost[kind]:4d}  {self.wrong[kind]:10d}  {self.bad[kind]:5d}"
            f"  {self.longest[kind]:10.0f} s"
            for kind in sorted(self.made)
        ]
        total = f"{'all':<{width}}  {self.made.total():8d}  {self.lost.total():4d}  {self.wrong.total():10d}"
        longest = max(self.longest.values(), default=0.0)
        return "\n".join([head, *lines, f"{total}  {self.bad.total():5d}  {longest:10.0f} s"])


class Soak:
    """One box in which faults are caused one after the other."""

    def __init__(self, box: Box, table: Table, seed: object, iterations: int) -> None:
        self.box, self.table, self.rng, self.count = box, table, random.Random(seed), 0
        self.slurm = BoxCluster(box)
        self.iterations, self.joins = iterations, None
        (box.shared / "job.toml").write_text(JOB.format(iterations=iterations))
        (box.shared / "late").write_text(LATE.format(python=sys.executable))
        (box.shared / "late").chmod(0o755)
        library = ["-o", str(box.shared / "late_clock.so"), str(Path(__file__).with_name("late_clock.c"))]
        subprocess.run(["gcc", "-shared", "-fPIC", *library], check=True)
        code, said = box.launch(2, "job.toml", "--output", "runs/whole", nodes=["n1"])
        assert code == 0, said
        self.whole = learned(box.shared / "runs/whole/result.h5")
        self.slurm.start()

    def newest(self) -> int:
        """Return the iteration of the newest checkpoint of the present run."""
        return max((int(path.stem) for path in self.run.glob("checkpoints/*.h5")), default=0)

    def fault(self, mode: str, fault: str) -> None:
        """Start a run, cause a fault, and complete the run."""
        self.count += 1
        self.kind, self.name = f"{mode}: {fault}", f"runs/{self.count}"
        self.run = self.box.shared / self.name
        wait, words = (self.with_mpirun if mode == "mpirun" else self.with_srun)(fault)
        self.compare()
        if fault in FATAL_FAULTS and wait > LONGEST_WAIT_SECONDS:
            expected = f"expected an end within {LONGEST_WAIT_SECONDS:.0f} s"
            self.complain(self.table.bad, f"{expected}, found {wait:.0f} s\n{words}")
        self.table.done(self.kind, wait, words)
        self.repair()

    def complain(self, counter: Counter, words: str) -> None:
        self.table.complain(counter, self.kind, words)

    def compare(self) -> None:
        """Compare the bits of the result with those of an undisturbed run."""
        path = self.run / "result.h5"
        if not path.exists():
            return self.complain(self.table.lost, "expected a result, found none")
        found = learned(path)
        if different := [name for name in {**self.whole, **found} if found.get(name) != self.whole.get(name)]:
            self.complain(self.table.wrong, f"expected the same bits, found others in {', '.join(different)}")

    def make(self, fault: str, nodes: list[str], first: str) -> float:
        """Cause a fault on a node of a run whose root is on node ``first``. Return the time of the fault."""
        if (self.run / "result.h5").exists():
            self.complain(self.table.bad, "expected a running run, found it finished before the fault")
        box, later = self.box, [node for node in nodes if node != first]
        node = self.rng.choice(later if fault != "cut for 60 s" else nodes)
        match fault:
            case "node vanishes":
                box.vanish(node)
            case "first node vanishes":
                box.vanish(first)
            case "node crashes":
                box.crash(node)
            case "cut for 5 s" | "cut for 60 s":
                begun = time.monotonic()
                box.cut(node)
                seconds = SHORT_CUT_SECONDS if "5 s" in fault else LONG_CUT_SECONDS
                self.joins = threading.Timer(seconds, box.join, [node])
                self.joins.start()
                if seconds == LONG_CUT_SECONDS:
                    return begun
                self.joins.join()
            case "stopped":
                with box.stopped(node):
                    time.sleep(self.rng.uniform(2, 10))
            case "slow":
                with box.slow(node):
                    time.sleep(self.rng.uniform(3, 8))
            case "local disk full":
                root = box[node].root
                with box.full(root / "tmp", root / "run"):
                    time.sleep(self.rng.uniform(2, 5))
            case "shared disk full":
                with box.full(box.shared):
                    time.sleep(self.rng.uniform(2, 5))
            case "slurmctld killed":
                self.slurm.kill(HEAD, "slurmctld")
                time.sleep(self.rng.uniform(0, 6))
                self.slurm.start_control()
            case "slurmd killed":
                node = self.rng.choice(nodes)
                self.slurm.kill(node, "slurmd")
                time.sleep(self.rng.uniform(0, 6))
                self.slurm.start_node(node)
            case _:
                raise ValueError(fault)
        return time.monotonic()

    def until_checkpoint(self, over: Callable[[], object]) -> int:
        """Wait until a run has reached a random checkpoint, and return the newest iteration."""
        target = self.rng.randrange(5, self.iterations // 2)
        until(lambda: self.newest() >= target or over(), TIMEOUT_SECONDS, 0.05)
        return self.newest()

    def with_mpirun(self, fault: str) -> tuple[float, str]:
        """Cause a fault in a run under mpirun, and resume the run. Return the seconds to its end, and the outcome."""
        box, args, late = self.box, ("job.toml", "--output", self.name), {}
        if fault == "clocks differ":
            late = {"LATE_NODE": self.rng.choice([*box.nodes]), "LATE_BY": self.rng.choice(["3600", "-3600"])}
        python = str(SHARED / "late") if late else ""
        process = box.start(self.rng.randint(4, 5), *args, python=python, **late)
        kept = self.until_checkpoint(process.poll)
        if late:  # all ranks are killed, and another node has a wrong clock after the resumption
            for pid in box.ranks().values():
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            final, late["LATE_NODE"] = time.monotonic(), self.rng.choice([*box.nodes])
        else:
            final = self.make(fault, [*box.nodes], "n1")
        try:
            said, _ = process.communicate(timeout=LONGEST_WAIT_SECONDS if fault in FATAL_FAULTS else TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            self.complain(self.table.bad, f"expected an end, found none after {time.monotonic() - final:.0f} s")
            said = ""
            for pid in box.ranks().values():
                os.kill(pid, 9)
        wait, code = time.monotonic() - final, process.returncode
        disk_full = code == 2 and fault == "shared disk full" and DISK_FULL in said  # at the end of the run
        if fault in SURVIVED_FAULTS and code and not disk_full:
            self.complain(self.table.bad, f"expected that the run goes on, found exit code {code}\n{said}")
        if fault in FATAL_FAULTS:
            silent = fault != "node crashes"
            if code == 0 or (silent and said.count("expected signs of life") != 1):
                self.complain(self.table.bad, f"expected one message and a bad exit code, found {code}\n{said}")
        if code == 0:
            return wait, "went on"
        code, said = box.launch(self.rng.randint(1, 5), *args, python=python, **late)
        if code or self.resumed(said) < kept:
            self.complain(self.table.lost, f"expected to go on after {kept} iterations, found {code}\n{said}")
        return wait, f"ended and resumed on {len(box.alive)} nodes"

    def resumed(self, said: str) -> int:
        """Return the iteration from which a run was last resumed."""
        return int(said.rpartition(": resumes from ")[2].partition(".h5")[0] or 0) if "resumes from" in said else 0

    def with_srun(self, fault: str) -> tuple[float, str]:
        """Cause a fault in a batch job, and let Slurm complete it. Return the seconds to its end, and the outcome."""
        slurm, log, late = self.slurm, self.run.with_suffix(".log"), {}
        if fault == "clocks differ":
            late = {"LATE_BY": self.rng.choice(["3600", "-3600"]), "PYTHON": str(SHARED / "late")}
            late["LATE_NODE"] = self.rng.choice(["n1", "n2", "n3"])
        words = ["--nodes=3", "--ntasks-per-node=1", "--time=20", f"--output={self.name}.log", SCRIPTS / "train.sbatch"]
        words += ["job.toml", "--output", self.name]
        job = slurm.submit(*words, cwd=SHARED, **late)
        ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}

        def field(name: str) -> str:
            with suppress(AssertionError):  # the controller is down
                return slurm.field(job, name)
            return ""

        def over() -> bool:
            return field("JobState") in ended

        kept = self.until_checkpoint(over)
        nodes = [name for name, node in self.box.nodes.items() if node.ranks()] or [*self.box.nodes][:3]
        first = slurm.field(job, "BatchHost")
        if late:
            slurm.ask("scontrol", "requeue", job)
            final = time.monotonic()
        else:
            final = self.make(fault, nodes, first)

        def final_or_queued() -> bool:
            return over() or field("Restarts") not in ("", "0")

        wait = 0.0
        if fault in FATAL_FAULTS:
            until(final_or_queued, 2 * LONGEST_WAIT_SECONDS, 0.5)
            wait = time.monotonic() - final
        if not until(over, TIMEOUT_SECONDS, 0.5):
            self.complain(self.table.bad, "expected an end of the job, found none")
        wait = wait or time.monotonic() - final
        if slurm.field(job, "JobState") == "FAILED" and fault == "shared disk full" and DISK_FULL in log.read_text():
            job = slurm.submit(*words, cwd=SHARED)
            until(over, TIMEOUT_SECONDS, 0.5)
        state, restarts = slurm.field(job, "JobState"), slurm.field(job, "Restarts")
        said = log.read_text(errors="replace")
        if state != "COMPLETED":
            self.complain(self.table.lost, f"expected a completed job, found {state}\n{said}\n{slurm._logs()}")
        elif restarts != "0" and self.resumed(said) < kept:
            self.complain(self.table.lost, f"expected to go on after {kept} iterations\n{said}")
        if said.count("expected signs of life") > int(restarts):
            self.complain(self.table.bad, f"expected at most one message for each start\n{said}")
        return wait, "went on" if restarts == "0" else f"queued again, {restarts} restarts"

    def repair(self) -> None:
        """Switch on all dead nodes, and wait until all nodes are idle."""
        if self.joins is not None:
            self.joins.join()
        for name, node in self.box.nodes.items():
            if node.dead:
                self.box.boot(name)
                self.slurm.prepare(name)
                self.slurm.start_node(name)
            self.box.join(name)
        nodes = f"idle {len(self.box.nodes)}"
        if not until(lambda: self.slurm.ask("sinfo", "-h", "-o", "%T %D", check=False) == nodes, 120, 0.5):
            found = self.slurm.ask("sinfo", "-h", "-N", "-o", "%N %T %E", check=False)
            self.complain(self.table.bad, f"expected idle nodes, found {found}")
            self.slurm.ask("scontrol", "update", f"NodeName={','.join(self.box.nodes)}", "State=RESUME", check=False)


def soak(faults: list[tuple[str, str]], boxes: int, seed: int, iterations: int = 100, minutes: float = 60) -> Table:
    """Cause the faults in several boxes at the same time. No fault begins after ``minutes``."""
    table, left, failed = Table(), SimpleQueue(), []
    for each in faults:
        left.put(each)

    def work(number: int) -> None:
        with Box() as box:  # nodes end with the thread that started them
            here = Soak(box, table, f"{seed} {number}", iterations)
            with suppress(Empty):
                while time.monotonic() < table.begun + 60 * minutes:
                    here.fault(*left.get_nowait())

    def watched(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=watched, args=[number], daemon=True) for number in range(boxes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # so that Ctrl-C is handled
            thread.join(1)
    if failed:
        raise failed[0]
    return table


def choose(count: int, seed: int) -> list[tuple[str, str]]:
    """Choose faults of all kinds in a random order."""
    kinds = [(mode, fault) for mode, faults in FAULTS.items() for fault in faults]
    chosen = [kinds[i % len(kinds)] for i in range(count)]
    random.Random(seed).shuffle(chosen)
    return chosen


def shell(with_slurm: bool) -> None:
    """Open a shell on the head of a box."""
    with Box() as box:
        env = {**box.env, "PATH": PATH}
        if with_slurm:
            slurm = BoxCluster(box)
            slurm.start()
            env = {**slurm.env, "SLURM_SCRIPTS": str(SCRIPTS)}
        (box.shared / "job.toml").write_text(JOB.format(iterations=300))
        print(
            f"Nodes {', '.join(box.nodes)} are up; {SHARED} is shared. For example:\n"
            f"  mpirun -launcher-exec {SHARED}/.ssh/ssh -hosts n1,n2,n3,n4 -n 4 python -m parallel_et.train job.toml\n"
            + ("  sbatch --nodes=3 --ntasks-per-node=1 $SLURM_SCRIPTS/train.sbatch job.toml\n" if with_slurm else "")
            + "  ip link set to-n3 down      cuts the link of a node; up joins it again\n"
            "exit ends the box."
        )
        subprocess.run([*box.head.enter(SHARED), "bash", "--norc"], env={**env, "PS1": r"\h:\w\$ "})


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--boxes", type=int, default=4, help="clusters at the same time")
    parser.add_argument("--minutes", type=float, default=60, help="time after which no fault is begun")
    parser.add_argument("--iterations", type=int, default=60, help="of each run")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--shell", action="store_true", help="open a shell on the head of a box")
    parser.add_argument("--slurm", action="store_true", help="have Slurm in the box of the shell")
    args = parser.parse_args()
    if args.shell:
        return shell(args.slurm)
    print(f"seed {args.seed}", flush=True)
    faults = [each for each in choose(args.faults, args.seed) if args.only in f"{each[0]}: {each[1]}"]
    table = soak(faults, args.boxes, args.seed, args.iterations, args.minutes)
    print(table, flush=True)
    raise SystemExit(0 if table.good else 1)


if __name__ == "__main__":
    main()
