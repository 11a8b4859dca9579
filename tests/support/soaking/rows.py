"""Commands that write rows (infer, patches, trials), disturbed until all rows are written."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from soaking.commanded import ASKS, EXIT_STOPPED, KILLS, OPEN_MPI, Commanded, Start
from soaking.tally import COMPARED, Tally

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
MODEL = """
[model]
name = "linca"
causes = 60
[data]
source = "data.npy"
[inference]
candidates = 6
gamma = 3
[anneal]
iterations = 3
[run]
picture = false
"""


class Work(NamedTuple):
    """A command: its arguments, its output file, and a function that reads the contents to compare."""

    args: tuple[str, ...]
    output: str
    contents: Callable[[Path], dict[str, bytes]]


def datasets(path: Path) -> dict[str, bytes]:
    """Return the contents of a file except times."""
    found: dict[str, bytes] = {}

    def add(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and "seconds" not in name:
            found[name] = item[()].tobytes()

    with h5py.File(path) as file:
        file.visititems(add)
    return found


def trials(path: Path) -> dict[str, bytes]:
    """Return all rows of a file of trials except times, in the order of their seeds."""
    with h5py.File(path) as file:
        order = np.argsort(file["seed"][()])
        return {name: item[()][order].tobytes() for name, item in file.items() if name != "seconds"}


WORKS = {
    "infer": Work(("runs/model", "data.npy", "--output", "posterior.h5"), "posterior.h5", datasets),
    "patches": Work(("images.npy", "--size", "6", "--all", "--output", "patches.h5"), "patches.h5", datasets),
    "trials": Work(("bars.toml", "--count", "12", "--output", "trials.h5"), "trials.h5", trials),
}
WAYS = {**KILLS, **ASKS}


class Rows(Commanded):
    """A command that writes rows, in its own folder."""

    def __init__(self, name: str, tally: Tally, rng: random.Random, start: Start) -> None:
        super().__init__(name, tally, rng, start)
        self.work = WORKS[name]
        self.path = self.place / self.work.output
        self.ranks = 0
        np.save(self.place / "data.npy", np.random.default_rng(1).normal(size=(6000, 144)))
        np.save(self.place / "images.npy", np.random.default_rng(2).random((3, 150, 150)))
        (self.place / "bars.toml").write_text(BARS)
        (self.place / "model.toml").write_text(MODEL)

    def __str__(self) -> str:
        return f"{self.name}; on {self.ranks} ranks"

    def prepare(self) -> bool:
        """Write all rows without disturbance; return whether this succeeded."""
        self.kind, name = COMPARED, self.name
        if name == "infer":
            self.name = "train"
            self.begin(2, "model.toml")
            if self.end():
                self.lose("expected a model that is trained")
                return False
            self.name = name
        self.begin(2, *self.work.args)
        if code := self.end():
            self.lose(f"expected exit code 0 of a command that nothing disturbs, found {code}")
            return False
        self.whole = self.work.contents(self.path)
        self.path.unlink()
        return True

    def run(self, count: int) -> None:
        """Disturb the command a number of times; a finished command starts over."""
        (self.place / "slow").write_text("rows")
        made = 0
        while made < count:
            way = self.rng.choice(list(WAYS))
            if self.disturb(way, self.rng.random() < 0.2):
                made += 1
                whole = self.path.exists() and not self.path.with_name(self.path.name + ".part").exists()
                if not whole or self.name == "trials":  # the order of trials in their file may differ
                    continue
            self.compare()
        (self.place / "slow").unlink()
        self.kind = COMPARED
        self.launch(1)
        if code := self.end():
            return self.lose(f"expected exit code 0, found {code}")
        self.compare()

    def launch(self, least: int) -> None:
        """Start the command on another number of ranks."""
        self.ranks = self.other_ranks(self.ranks, least)
        (self.place / "steps").write_text("")
        self.begin(self.ranks, *self.work.args)

    def disturb(self, name: str, at_start: bool) -> bool:
        """Resume and disturb the command; return whether it was still running."""
        way, begun = WAYS[name], time.monotonic()
        self.kind = f"{self.name}: {name}{' at the start' if at_start else ''}"
        self.launch(2 if OPEN_MPI and name == "mpirun killed" else 1)
        if not self.find_ranks(self.ranks):
            if code := self.end():
                self.lose(f"expected {self.ranks} ranks, found them gone with exit code {code}")
            return False
        if way.asks:
            self.listening()
        if at_start:
            self.rest(1.5 * self.rng.random())
        else:
            more = self.rng.randint(0, 3)
            self.until(lambda: (self.place / "steps").stat().st_size > more)
            self.rest(0.1 * self.rng.random())
        way.act(self)
        if (code := self.end()) == 0:
            self.tally.late += 1
            return False
        self.tally.add(self.kind)
        self.tally.note(self.kind, time.monotonic() - begun, f"exit code {code} [{self}]")
        codes = (EXIT_STOPPED, 1) if OPEN_MPI and name in ("Ctrl-C", "SIGTERM to mpirun") else (EXIT_STOPPED,)
        if (way.asks and code not in codes) or (not way.asks and code in (2, EXIT_STOPPED)):
            self.lose(f"expected {'exit code 75' if way.asks else 'a killed command'}, found exit code {code}")
        return True

    def compare(self) -> None:
        """Compare the output with that of an undisturbed command, and remove it."""
        self.kind = COMPARED
        self.tally.add(self.kind)
        if not self.path.exists():
            return self.lose("expected all rows, found no file")
        found = self.work.contents(self.path)
        if names := sorted(name for name in {**self.whole, **found} if found.get(name) != self.whole.get(name)):
            self.tally.complain(self.tally.wrong, self.kind, f"other bits in {', '.join(names)} [{self}]")
        self.path.unlink()
