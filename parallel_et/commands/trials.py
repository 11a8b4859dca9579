"""``python -m parallel_et.trials JOB.toml --count 50``: how often a job finds all causes, over seeds taken in order."""

import argparse
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from parallel_et.commands import STOPPED, Parser
from parallel_et.control.progress import Reporter
from parallel_et.control.stopping import Stopping, Wish
from parallel_et.errors import UserError
from parallel_et.parallel.ranks import Ranks, split
from parallel_et.runs.job import Job, differing_keys, read_job
from parallel_et.runs.recovery import recovery
from parallel_et.runs.setup import check_memory, demand_of, model_of, open_source, open_together, set_up, size_up
from parallel_et.runs.training import Training
from parallel_et.runs.trials import Trial, Trials

SET = 20
"""Trials of which one takes the best, as in OCA sec. 4.4."""
NO_MATTER = ("run.seed", "run.snapshots", "run.picture", "run.checkpoint")
"""Keys in which the jobs of the trials in one file may differ: none is changed by them."""
MERIT = {"sigma": "smallest sigma", "free_energy": "largest free energy"}


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "trials",
        "Train a job with many seeds, its own and those after it, and count in how many trials all causes are found; "
        "where these are not known, tell which trial is best. Given again, the command goes on where it was "
        "interrupted, and a larger --count adds trials to those that are there.",
        "mpirun -n 2 python -m parallel_et.trials jobs/et-2010/linca-bars-noisy.toml --count 50",
    )
    parser.add_job("the job file")
    parser.add_argument("--count", type=int, default=50, help="number of trials, 50 by default")
    parser.add_argument("--ranks-per-trial", type=int, default=1, metavar="K", help="ranks that share one trial")
    best = "also tell how often the best of M trials finds all causes: that of smallest sigma or largest free energy"
    parser.add_argument("--best", choices=MERIT, help=best)
    parser.add_argument("--of", type=int, metavar="M", help=f"trials of which the best is taken, {SET} by default")
    where = "one row a trial, by default runs/<job name>-trials.h5"
    parser.add_argument("--output", metavar="FILE", help=where)
    parser.add_argument("--fresh", action="store_true", help="start over; what is in FILE is kept aside")
    parser.add_max_time()
    args = parser.parse_args(argv)
    if args.of is not None and args.best is None:
        parser.error("--of: expected --best as well, found none")
    if min(args.count, args.ranks_per_trial, SET if args.of is None else args.of) < 1:
        parser.error("--count, --ranks-per-trial and --of must be 1 or more")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    job = ranks.from_root(lambda: read_job(args.job, args.set))
    seeds = range(job.run.seed, job.run.seed + args.count)
    ranks.from_root(lambda: read_job(args.job, [*args.set, f"run.seed={seeds[-1]}"]))
    report = Reporter(ranks.is_root, quiet=False)
    with ranks.together():
        source = open_source(job)
    group = group_of(ranks, args, args.count)
    check_memory(demand_of(job, source, size_up(job, source), group.size), group, ranks)
    state = ranks.from_root(source.state)
    about = {"job": job.toml(), "name": job.name, "data state": state}
    path = Path(args.output or f"runs/{job.name}-trials.h5")
    trials = Trials(path, about, partial(differing, job), report.say)
    stopping = Stopping(args.max_time, trials.stop)
    ranks.from_root(lambda: check_best(args, job))
    ranks.from_root(trials.hold)
    try:
        todo = ranks.from_root(lambda: begin(args, job, seeds, trials, report))
        if wish := run(ranks, args, job, todo, trials, stopping, report):
            done = sum(seed in trials.rows for seed in seeds)
            again = "the same command" + (" without --fresh" if args.fresh else "")
            report.say(f"stopped by {wish.words()} after {done} of {args.count} trials; {again} goes on")
            return STOPPED
        ranks.from_root(lambda: check_complete(seeds, trials))
    finally:
        trials.release()
    if ranks.is_root:
        report.say(table(args, [trials.rows[seed] for seed in seeds]))
        report.say(f"result: {trials.path}")
    return 0


def group_of(ranks: Ranks, args: argparse.Namespace, trials: int) -> Ranks:
    """The ranks that run a trial together with this one, when there are so many to be run."""
    return split(ranks, max(1, min(trials, ranks.size // args.ranks_per_trial)))[0]


def differing(job: Job, stored: str) -> list[str]:
    """Keys in which the job of an earlier trial differs from this one in what matters."""
    return differing_keys(tomllib.loads(stored), job.resolved(), NO_MATTER)


def check_best(args: argparse.Namespace, job: Job) -> None:
    """Refuse a choice of the best that this job does not allow."""
    if args.best == "sigma" and "sigma" not in job.model.learn:
        raise UserError(f"{args.job}: model.learn: expected sigma in it for --best sigma, found {job.model.learn}")
    if args.of is not None and "W" not in open_source(job).truth():
        raise UserError(f"--of: expected a generator that knows its causes, found {job.data.source}")


def check_complete(seeds: Sequence[int], trials: Trials) -> None:
    """Refuse to count trials of which some are missing: somebody else had taken them."""
    if missing := [seed for seed in seeds if seed not in trials.rows]:
        raise UserError(
            f"{trials.path}: expected {len(seeds)} trials, found none of seed {missing[0]}; the same command runs it"
        )


def begin(args: argparse.Namespace, job: Job, seeds: Sequence[int], trials: Trials, report: Reporter) -> list[int]:
    """Look, on the root, at what is there; returns the seeds that are still to be tried."""
    source = open_source(job)
    if args.fresh:
        trials.set_aside()
    model, _ = model_of(job, source.dims)
    trials.look({name: model.shape(name) for name in model.params})
    trials.begin()
    todo = [seed for seed in seeds if seed not in trials.rows]
    if there := len(seeds) - len(todo):
        report.say(f"{trials.path}: {there} of {len(seeds)} trials are there already")
    report.begin(len(seeds), there, source.points * job.anneal.iterations)
    return todo


def run(
    ranks: Ranks,
    args: argparse.Namespace,
    job: Job,
    todo: list[int],
    trials: Trials,
    stopping: Stopping,
    report: Reporter,
) -> Wish:
    """Run the trials on groups of ranks and bring them into one file; returns why some are left, if there are."""
    with ranks.together():
        if not trials.parts.exists():
            raise UserError(f"{trials.path}: expected a folder that all nodes share, found it on the root's alone")
    group = group_of(ranks, args, len(todo))
    group.limit_threads(job.run.threads)
    mine: list[int] = []

    def show() -> None:
        added = max(len(mine), trials.done())  # shared file systems may list files late
        done = args.count - len(todo) + added
        report.step(done, f"{done} of {args.count} trials")

    with ranks.together():
        wish = run_group(group, job, todo, trials, stopping, mine, show if ranks.is_root else lambda: None)
    wishes, everything = Wish(ranks.either(wish)), ranks.gather(mine if group.is_root else [])
    if not ranks.from_root(lambda: len(todo) - trials.collect(seed for part in everything for seed in part)):
        return Wish.NONE
    return wishes & ~Wish.FILE or wishes  # by the file a group tells the others of its own wish


def run_group(
    group: Ranks,
    job: Job,
    todo: list[int],
    trials: Trials,
    stopping: Stopping,
    mine: list[int],
    show: Callable[[], None],
) -> Wish:
    """Run trial after trial, each one that no other group has taken, and add their seeds to ``mine``.

    Groups never wait for each other, and none is idle while there are trials that nobody has begun. One that is to
    stop, or fails, makes the others stop after their trials as well; returns why it stopped, if it did.
    """
    longest = 0.0
    try:
        for seed in todo:
            if wish := Wish(group.either(stopping.wish(1.2 * longest))):
                trials.ask_to_stop()
                return wish
            if group.from_root(partial(trials.take, seed)):
                done = trial(job, seed, group)
                group.from_root(partial(trials.add, done))
                mine.append(seed)
                longest = max(longest, done.seconds)
                show()
    except (UserError, OSError):
        trials.ask_to_stop()
        raise
    return Wish.NONE


def trial(job: Job, seed: int, ranks: Ranks) -> Trial:
    """One run with one seed."""
    begun = perf_counter()
    job = replace(job, run=job.run.model_copy(update={"seed": seed}))
    source = open_together(job, ranks)
    truth = source.truth()
    problem, params, fingerprint = set_up(job, source, ranks)
    training = Training(job, problem, params, ranks, truth, fingerprint)
    training.run()
    at, energies = training.at, training.history.values["free_energy"]
    causes, found, mae = 0, 0, float("nan")
    if "W" in truth:
        outcome = recovery(problem.model, problem.scheme, at.params, truth["W"])
        causes, found, mae = len(outcome.found), int(outcome.found.sum()), float(outcome.mae.mean())
    return Trial(
        seed=seed,
        causes=causes,
        found=found,
        mae=mae,
        free_energy=ranks.of_root(energies[-1] if energies else float("nan")),  # only the root has them
        iterations=at.iteration,
        seconds=perf_counter() - begun,
        params=dict(at.params),
    )


def table(args: argparse.Namespace, trials: list[Trial]) -> str:
    """What to tell of all trials."""
    known = trials[0].causes > 0
    lines = [
        f"{args.job}: seeds {trials[0].seed} to {trials[-1].seed}",
        *(reliability(trials) if known else ranking(trials, args.best or "free_energy")),
        f"seconds a trial: {np.mean([t.seconds for t in trials]):.2f}",
    ]
    if known and args.best:
        size = min(args.of or SET, len(trials))
        best, over = best_of(trials, args.best, size), len(trials) % size
        over_words = f"; the last {over} make no full set" if over else ""
        lines.append(f"best of {size} by {MERIT[args.best]}: {successes(best, 'sets')}{over_words}")
    return "\n".join(lines)


def reliability(trials: list[Trial]) -> list[str]:
    """How well the causes were found, where they are known."""
    missed = ", ".join(f"seed {t.seed}: {t.found}" for t in trials if t.found < t.causes)
    errors = np.array([t.mae for t in trials if t.found == t.causes])
    lines = [
        successes(trials, "trials"),
        f"causes found on average: {np.mean([t.found for t in trials]):.2f}" + (f" ({missed})" if missed else ""),
    ]
    if len(errors):
        lines.append(f"mean absolute error where all were found: mean {errors.mean():.3f}, largest {errors.max():.3f}")
    return lines


def successes(trials: list[Trial], what: str) -> str:
    """In how many trials all causes were found."""
    complete, count = sum(t.found == t.causes for t in trials), len(trials)
    low, high = wilson(complete, count)
    return (
        f"all {trials[0].causes} causes found in {complete} of {count} {what}"
        f" ({complete / count:.0%}, 95 % interval {low:.0%} to {high:.0%})"
    )


def ranking(trials: list[Trial], by: str) -> list[str]:
    """All trials, the best first."""
    return [f"by {MERIT[by]}, the best first:"] + [
        f"  seed {t.seed}: free energy {t.free_energy:.6g}"
        + "".join(f", {name} {value.mean():.5g}" for name, value in t.params.items() if value.ndim < 2)
        for t in sorted(trials, key=partial(demerit, by))
    ]


def best_of(trials: list[Trial], by: str, size: int) -> list[Trial]:
    """The best trial of each ``size`` in turn; what makes no full set is left out."""
    return [min(trials[i : i + size], key=partial(demerit, by)) for i in range(0, len(trials) - size + 1, size)]


def demerit(by: str, trial: Trial) -> float:
    """The smaller the better."""
    return -trial.free_energy if by == "free_energy" else float(trial.params[by])


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for the probability behind a count, 95 % by default."""
    p, slack = successes / trials, z * z / trials
    middle, half = p + slack / 2, z * np.sqrt(p * (1 - p) / trials + slack / (4 * trials))
    return max(0.0, (middle - half) / (1 + slack)), min(1.0, (middle + half) / (1 + slack))
