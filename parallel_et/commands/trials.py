"""``python -m parallel_et.trials JOB.toml --count 50``: how often a job finds all causes, over seeds taken in order."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from parallel_et.commands import Parser
from parallel_et.errors import UserError
from parallel_et.job import Job, read_job
from parallel_et.measure import recovery
from parallel_et.parallel.ranks import Ranks, split
from parallel_et.run import Training
from parallel_et.setup import open_source, set_up


@dataclass(frozen=True)
class Trial:
    """Outcome of one trial."""

    seed: int
    causes: int
    found: int
    mae: float
    seconds: float


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "trials",
        "Train a job with many seeds, its own and those after it, and count in how many trials all causes are found.",
        "mpirun -n 2 python -m parallel_et.trials jobs/et-2010/linca-bars-noisy.toml --count 50",
    )
    parser.add_job("the job file; its data must come from a generator")
    parser.add_argument("--count", type=int, default=50, help="number of trials, 50 by default")
    parser.add_argument("--ranks-per-trial", type=int, default=1, metavar="K", help="ranks that share one trial")
    args = parser.parse_args(argv)
    if args.count < 1 or args.ranks_per_trial < 1:
        parser.error("--count and --ranks-per-trial must be 1 or more")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    job = ranks.from_root(lambda: read_job(args.job, args.set))
    first = job.run.seed
    ranks.from_root(lambda: read_job(args.job, [*args.set, f"run.seed={first + args.count - 1}"]))
    groups = min(args.count, max(1, ranks.size // args.ranks_per_trial))
    group, number = split(ranks, groups)
    group.limit_threads(job.run.threads)
    mine = []
    with ranks.together():
        for index in range(number, args.count, groups):
            mine.append(trial(job, args.job, first + index, group))
            if ranks.is_root and len(mine) % 5 == 0:
                print(f"{len(mine) * groups} trials or so of {args.count} done", flush=True)
    everything = ranks.gather(mine if group.is_root else [])
    if ranks.is_root:
        print(table(args.job, sorted((t for part in everything for t in part), key=lambda t: t.seed)), flush=True)
    return 0


def trial(job: Job, path: str, seed: int, ranks: Ranks) -> Trial:
    """One run with one seed."""
    begun = perf_counter()
    job = replace(job, run=job.run.model_copy(update={"seed": seed}))
    with ranks.together():
        source = open_source(job)
    truth = source.truth()
    if "W" not in truth:
        raise UserError(f"{path}: data.source: expected a generator that knows its causes, found {job.data.source}")
    problem, params, fingerprint = set_up(job, source, ranks)
    training = Training(job, problem, params, ranks, truth, fingerprint)
    training.run()
    outcome = recovery(problem.model, problem.scheme, training.at.params, truth["W"])
    return Trial(seed, len(outcome.found), int(outcome.found.sum()), outcome.mae.mean(), perf_counter() - begun)


def table(name: str, trials: list[Trial]) -> str:
    """What to tell of all trials."""
    complete = [t for t in trials if t.found == t.causes]
    low, high = wilson(len(complete), len(trials))
    missed = ", ".join(f"seed {t.seed}: {t.found}" for t in trials if t.found < t.causes)
    errors = np.array([t.mae for t in complete])
    lines = [
        f"{name}: seeds {trials[0].seed} to {trials[-1].seed}",
        f"all {trials[0].causes} causes found in {len(complete)} of {len(trials)} trials"
        f" ({len(complete) / len(trials):.0%}, 95 % interval {low:.0%} to {high:.0%})",
        f"causes found on average: {np.mean([t.found for t in trials]):.2f}" + (f" ({missed})" if missed else ""),
        f"seconds a trial: {np.mean([t.seconds for t in trials]):.2f}",
    ]
    if len(errors):
        lines.insert(
            3, f"mean absolute error where all were found: mean {errors.mean():.3f}, largest {errors.max():.3f}"
        )
    return "\n".join(lines)


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for the probability behind a count, 95 % by default."""
    p, slack = successes / trials, z * z / trials
    middle, half = p + slack / 2, z * np.sqrt(p * (1 - p) / trials + slack / (4 * trials))
    return max(0.0, (middle - half) / (1 + slack)), min(1.0, (middle + half) / (1 + slack))
