"""Disturb runs many times, resume them on other numbers of ranks, and compare their results with undisturbed runs.

python tests/support/soak.py [--disturbances 1000] [--jobs 2] [--seed N] [--first K] [--on here]

Every model with each of its schemes and the jobs of tests/support/many_fits.py are trained and disturbed several times.
The commands infer, patches and trials are also disturbed.
After each disturbance the newest checkpoint, and at the end the result, is compared with an undisturbed run by bits.
Ctrl-C and SIGTERM end the soak early, with the table so far.
The MPI of the Python that runs the soak is tested.
"""

import argparse
import os
import random
import signal
import traceback
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count
from threading import Lock

from launch import here
from mpi4py import MPI
from soaking.cases import all_cases, make_case
from soaking.commanded import Start
from soaking.rows import WORKS, Rows
from soaking.tally import EndingError, Tally
from soaking.training import FULL_DISK, KINDS, Training, can_mount

LAUNCHERS: dict[str, Start] = {"here": here}
"""Location of the ranks -> function that starts a command there."""
DISTURBANCES_A_RUN = 10
MIN_DISTURBANCES = 4
"""Fewest disturbances of a run near the end of the soak."""
ROWS_PERIOD = 10
"""Every run with this period is a command that writes rows."""


class Soak:
    """Runs that are disturbed one after another, by several workers."""

    def __init__(self, goal: int, seed: int, start: Start, jobs: int, first: int) -> None:
        self.jobs, self.seed, self.start, self.tally = jobs, seed, start, Tally(goal)
        rng = random.Random(seed)
        self.cases = all_cases(rng)
        self.works = rng.sample(list(WORKS), len(WORKS))
        self.kinds = [kind for kind in KINDS if kind != FULL_DISK or can_mount()]
        if FULL_DISK not in self.kinds:
            self.tally.say("no disk can be mounted here: none will be full")
        self._rng, self._deck, self._promised = rng, [], 0
        self._numbers, self._lock = count(first), Lock()

    def next_run(self) -> tuple[int, list[str]]:
        """Return the number of the next run and its kinds of disturbances; all kinds are equally frequent."""
        with self._lock:
            left = self.tally.goal - self._promised
            wanted = min(left, DISTURBANCES_A_RUN, max(MIN_DISTURBANCES, -(-left // self.jobs)))
            self._promised += wanted
            while len(self._deck) < wanted:
                self._deck += self._rng.sample(self.kinds, len(self.kinds))
            hand, self._deck = self._deck[:wanted], self._deck[wanted:]
            return next(self._numbers), hand

    def work(self) -> None:
        """Disturb run after run until the goal is reached."""
        while not self.tally.ending.is_set():
            number, hand = self.next_run()
            if not hand:
                return
            self.one(number, hand)

    def one(self, number: int, hand: list[str]) -> None:
        """Disturb a run; return unused kinds of disturbances to the deck."""
        rng = random.Random(f"{self.seed} {number}")
        rows, number_of_rows = number % ROWS_PERIOD == ROWS_PERIOD - 1, number // ROWS_PERIOD
        left: list[str] = []
        if rows:
            run = Rows(self.works[number_of_rows % len(self.works)], self.tally, rng, self.start)
        else:
            case = make_case(self.cases[(number - number_of_rows) % len(self.cases)], rng)
            run = Training(case, self.tally, rng, self.start)
        with run:
            if not run.prepare():
                left = hand
            elif rows:
                run.run(len(hand))
            else:
                left = run.run(hand)
        with self._lock:
            self._promised -= len(left)
            self._deck += left
        self.tally.say(f"{number:4d}  {run}: {len(hand) - len(left)} disturbances; {self.tally.progress()}")

    def run(self) -> None:
        """Run all workers in threads; a signal ends all workers."""
        before = {name: signal.signal(name, self.stop) for name in (signal.SIGINT, signal.SIGTERM)}
        try:
            with ThreadPoolExecutor(self.jobs) as pool:
                workers = [pool.submit(self.work) for _ in range(self.jobs)]
                while wait(workers, 0.2).not_done:  # signals are handled in between
                    if any(failed(worker) for worker in workers):
                        self.tally.ending.set()
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)
        for worker in filter(failed, workers):
            self.tally.complain(
                self.tally.lost, "the soak itself", "".join(traceback.format_exception(worker.exception()))
            )

    def stop(self, *signal: object) -> None:
        """End the soak early."""
        self.tally.ending.set()


def failed(worker: Future) -> bool:
    """Return whether a worker has ended by an error."""
    return worker.done() and not isinstance(worker.exception(), EndingError | None)


def soak(goal: int, seed: int, jobs: int = 1, start: Start = here, first: int = 0) -> bool:
    """Run a soak and print its table; return whether all checks passed."""
    print(f"{MPI.Get_library_version().split(',')[0].split(chr(10))[0]}, seed {seed}", flush=True)
    soak = Soak(goal, seed, start, jobs, first)
    soak.run()
    print(f"\n{soak.tally.table()}", flush=True)
    return soak.tally.good and soak.tally.disturbances > 0


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disturbances", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2, help="runs that are disturbed side by side")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--first", type=int, default=0, help="number of the run to begin with, as printed")
    parser.add_argument("--on", choices=LAUNCHERS, default="here", help="where the ranks run")
    args = parser.parse_args()
    raise SystemExit(0 if soak(args.disturbances, args.seed, args.jobs, LAUNCHERS[args.on], args.first) else 1)


if __name__ == "__main__":
    main()
