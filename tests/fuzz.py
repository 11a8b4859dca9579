"""Feeds damaged and hostile things to the gates of the package: each must be refused in one line, or be sound.

python tests/fuzz.py [KIND ...] [--cases 10000] [--seconds S] [--seed N] [--case K]

A kind is a module of tests/fuzzers with two functions, and ``SEVERAL = True`` if a refusal may have a line a mistake:
``prepare(folder)`` makes sound things; ``case(rng, folder)`` spoils one and gives it to the code that has to judge it.
It raises UserError if that was refused and returns if it was accepted, having checked what was accepted. All else is
wrong: another exception, the end of the process, more than 10 s of work, more than 2 GB of memory.
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

MOST_WORK, MOST_TIME = 10.0, 60.0
"""Seconds of a case: on the processor, and by the clock, which runs on while other things have the processor."""
MOST_MEMORY = 2_000_000_000
LONGEST = 500
"""Characters of a refusal's line."""
WORDS = {signal.SIGPROF: f"more than {MOST_WORK:g} s of work", signal.SIGALRM: f"more than {MOST_TIME:g} s"}
READY, FULL, ENDED = "ready", "full", "ended"
"""States of a worker: it begins; it must be started anew, for its memory; nothing is left to do."""
SHOWN = 50
ALONE = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "MPI", "HYD", "SLURM"))}


@dataclass
class Outcome:
    """What became of the cases of a kind, and the seconds of the longest; ``wrong`` are cases and what happened."""

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str]] = field(default_factory=list)
    longest: float = 0.0

    def add(self, case: int, verdict: str, words: str = "", seconds: float = 0.0) -> None:
        """One more case."""
        self.counts[verdict] += 1
        self.longest = max(self.longest, seconds)
        if verdict == "wrong":
            self.wrong.append((case, words))

    def row(self) -> str:
        """Its line of the table."""
        numbers = self.counts.total(), *(self.counts[verdict] for verdict in ("refused", "accepted", "wrong"))
        return f"{self.kind:16}" + "".join(f"{number:10d}" for number in numbers) + f"{self.longest:10.1f}"


def kinds() -> list[str]:
    """All that there are."""
    return sorted(path.stem for path in (Path(__file__).parent / "fuzzers").glob("*.py"))


def today() -> int:
    """A seed that is the same all day."""
    return int(f"{date.today():%Y%m%d}")


def fuzz(kind: str, seed: int, cases: int = 10_000, seconds: float = 1e9, first: int = 0) -> Outcome:
    """Try ``cases`` cases from ``first`` on, for so many seconds at most; a process that ends is started anew.

    The time counts from when all is prepared, and one case is tried at least.
    """
    outcome, case, deadline = Outcome(kind), first, float("inf")
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{kind}-") as folder:
        prepared = False
        while case < first + cases and time.monotonic() < deadline:
            left = str(min(seconds, deadline - time.monotonic()))
            words = [kind, folder, str(seed), str(case), str(first + cases), left, str(int(prepared))]
            with tempfile.TemporaryFile("w+") as said:
                with subprocess.Popen(
                    [sys.executable, __file__, "--worker", *words],
                    env=ALONE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    text=True,
                    start_new_session=True,
                ) as worker:
                    state = ""
                    for line in worker.stdout:
                        if isinstance(news := json.loads(line), str):
                            deadline = deadline if prepared else time.monotonic() + seconds
                            state, prepared = news, True
                        else:
                            outcome.add(case, *news)
                            case += 1
                said.seek(0)
                last = said.read().strip().rpartition("\n")[2]
            assert prepared, f"{kind}: nothing could be prepared: {last}"
            if state == ENDED:
                break
            if state == FULL:
                continue
            how = WORDS.get(-worker.returncode, f"the process ended with {worker.returncode}: {last}")
            outcome.add(case, "wrong", how)
            case += 1
    return outcome


def work(kind: str, folder: str, seed: str, first: str, last: str, seconds: str, prepared: str) -> None:
    """Cases of a kind in this process; a line for each, and one for each change of state."""
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a gate prints is no verdict
    module = import_module(f"fuzzers.{kind}")
    if not int(prepared):
        module.prepare(Path(folder))
    resource.setrlimit(resource.RLIMIT_DATA, (memory("VmData") + MOST_MEMORY,) * 2)

    def tell(news: object) -> None:
        print(json.dumps(news), file=report, flush=True)

    tell(READY)
    deadline = time.monotonic() + float(seconds)
    for case in range(int(first), int(last)):
        if case > int(first) and time.monotonic() > deadline:
            break
        began = time.monotonic()
        verdict = judged(module, int(seed), case, Path(folder))
        if memory("VmHWM") > MOST_MEMORY:
            tell(("wrong", f"more than {MOST_MEMORY / 1e9:g} GB of memory"))
            return tell(FULL)
        tell((*verdict, time.monotonic() - began))
    return tell(ENDED)


def memory(name: str) -> int:
    """Bytes of this process, by the system's name for them."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) << 10


def judged(module, seed: int, case: int, folder: Path, loud: bool = False) -> tuple[str, str]:
    """One case: the verdict, and what happened."""
    from parallel_et.errors import UserError

    signal.setitimer(signal.ITIMER_PROF, MOST_WORK)
    signal.setitimer(signal.ITIMER_REAL, MOST_TIME)
    try:
        module.case(np.random.default_rng([seed, case]), folder)
    except UserError as refusal:
        lines = str(refusal).split("\n") if getattr(module, "SEVERAL", False) else [str(refusal)]
        bad = [line for line in lines if not (line and len(line) <= LONGEST and line.isprintable())]
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
    """One case in this process, with all that it says; returns whether it is sound."""
    module = import_module(f"fuzzers.{kind}")
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{kind}-") as folder:
        module.prepare(Path(folder))
        verdict, words = judged(module, seed, case, Path(folder), loud=True)
    print(f"{kind} --seed {seed} --case {case}: {verdict}\n{words}".rstrip())
    return verdict != "wrong"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", metavar="KIND", nargs="*", help=f"by default all: {', '.join(kinds())}")
    parser.add_argument("--cases", type=int, default=10_000, help="of each kind")
    parser.add_argument("--seconds", type=float, default=1e9, help="the most that a kind may take")
    parser.add_argument("--seed", type=int, default=today(), help="by default the date")
    parser.add_argument("--case", type=int, help="only this one, in this process")
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
            for case, words in outcome.wrong[:SHOWN]:
                print(f"  python tests/fuzz.py {outcome.kind} --seed {args.seed} --case {case}: {words}", flush=True)
            wrong += outcome.counts["wrong"]
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        raise SystemExit(main())
