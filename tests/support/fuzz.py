"""Feeds damaged and hostile input to the package, which must refuse it in one line, or accept correct data only.

python tests/support/fuzz.py [KIND ...] [--cases 10000] [--seconds S] [--seed N] [--case K]

A kind is a module of tests/support/fuzzers with two functions:

* ``prepare(folder)`` writes valid input
* ``case(rng, folder)`` damages input and gives it to the package

``case`` raises a UserError if the input was refused. It returns if the input was accepted and passed all checks.
Any other outcome is wrong: another exception, a crash, more than 10 s of work, or more than 2 GB of memory.
A module sets ``SEVERAL_LINES = True`` if a refusal may have one line a mistake.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from importlib import import_module
from pathlib import Path

import numpy as np

MAX_WORK_SECONDS = 10.0
"""Processor time of a case."""
MAX_CLOCK_SECONDS = 60.0
"""Wall-clock time of a case."""
MAX_MEMORY_BYTES = 2_000_000_000
MAX_LINE_CHARACTERS = 500
"""Length of a line of a refusal."""
SIGNAL_MEANINGS = {
    signal.SIGPROF: f"more than {MAX_WORK_SECONDS:g} s of work",
    signal.SIGALRM: f"more than {MAX_CLOCK_SECONDS:g} s",
}
READY, FULL, ENDED = "ready", "full", "ended"
"""States of a worker: prepared; to be restarted because of its memory; done with all cases."""
MAX_REPORTED_CASES = 50
SERIAL_ENVIRONMENT = {
    key: value for key, value in os.environ.items() if not key.startswith(("PMI", "MPI", "HYD", "SLURM"))
}


@dataclass
class Outcome:
    """Counts of verdicts of a kind, the seconds of the longest case, and the ``wrong`` cases with descriptions."""

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str]] = field(default_factory=list)
    longest: float = 0.0

    def add(self, case: int, verdict: str, text: str = "", seconds: float = 0.0) -> None:
        """Count a case."""
        self.counts[verdict] += 1
        self.longest = max(self.longest, seconds)
        if verdict == "wrong":
            self.wrong.append((case, text))

    def row(self) -> str:
        """Return the line of the table."""
        numbers = self.counts.total(), *(self.counts[verdict] for verdict in ("refused", "accepted", "wrong"))
        return f"{self.kind:16}" + "".join(f"{number:10d}" for number in numbers) + f"{self.longest:10.1f}"


def kinds() -> list[str]:
    """Return the names of all fuzzers."""
    return sorted(path.stem for path in (Path(__file__).parent / "fuzzers").glob("*.py"))


def today() -> int:
    """Return the seed of the day."""
    return int(f"{date.today():%Y%m%d}")


def fuzz(kind: str, seed: int, cases: int = 10_000, seconds: float = 1e9, first: int = 0) -> Outcome:
    """Try ``cases`` cases from ``first`` on in a worker process, which is restarted if it ends.

    At least one case is tried. ``seconds`` limits the time after the preparation.
    """
    outcome, case, deadline = Outcome(kind), first, float("inf")
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{kind}-") as folder:
        prepared = False
        while case < first + cases and time.monotonic() < deadline:
            left = str(min(seconds, deadline - time.monotonic()))
            arguments = [kind, folder, str(seed), str(case), str(first + cases), left, str(int(prepared))]
            with tempfile.TemporaryFile("w+") as errors:
                with subprocess.Popen(
                    [sys.executable, __file__, "--worker", *arguments],
                    env=SERIAL_ENVIRONMENT,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                ) as worker:
                    state = ""
                    for line in worker.stdout:
                        if isinstance(message := json.loads(line), str):
                            deadline = deadline if prepared else time.monotonic() + seconds
                            state, prepared = message, True
                        else:
                            outcome.add(case, *message)
                            case += 1
                errors.seek(0)
                last = errors.read().strip().rpartition("\n")[2]
            assert prepared, f"{kind}: nothing could be prepared: {last}"
            if state == ENDED:
                break
            if state == FULL:
                continue
            reason = SIGNAL_MEANINGS.get(-worker.returncode, f"the process ended with {worker.returncode}: {last}")
            outcome.add(case, "wrong", reason)
            case += 1
    return outcome


def work(kind: str, folder: str, seed: str, first: str, last: str, seconds: str, prepared: str) -> None:
    """Run cases of a kind in this process; print a line for each case and for each change of state."""
    verdicts = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of the package are not verdicts
    module = import_module(f"fuzzers.{kind}")
    if not int(prepared):
        module.prepare(Path(folder))
    resource.setrlimit(resource.RLIMIT_DATA, (memory("VmData") + MAX_MEMORY_BYTES,) * 2)

    def report(message: object) -> None:
        print(json.dumps(message), file=verdicts, flush=True)

    report(READY)
    deadline = time.monotonic() + float(seconds)
    for case in range(int(first), int(last)):
        if case > int(first) and time.monotonic() > deadline:
            break
        began = time.monotonic()
        verdict = judge(module, int(seed), case, Path(folder))
        if memory("VmHWM") > MAX_MEMORY_BYTES:
            report(("wrong", f"more than {MAX_MEMORY_BYTES / 1e9:g} GB of memory"))
            return report(FULL)
        report((*verdict, time.monotonic() - began))
    return report(ENDED)


def memory(name: str) -> int:
    """Return an entry of /proc/self/status in bytes, such as VmHWM."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) << 10


def judge(module, seed: int, case: int, folder: Path, loud: bool = False) -> tuple[str, str]:
    """Run a case and return its verdict and a description."""
    from parallel_et.errors import UserError

    signal.setitimer(signal.ITIMER_PROF, MAX_WORK_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, MAX_CLOCK_SECONDS)
    try:
        module.case(np.random.default_rng([seed, case]), folder)
    except UserError as refusal:
        lines = str(refusal).split("\n") if getattr(module, "SEVERAL_LINES", False) else [str(refusal)]
        bad = [line for line in lines if not (line and len(line) <= MAX_LINE_CHARACTERS and line.isprintable())]
        return ("wrong", f"refused with {bad[0]!a:.600}") if bad else ("refused", str(refusal))
    except BaseException as error:
        if loud:
            traceback.print_exc()
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "parallel_et" in f.filename] or [None]
        at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames[-1] else ""
        return "wrong", f"{type(error).__name__}{at}: {error!s:.300}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "accepted", ""


def show(kind: str, seed: int, case: int) -> bool:
    """Run a case in this process, print its verdict, and return whether the verdict is not wrong."""
    module = import_module(f"fuzzers.{kind}")
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{kind}-") as folder:
        module.prepare(Path(folder))
        verdict, text = judge(module, seed, case, Path(folder), loud=True)
    print(f"{kind} --seed {seed} --case {case}: {verdict}\n{text}".rstrip())
    return verdict != "wrong"


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", metavar="KIND", nargs="*", help=f"default: all of {', '.join(kinds())}")
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases of each kind")
    parser.add_argument("--seconds", type=float, default=1e9, help="time limit for each kind")
    parser.add_argument("--seed", type=int, default=today(), help="default: the date")
    parser.add_argument("--case", type=int, help="run only this case, in this process")
    args = parser.parse_args()
    chosen = args.kinds or kinds()
    if args.case is not None:
        return 1 - min(show(kind, args.seed, args.case) for kind in chosen)
    columns = "tried", "refused", "accepted", "wrong", "longest s"
    print(f"seed {args.seed}\n{'kind':16}" + "".join(f"{name:>10}" for name in columns), flush=True)
    wrong = 0
    with ThreadPoolExecutor(2) as pool:
        for outcome in pool.map(lambda kind: fuzz(kind, args.seed, args.cases, args.seconds), chosen):
            print(outcome.row(), flush=True)
            for case, text in outcome.wrong[:MAX_REPORTED_CASES]:
                print(
                    f"  python tests/support/fuzz.py {outcome.kind} --seed {args.seed} --case {case}: {text}",
                    flush=True,
                )
            wrong += outcome.counts["wrong"]
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        raise SystemExit(main())
