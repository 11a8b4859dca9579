"""Disturbs runs many times, goes on with them on other numbers of ranks, and compares their ends with whole runs.

python tests/soak.py [--kills 100] [--outputs 20] [--iterations 300] [--seed N]

With a Python that has Open MPI it is Open MPI that is tested.
"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from launch import ended, hooked, launch, learned, ranks_of, start
from mpi4py import MPI

JOB = """
[model]
name = "linca"
causes = 60
learn = ["W", "sigma", "pi"]
[data]
source = "data.npy"
[inference]
candidates = 6
gamma = 3
[anneal]
iterations = {iterations}
temperature = [[0.1, 5.0], [0.8, 1.0]]
cut = {{ schedule = [[0.3, 0.0], [0.6, 1.0]], share = 0.9 }}
noise.W = 0.05
[run]
snapshots = 100
checkpoint = {{ every = 3 }}
"""
BARS = """
[model]
name = "linca"
causes = 10
[data]
source = "bars"
points = 200
[inference]
candidates = 5
gamma = 3
[anneal]
iterations = 20
"""
PATIENCE = 300.0
HOOK = """
import importlib.util, os, sys, time

def later(name, change):
    # Change a module when it is loaded, not before: the start is what it is without this.
    class Hook:
        def find_spec(self, wanted, path=None, target=None):
            if wanted == name:
                sys.meta_path.remove(self)
                spec = importlib.util.find_spec(name)
                load = spec.loader.exec_module
                spec.loader.exec_module = lambda module: (load(module), change(module))
                return spec
    sys.meta_path.insert(0, Hook())

def slow_end(module):  # it does not run far ahead of where it is to be disturbed
    after = module.Keeper._after
    def slowly(keeper):
        with open("hold") as file:
            if keeper.training.at.iteration >= int(file.read()):
                time.sleep(0.5)
        return after(keeper)
    module.Keeper._after = slowly

def slow(kind, method):
    def change(module):
        does = getattr(getattr(module, kind), method)
        def slowly(*args, **options):
            done = does(*args, **options)
            with open("steps", "a") as file:
                file.write(".")
            time.sleep(0.1)
            return done
        setattr(getattr(module, kind), method, slowly)
    return change

later("parallel_et.runs.keeper", slow_end)
later("parallel_et.io.output", slow("Output", "write"))
later("parallel_et.runs.trials", slow("Trials", "add"))
"""
OPEN_MPI = "Open MPI" in MPI.Get_library_version()
FORWARDED = ("SIGUSR1", "SIGUSR2") if OPEN_MPI else ("SIGUSR1", "SIGTERM")
"""Signals that mpirun passes on to the ranks, whose exit code it then has."""


class Work(NamedTuple):
    """A command that can be disturbed: its name and arguments, what it writes, and what of that must be the same."""

    name: str
    args: tuple[str, ...]
    output: str
    contents: Callable[[Path], dict[str, bytes]]


def datasets(path: Path) -> dict[str, bytes]:
    """All that a file holds but for times."""
    found: dict[str, bytes] = {}

    def add(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and "seconds" not in name:
            found[name] = item[()].tobytes()

    with h5py.File(path) as file:
        file.visititems(add)
    return found


def trials(path: Path) -> dict[str, bytes]:
    """All rows of a file of trials but for times, in the order of their seeds."""
    with h5py.File(path) as file:
        order = np.argsort(file["seed"][()])
        return {name: item[()][order].tobytes() for name, item in file.items() if name != "seconds"}


TRAIN = Work("train", ("job.toml", "--output", "runs/job"), "runs/job/result.h5", learned)
OUTPUTS = (
    Work("infer", ("runs/whole", "data.npy", "--output", "posterior.h5"), "posterior.h5", datasets),
    Work("patches", ("images.npy", "--size", "6", "--all", "--output", "patches.h5"), "patches.h5", datasets),
    Work("trials", ("bars.toml", "--count", "12", "--output", "trials.h5"), "trials.h5", trials),
)


class Soak:
    """The disturbances so far, and what went wrong."""

    def __init__(self, place: Path, iterations: int, seed: int) -> None:
        self.place, self.iterations, self.rng = place, iterations, random.Random(seed)
        self.made: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.kind = ""
        np.save(place / "data.npy", np.random.default_rng(1).normal(size=(6000, 144)))
        np.save(place / "images.npy", np.random.default_rng(2).random((3, 150, 150)))
        (place / "job.toml").write_text(JOB.format(iterations=iterations))
        (place / "bars.toml").write_text(BARS)
        whole = TRAIN._replace(args=("job.toml", "--output", "runs/whole"), output="runs/whole/result.h5")
        self.whole = {TRAIN.name: self.undisturbed(whole)}
        for work in OUTPUTS:
            self.whole[work.name] = self.undisturbed(work)
            (place / work.output).unlink()
        self.env = hooked(place, HOOK)

    def undisturbed(self, work: Work) -> dict[str, bytes]:
        """What a run gives that nothing disturbs."""
        done = launch(2, "-m", f"parallel_et.{work.name}", *work.args, cwd=self.place)
        assert done.returncode == 0, done.stdout + done.stderr
        return work.contents(self.place / work.output)

    def complain(self, words: str) -> None:
        """Something is wrong with the disturbance of now."""
        self.wrong[self.kind] += 1
        print(f"WRONG: {self.kind}: {words}", flush=True)

    def disturb(self, work: Work, kind: str, ranks: int, wait: Callable) -> int | None:
        """Start it, disturb it once ``wait`` for its ranks is over, and check how it ends; None if it was too late."""
        self.kind = f"{work.name}: {kind}"
        process = start(ranks, *work.args, cwd=self.place, name=work.name, **self.env)
        pids = self.until(lambda: len(found := ranks_of(self.place)) == ranks and found, process)
        if not pids:  # it was at its end before all its ranks were seen
            _, code, said = ended(process, self.place)
            if code:
                self.complain(f"expected {ranks} ranks, found them gone with exit code {code}\n{said}")
            return None
        asks = kind.startswith("SIG")
        number = signal.Signals[kind.split()[0]] if asks else signal.SIGKILL
        if asks:
            self.until(lambda: all(listens(pid) for pid in pids), process)
        if "start" in kind:
            time.sleep(self.rng.random() * 2)
        else:
            wait(process)
        victim = process.pid if kind.startswith("mpirun") else self.rng.choice(pids)
        if asks and number.name in FORWARDED and "SIGSTOP" not in kind and self.rng.random() < 0.4:
            victim = process.pid
        with suppress(ProcessLookupError):
            if "SIGSTOP" in kind:
                os.kill(victim, signal.SIGSTOP)
                time.sleep(self.rng.random())
                os.kill(victim, signal.SIGCONT)
            os.kill(victim, number)
        seconds, code, said = ended(process, self.place)
        if code == 0 and work is not TRAIN:
            return None
        self.made[self.kind] += 1
        if left := ranks_of(self.place):
            self.complain(f"expected that all ranks end, found {len(left)} after {seconds:.0f} s")
        if code in (0, 2) or (code == 75) != asks:
            self.complain(f"expected {'exit code 75' if asks else 'a killed run'}, found exit code {code}\n{said}")
        return code

    def until(self, condition, process):
        """Wait for something while a job runs; returns it."""
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return found

    def check_end(self, work: Work) -> None:
        """Let it come to its end, and compare that with a whole run."""
        ranks = self.rng.randint(1, 4)
        self.kind = f"{work.name}: compared at the end"
        done = launch(ranks, "-m", f"parallel_et.{work.name}", *work.args, cwd=self.place)
        self.compare(work, done.returncode, done.stdout + done.stderr)

    def compare(self, work: Work, code: int, said: str) -> None:
        """Whether it has ended well, with all that a whole run gives."""
        self.kind = f"{work.name}: compared at the end"
        self.made[self.kind] += 1
        if code:
            return self.complain(f"expected exit code 0, found {code}\n{said}")
        found, whole = work.contents(self.place / work.output), self.whole[work.name]
        different = [name for name in {**whole, **found} if found.get(name) != whole.get(name)]
        if different:
            self.complain(f"expected the same bits, found others in {', '.join(different)}")

    def train(self, kills: int) -> None:
        """Disturb a training in all ways."""
        asked = ("SIGUSR1", "SIGUSR2", "SIGTERM")
        kinds = ["rank killed", "rank killed within a checkpoint", "mpirun killed", "SIGUSR1 after SIGSTOP and SIGCONT"]
        kinds += [*asked, *(f"{name} at the start" for name in asked)]
        self.rng.shuffle(kinds)
        order = [kinds[i % len(kinds)] for i in range(kills)]
        self.rng.shuffle(order)
        targets = sorted(self.rng.randrange(self.iterations * 4 // 5) for _ in order)
        for kill, (kind, target) in enumerate(zip(order, targets, strict=True), 1):
            left, least = self.parts(), 1
            if kind == "mpirun killed":  # without it, a single rank of Open MPI goes on to the end
                least, target = 2 if OPEN_MPI else 1, max(target, self.newest() + 1)
            ranks = self.rng.randint(least, 4)
            (self.place / "hold").write_text(str(target + 3))

            def wait(process, kind=kind, target=target, left=left) -> None:
                self.until(lambda: self.newest() >= target, process)
                if "checkpoint" in kind:
                    late = self.newest() + 6
                    while not self.parts() - left and self.newest() < late and process.poll() is None:
                        pass
                else:
                    time.sleep(self.rng.random() * 0.3)

            code = self.disturb(TRAIN, kind, ranks, wait)
            print(f"{kill:4d}  train on {ranks}  {kind}: {code}, newest checkpoint {self.newest()}", flush=True)
        self.check_end(TRAIN)

    def output(self, work: Work, kills: int) -> None:
        """Disturb what writes rows; once it has come to its end, it starts over."""
        kinds = ("rank killed", "mpirun killed", "SIGUSR1", "rank killed", "SIGTERM", "SIGUSR2 at the start")
        steps, made, path = self.place / "steps", 0, self.place / work.output
        while made < kills:
            ranks, more = self.rng.randint(1, 4), self.rng.randint(0, 3)
            steps.write_text("")

            def wait(process, more=more) -> None:
                self.until(lambda: steps.stat().st_size > more, process)
                time.sleep(self.rng.random() * 0.1)

            code = self.disturb(work, kinds[made % len(kinds)], ranks, wait)
            made += code is not None
            words = "it was at its end" if code is None else code
            print(f"{made:4d}  {work.name} on {ranks}  {self.kind.partition(': ')[2]}: {words}", flush=True)
            whole = path.exists() and not path.with_name(path.name + ".part").exists()
            if code is None or (whole and work.name != "trials"):  # trials are in their file as they come
                self.compare(work, 0, "")
                path.unlink()
        self.check_end(work)

    def newest(self) -> int:
        """Iterations that the newest checkpoint has."""
        return max((int(path.stem) for path in self.place.glob("runs/job/checkpoints/*.h5")), default=0)

    def parts(self) -> set[tuple[Path, int]]:
        """Checkpoints that are half written."""
        found = set()
        for path in self.place.glob("runs/job/checkpoints/*.part"):
            with suppress(FileNotFoundError):  # it is whole by now
                found.add((path, path.stat().st_ino))
        return found

    def table(self) -> str:
        """What was done and what went wrong."""
        width = max(map(len, self.made))
        lines = [f"{kind:<{width}}  {self.made[kind]:8d}  {self.wrong[kind]:5d}" for kind in sorted(self.made)]
        total = f"{'all':<{width}}  {self.made.total():8d}  {self.wrong.total():5d}"
        return "\n".join([f"{'disturbance':<{width}}  how many  wrong", *lines, total])


def listens(pid: int) -> bool:
    """Whether a process has a handler for SIGUSR2, which nobody but a command of ours installs."""
    try:
        caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
    except OSError:
        return False
    return bool(int(caught, 16) >> (signal.SIGUSR2 - 1) & 1)


def soak(place: Path, iterations: int, kills: int, outputs: int, seed: int) -> bool:
    """Do it all and print a table; returns whether nothing was wrong."""
    print(f"{MPI.Get_library_version().split(',')[0].split(chr(10))[0]}, seed {seed}", flush=True)
    soak = Soak(place, iterations, seed)
    soak.train(kills)
    for work in OUTPUTS:
        soak.output(work, outputs)
    print(soak.table(), flush=True)
    return not soak.wrong


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--kills", type=int, default=100, help="disturbances of a training")
    parser.add_argument("--outputs", type=int, default=20, help="of each of infer, patches and trials")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="soak-")).resolve()
    try:
        good = soak(place, args.iterations, args.kills, args.outputs, args.seed)
    finally:
        shutil.rmtree(place)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
