"""A command on some ranks, and the ways to disturb it."""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from launch import CLEAN, command, ranks_of, with_startup_code
from mpi4py import MPI
from soaking import hook
from soaking.tally import EndingError, Tally

TIMEOUT_SECONDS = 300.0
OPEN_MPI = "Open MPI" in MPI.Get_library_version()
EXIT_STOPPED = 75
Start = Callable[[int], list[str]]
"""Returns the beginning of a command line that starts a command on a number of ranks."""


class Commanded:
    """A folder with the files of a command that is started repeatedly; ``with`` ends it and removes the folder.

    Parameters
    ----------
    name : command of the package
    start : returns the beginning of the command line for a number of ranks
    """

    def __init__(self, name: str, tally: Tally, rng: random.Random, start: Start) -> None:
        self.name, self.tally, self.rng, self.start = name, tally, rng, start
        self.place = Path(tempfile.mkdtemp(prefix="soak-")).resolve()
        self.env = CLEAN | with_startup_code(self.place, Path(hook.__file__).read_text())
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)  # a start takes longer without compiled modules
        self.process: subprocess.Popen | None = None
        self.pids: list[int] = []
        self.kind = ""

    def __enter__(self) -> "Commanded":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pid in ranks_of(self.place):
            self.send(pid, signal.SIGKILL)
        shutil.rmtree(self.place, ignore_errors=True)

    def begin(self, ranks: int, *args: str) -> None:
        """Start the command, with its output in a file."""
        with open(self.place / "said", "w") as said:
            self.process = subprocess.Popen(
                command(ranks, "-m", "parallel_et", self.name, *args, on=self.start),
                cwd=self.place,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """Output of the command so far."""
        return (self.place / "said").read_text(errors="replace")

    def until(self, condition: Callable[[], Any], pause: float = 0.01) -> Any:
        """Wait for a true value of a condition while the command runs; return the last value."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (found := condition()) and self.process.poll() is None and time.monotonic() < deadline:
            self.rest(pause)
        return found

    def rest(self, seconds: float) -> None:
        """Wait a number of seconds; raise EndingError if the soak ends."""
        if self.tally.ending.wait(seconds):
            raise EndingError

    def other_ranks(self, ranks: int, least: int) -> int:
        """Choose another number of ranks; small numbers are more frequent, because they start faster."""
        others = [number for number in range(least, 5) if number != ranks]
        return self.rng.choices(others, [1 / number for number in others])[0]

    def find_ranks(self, ranks: int) -> bool:
        """Wait for all ranks; return whether all have started."""
        self.pids = self.until(lambda: len(found := ranks_of(self.place)) == ranks and found, 0.03) or []
        return bool(self.pids)

    def end(self) -> int:
        """Wait for the end of mpirun and of all ranks, report remaining ranks, and return the exit code."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self.rest(0.01)
        while (left := ranks_of(self.place)) and time.monotonic() < deadline:
            self.rest(0.02)
        if self.process.poll() is None or left:
            self.lose(f"expected that all ranks end, found {len(left)} after {TIMEOUT_SECONDS:.0f} s")
            for pid in [self.process.pid, *left]:
                self.send(pid, signal.SIGKILL)
        return self.process.wait()

    def lose(self, words: str) -> None:
        """Count the current disturbance as a loss."""
        self.tally.complain(self.tally.lost, self.kind, f"{words} [{self}]\n{self.said}")

    def send(self, pid: int, number: int) -> None:
        """Send a signal to a process that may have ended."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def listening(self) -> bool:
        """Wait until all ranks have a handler for SIGUSR2, which only a command of the package installs."""
        return self.until(lambda: all(map(listens, self.pids)))


class Way(NamedTuple):
    """A disturbance of a command; ``asks`` is true for a request to stop with exit code 75."""

    act: Callable[[Commanded], None]
    asks: bool


def to_one(number: int) -> Callable[[Commanded], None]:
    """Send a signal to one rank."""
    return lambda run: run.send(run.rng.choice(run.pids), number)


def to_all(number: int) -> Callable[[Commanded], None]:
    """Send a signal to all ranks."""
    return lambda run: [run.send(pid, number) for pid in run.pids] and None


def to_mpirun(number: int) -> Callable[[Commanded], None]:
    """Send a signal to mpirun."""
    return lambda run: run.send(run.process.pid, number)


def ctrl_c(run: Commanded) -> None:
    """Send SIGINT like a terminal, to the process group of mpirun."""
    with suppress(ProcessLookupError):
        os.killpg(run.process.pid, signal.SIGINT)


def stopped_a_while(run: Commanded) -> None:
    """Stop one rank, continue it, and ask it to end."""
    pid = run.rng.choice(run.pids)
    run.send(pid, signal.SIGSTOP)
    try:
        run.rest(run.rng.random() / 2)
    finally:
        run.send(pid, signal.SIGCONT)
    run.send(pid, signal.SIGUSR1)


KILLS = {
    "one rank killed": Way(to_one(signal.SIGKILL), False),
    "all ranks killed": Way(to_all(signal.SIGKILL), False),
    "mpirun killed": Way(to_mpirun(signal.SIGKILL), False),
}
FORWARDED = signal.SIGUSR2 if OPEN_MPI else signal.SIGTERM
"""The signal that mpirun forwards to the ranks, in addition to SIGUSR1."""
ASKS = {
    **{
        f"{signal.Signals(number).name} to one rank": Way(to_one(number), True)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    },
    **{
        f"{signal.Signals(number).name} to mpirun": Way(to_mpirun(number), True)
        for number in (FORWARDED, signal.SIGUSR1)
    },
    "Ctrl-C": Way(ctrl_c, True),
}


def listens(pid: int) -> bool:
    """Return whether a process has a handler for SIGUSR2."""
    try:
        caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
    except (OSError, IndexError):
        return False
    return bool(int(caught, 16) >> (signal.SIGUSR2 - 1) & 1)
