"""Many runs of a job that differ in their seed alone, spread over groups of ranks, and what is told of them."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.control.signals import STOPPED, stops
from parallel_et.control.stopping import Stopping, Wish
from parallel_et.core.model import shape_of
from parallel_et.data.base import Source
from parallel_et.errors import UserError
from parallel_et.inference.recovery import causes_of, recovery
from parallel_et.job.job import Job, differing_keys, read_job
from parallel_et.parallel.communicator import Ranks, split
from parallel_et.runs.setup import check_memory, demand_of, model_of, open_together
from parallel_et.runs.trainer import Training, begin
from parallel_et.trials.table import NEVER, Trial, Trials

SET = 20
"""Trials of which one takes the best, as in OCA sec. 4.4."""
NO_MATTER = ("run.seed", "run.snapshots", "run.picture", "run.metrics", "run.checkpoint")
"""Keys in which the jobs of the trials in one file may differ: none is changed by them."""
LOOK = 50
"""Iterations between two looks at which units represent the causes."""
MERIT = {"sigma": "smallest sigma", "free_energy": "largest free energy"}


@dataclass(frozen=True)
class TrialsOptions:
    """What the command can be told, in its words; ``max_time`` in seconds since the start of the process."""

    job: str
    set: Sequence[str] = ()
    count: int = 50
    ranks_per_trial: int = 1
    best: str | None = None
    of: int | None = None
    output: str | None = None
    fresh: bool = False
    max_time: float | None = None
    vary: Sequence[str] = ()
    until: int | None = None

    def __post_init__(self) -> None:
        if self.of is not None and self.best is None:
            raise UserError("--of: expected --best as well, found none")
        if self.vary and self.best is not None:
            raise UserError("--best: expected none with --vary, which tells the held-out evidence, found one")
        given = (number for number in (self.of, self.until) if number is not None)
        if min(self.count, self.ranks_per_trial, *given) < 1:
            raise UserError("--count, --ranks-per-trial, --of and --until must be 1 or more")


def run_trials(ranks: Ranks, options: TrialsOptions) -> int:
    """Run the trials that are not there yet and tell of all; all ranks call this together. Returns the exit code."""
    code, series = run_series(ranks, options)
    if ranks.is_root and code == 0:
        series.report.say(table(options, series.done()))
        series.report.say(f"result: {series.trials.path}")
    return code


def run_series(ranks: Ranks, options: TrialsOptions) -> tuple[int, "Series"]:
    """Run the trials that are not there yet, together. Returns the exit code, and the series, which has them all."""
    job = ranks.from_root(lambda: read_job(options.job, options.set))
    last = job.run.seed + options.count - 1
    ranks.from_root(lambda: read_job(options.job, [*options.set, f"run.seed={last}"]))
    ranks.load_kernels()  # before they go their own ways
    source = open_together(job, ranks)
    series = Series(ranks, options, job, source, ranks.from_root(source.state))
    trials, report, seeds = series.trials, series.report, series.seeds
    group = series.group_for(options.count)
    check_memory(demand_of(job, source, group.size), group, ranks)
    ranks.from_root(series.check_best)
    ranks.from_root(trials.hold)
    try:
        if wish := series.run(ranks.from_root(series.look)):
            done = sum(seed in trials.rows for seed in seeds)
            again = "the same command" + (" without --fresh" if options.fresh else "")
            report.say(f"stopped by {wish.words()} after {done} of {options.count} trials; {again} goes on")
            return STOPPED, series
        ranks.from_root(series.check_complete)
    finally:
        trials.release()
    return 0, series


class Series:
    """The trials of a job, which of them are there, and who runs the others.

    Parameters
    ----------
    source : the data
    state : what tells them from others, on every rank
    """

    def __init__(self, ranks: Ranks, options: TrialsOptions, job: Job, source: Source, state: str) -> None:
        self.ranks, self.options, self.job, self.source = ranks, options, job, source
        self.seeds = range(job.run.seed, job.run.seed + options.count)
        self.report = Reporter(ranks.is_root, quiet=False)
        about = {"job": job.toml(), "name": job.name, "data state": state, "until": str(options.until or NEVER)}
        path = Path(options.output or f"runs/{job.name}-trials.h5")
        self.trials = Trials(path, about, self._differing, self.report.say)
        self.stopping = Stopping(options.max_time, self.trials.stop)

    def done(self) -> list[Trial]:
        """The trials, on the root, in the order of their seeds."""
        return [self.trials.rows[seed] for seed in self.seeds]

    def _differing(self, stored: str) -> list[str]:
        """Keys in which the job of an earlier trial differs from this one in what matters."""
        return differing_keys(tomllib.loads(stored), self.job.resolved(), NO_MATTER)

    def group_for(self, trials: int) -> Ranks:
        """The ranks that run a trial together with this one, when there are so many to be run."""
        return split(self.ranks, max(1, min(trials, self.ranks.size // self.options.ranks_per_trial)))[0]

    def check_best(self) -> None:
        """Refuse a choice of the best, or an end, that this job does not allow."""
        options, learn = self.options, self.job.model.learn
        if options.best == "sigma" and "sigma" not in learn:
            raise UserError(f"{options.job}: model.learn: expected sigma in it for --best sigma, found {learn}")
        for name in ("of", "until"):
            if getattr(options, name) is not None and "W" not in self.source.truth():
                raise UserError(f"--{name}: expected a generator that knows its causes, found {self.job.data.source}")

    def check_complete(self) -> None:
        """Refuse to count trials of which some are missing: somebody else had taken them."""
        if missing := [seed for seed in self.seeds if seed not in self.trials.rows]:
            raise UserError(
                f"{self.trials.path}: expected {len(self.seeds)} trials, found none of seed {missing[0]}; "
                "the same command runs it"
            )

    def look(self) -> list[int]:
        """Look, on the root, at what is there; returns the seeds that are still to be tried."""
        trials, count = self.trials, len(self.seeds)
        if self.options.fresh:
            trials.set_aside()
        model, _ = model_of(self.job, self.source.dims)
        trials.look({name: shape_of(model, name) for name in model.params})
        trials.begin()
        todo = [seed for seed in self.seeds if seed not in trials.rows]
        if there := count - len(todo):
            self.report.say(f"{trials.path}: {there} of {count} trials are there already")
        self.report.begin(count, there, self.source.points * self.job.anneal.iterations)
        return todo

    def run(self, todo: list[int]) -> Wish:
        """Run trials on groups of ranks and bring them into one file; returns why some are left, if there are."""
        ranks, trials, count = self.ranks, self.trials, len(self.seeds)
        with ranks.together():
            if not trials.parts.exists():
                raise UserError(f"{trials.path}: expected a folder that all nodes share, found it on the root's alone")
        group = self.group_for(len(todo))
        group.limit_threads(self.job.run.threads)
        mine: list[int] = []

        def show() -> None:
            if ranks.is_root:
                added = max(len(mine), trials.done())  # shared file systems may list files late
                done = count - len(todo) + added
                self.report.step(done, f"{done} of {count} trials")

        with ranks.together(), stops("after the trials that are being run"):
            wish = self._run_group(group, todo, mine, show)
        wishes, everything = Wish(ranks.either(wish)), ranks.gather(mine if group.is_root else [])
        if not ranks.from_root(lambda: len(todo) - trials.collect(seed for part in everything for seed in part)):
            return Wish.NONE
        return wishes & ~Wish.FILE or wishes  # by the file a group tells the others of its own wish

    def _run_group(self, group: Ranks, todo: list[int], mine: list[int], show: Callable[[], None]) -> Wish:
        """Run trial after trial, each one that no other group has taken, and add their seeds to ``mine``.

        Groups never wait for each other, and none is idle while there are trials that nobody has begun. One that is to
        stop, or fails, makes the others stop after their trials as well; returns why it stopped, if it did.
        """
        longest = 0.0
        try:
            for seed in todo:
                if wish := Wish(group.either(self.stopping.wish(1.2 * longest))):
                    self.trials.ask_to_stop()
                    return wish
                if group.from_root(partial(self.trials.take, seed)):
                    done = trial(self.job, seed, group, self.options.until)
                    group.from_root(partial(self.trials.add, done))
                    mine.append(seed)
                    longest = max(longest, done.seconds)
                    show()
        except (UserError, OSError):
            self.trials.ask_to_stop()
            raise
        return Wish.NONE


def trial(job: Job, seed: int, ranks: Ranks, until: int | None = None) -> Trial:
    """One run with one seed; it ends early where the same units have represented all causes for so many iterations."""
    begun = perf_counter()
    job = replace(job, run=job.run.model_copy(update={"seed": seed}))
    training = begin(job, ranks)
    lasts = (lambda: False) if until is None else lasting(training, until)
    for _ in training.iterations():
        if lasts():
            break
    state, problem, history = training.state, training.problem, training.history.values

    def last(name: str) -> float:
        return ranks.of_root(history[name][-1] if history[name] else float("nan"))  # only the root has them

    causes, found, mae = 0, 0, float("nan")
    if "W" in training.truth:
        outcome = recovery(problem.model, problem.scheme, state.params, causes_of(training.truth, problem.model.D))
        causes, found, mae = len(outcome.found), int(outcome.found.sum()), float(outcome.mae.mean())
    return Trial(
        seed=seed,
        causes=causes,
        found=found,
        mae=mae,
        free_energy=last("free_energy"),
        holdout=last("holdout_evidence"),
        iterations=state.iteration,
        seconds=perf_counter() - begun,
        params=dict(state.params),
    )


def lasting(training: Training, iterations: int) -> Callable[[], bool]:
    """Says whether the same units, one for each cause, have represented all causes for so many iterations.

    So R-MCA_NN, which never comes to rest, is stopped in MCA App. E.2. It looks every ``LOOK`` iterations; all ranks
    see the same.
    """
    model, scheme, units, since = training.problem.model, training.problem.scheme, np.empty(0, int), 0
    causes = causes_of(training.truth, model.D)

    def lasts() -> bool:
        nonlocal units, since
        state = training.state
        if state.iteration % LOOK:
            return False
        now = recovery(model, scheme, state.params, causes).unit
        if len(np.unique(now)) < len(now) or not np.array_equal(now, units):
            units, since = now, state.iteration
        return state.iteration - since >= iterations

    return lasts


def table(options: TrialsOptions, trials: list[Trial]) -> str:
    """What to tell of all trials."""
    known, held = trials[0].causes > 0, not np.isnan(trials[0].holdout)
    lines = [
        f"{options.job}: seeds {trials[0].seed} to {trials[-1].seed}",
        *(reliability(trials) if known else ranking(trials, options.best or "free_energy")),
        *([f"held-out evidence a point: {with_error(*mean_and_error([t.holdout for t in trials]))}"] if held else []),
        f"seconds a trial: {np.mean([t.seconds for t in trials]):.2f}",
    ]
    if known and options.best:
        size = min(options.of or SET, len(trials))
        best, over = best_of(trials, options.best, size), len(trials) % size
        over_words = f"; the last {over} make no full set" if over else ""
        lines.append(f"best of {size} by {MERIT[options.best]}: {successes(best, 'sets')}{over_words}")
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


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Mean and standard error, NaN of a single value."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(np.mean(values)), float(error)


def with_error(value: float, error: float) -> str:
    """A number and its error, where that is known."""
    return f"{value:.4f}" + ("" if np.isnan(error) else f" ± {error:.4f}")


def best_of(trials: list[Trial], by: str, size: int) -> list[Trial]:
    """The best trial of each ``size`` in turn; what makes no full set is left out."""
    return [min(trials[i : i + size], key=partial(demerit, by)) for i in range(0, len(trials) - size + 1, size)]


def demerit(by: str, trial: Trial) -> float:
    """The smaller the better."""
    return -trial.free_energy if by == "free_energy" else float(trial.params[by])


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's interval of 95 % for the probability behind a count."""
    from scipy.stats import binomtest  # takes its time to load

    return binomtest(successes, trials).proportion_ci(method="wilson")
