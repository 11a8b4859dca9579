"""Trials: many runs of a job with different seeds, distributed over groups of ranks, and their summary."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.control.signals import EXIT_STOPPED, ctrl_c_reply
from parallel_et.control.stopping import Request, StopMonitor
from parallel_et.core.model import shape_of
from parallel_et.data.base import Source
from parallel_et.errors import UserError
from parallel_et.inference.recovery import causes_of, recovery
from parallel_et.job.job import Job, differing_keys, read_job
from parallel_et.parallel.communicator import Ranks, split_ranks
from parallel_et.runs.setup import check_memory, demand_of, model_of, open_on_all_ranks
from parallel_et.runs.trainer import Training, new_training
from parallel_et.trials.table import NEVER, Trial, Trials

BEST_OF_TRIALS = 20
"""Default number of trials from which the best is selected, as in sec. 4.4 of the OCA paper."""
KEYS_THAT_MAY_DIFFER = ("run.seed", "run.snapshots", "run.picture", "run.metrics", "run.checkpoint")
"""Keys in which the jobs of the trials of one file may differ; they do not change a trial."""
CHECK_INTERVAL = 50
"""Iterations between two checks which units represent the causes."""
CRITERIA = {"sigma": "smallest sigma", "free_energy": "largest free energy"}


@dataclass(frozen=True)
class TrialsOptions:
    """The options of the command line; ``max_time`` in seconds since the start of the process."""

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
            raise UserError("--best: expected none with --vary, which compares held-out evidence, found one")
        given = (number for number in (self.of, self.until) if number is not None)
        if min(self.count, self.ranks_per_trial, *given) < 1:
            raise UserError("--count, --ranks-per-trial, --of and --until must be 1 or more")


def run_trials(ranks: Ranks, options: TrialsOptions) -> int:
    """Run the missing trials and print a summary of all trials; return the exit code. Collective."""
    code, series = run_series(ranks, options)
    if ranks.is_root and code == 0:
        series.report.log(summary_of(options, series.done()))
        series.report.log(f"result: {series.trials.path}")
    return code


def run_series(ranks: Ranks, options: TrialsOptions) -> tuple[int, "Series"]:
    """Run the missing trials; return the exit code and the series of all trials. Collective."""
    job = ranks.from_root(lambda: read_job(options.job, options.set))
    last = job.run.seed + options.count - 1
    ranks.from_root(lambda: read_job(options.job, [*options.set, f"run.seed={last}"]))
    ranks.load_kernels()  # before the ranks split into groups
    source = open_on_all_ranks(job, ranks)
    series = Series(ranks, options, job, source, ranks.from_root(source.version))
    trials, report, seeds = series.trials, series.report, series.seeds
    group = series.group_for(options.count)
    check_memory(demand_of(job, source, group.size), group, ranks)
    ranks.from_root(series.check_best)
    ranks.from_root(trials.hold)
    try:
        if request := series.run(ranks.from_root(series.missing_seeds)):
            done = sum(seed in trials.rows for seed in seeds)
            again = "the same command" + (" without --fresh" if options.fresh else "")
            report.log(f"stopped by {request.reasons()} after {done} of {options.count} trials; {again} resumes")
            return EXIT_STOPPED, series
        ranks.from_root(series.check_complete)
    finally:
        trials.release()
    return 0, series


class Series:
    """The trials of a job with successive seeds.

    Parameters
    ----------
    source : the data
    state : identity of the data, to compare with stored trials
    """

    def __init__(self, ranks: Ranks, options: TrialsOptions, job: Job, source: Source, state: str) -> None:
        self.ranks, self.options, self.job, self.source = ranks, options, job, source
        self.seeds = range(job.run.seed, job.run.seed + options.count)
        self.report = Reporter(ranks.is_root, quiet=False)
        metadata = {"job": job.toml(), "name": job.name, "data state": state, "until": str(options.until or NEVER)}
        path = Path(options.output or f"runs/{job.name}-trials.h5")
        self.trials = Trials(path, metadata, self._differing, self.report.log)
        self.stopping = StopMonitor(options.max_time, self.trials.stop)

    def done(self) -> list[Trial]:
        """Return the trials in the order of their seeds, on the root."""
        return [self.trials.rows[seed] for seed in self.seeds]

    def _differing(self, stored: str) -> list[str]:
        """Return a line for each relevant key in which the job of a stored trial differs from this job."""
        return differing_keys(tomllib.loads(stored), self.job.resolved(), KEYS_THAT_MAY_DIFFER)

    def group_for(self, trials: int) -> Ranks:
        """Return the ranks that run a trial together with this rank, for a number of trials."""
        return split_ranks(self.ranks, max(1, min(trials, self.ranks.size // self.options.ranks_per_trial)))[0]

    def check_best(self) -> None:
        """Raise UserError if the job does not allow --best, --of or --until."""
        options, learn = self.options, self.job.model.learn
        if options.best == "sigma" and "sigma" not in learn:
            raise UserError(f"{options.job}: model.learn: expected sigma in it for --best sigma, found {learn}")
        for name in ("of", "until"):
            if getattr(options, name) is not None and "W" not in self.source.truth():
                raise UserError(f"--{name}: expected a generator with known causes, found {self.job.data.source}")

    def check_complete(self) -> None:
        """Raise UserError if a trial is missing, because another job had taken it."""
        if missing := [seed for seed in self.seeds if seed not in self.trials.rows]:
            raise UserError(
                f"{self.trials.path}: expected {len(self.seeds)} trials, found none with seed {missing[0]}; "
                "the same command runs this trial"
            )

    def missing_seeds(self) -> list[int]:
        """Read the stored trials on the root, and return the seeds of the missing trials."""
        trials, count = self.trials, len(self.seeds)
        if self.options.fresh:
            trials.set_aside()
        model, _ = model_of(self.job, self.source.dims)
        trials.read({name: shape_of(model, name) for name in model.params})
        trials.make_folder()
        todo = [seed for seed in self.seeds if seed not in trials.rows]
        if stored := count - len(todo):
            self.report.log(f"{trials.path}: {stored} of {count} trials already exist")
        self.report.start(count, stored, self.source.points * self.job.anneal.iterations)
        return todo

    def run(self, todo: list[int]) -> Request:
        """Run trials on groups of ranks and merge their files; return the request that stopped them, if any."""
        ranks, trials, count = self.ranks, self.trials, len(self.seeds)
        with ranks.synchronise_errors():
            if not trials.parts.exists():
                raise UserError(
                    f"{trials.path}: expected a folder that all nodes share, found it on the node of the root only"
                )
        group = self.group_for(len(todo))
        group.limit_threads(self.job.run.threads)
        mine: list[int] = []

        def show() -> None:
            if ranks.is_root:
                added = max(len(mine), trials.done())  # a shared file system may list new files late
                done = count - len(todo) + added
                self.report.update(done, f"{done} of {count} trials")

        with ranks.synchronise_errors(), ctrl_c_reply("after the current trials"):
            request = self._run_group(group, todo, mine, show)
        requests, everything = Request(ranks.bitwise_or(request)), ranks.gather(mine if group.is_root else [])
        if not ranks.from_root(lambda: len(todo) - trials.collect(seed for part in everything for seed in part)):
            return Request.NONE
        return requests & ~Request.FILE or requests  # a group forwards its own request to the others by the file

    def _run_group(self, group: Ranks, todo: list[int], mine: list[int], show: Callable[[], None]) -> Request:
        """Run the trials that no other group has taken, and add their seeds to ``mine``.

        Groups do not wait for each other. If a group stops or fails, all groups stop after their current trials.
        Return the request that stopped this group, if any.
        """
        longest = 0.0
        try:
            for seed in todo:
                if request := Request(group.bitwise_or(self.stopping.requested(1.2 * longest))):
                    self.trials.ask_to_stop()
                    return request
                if group.from_root(partial(self.trials.take, seed)):
                    done = run_trial(self.job, seed, group, self.options.until)
                    group.from_root(partial(self.trials.add, done))
                    mine.append(seed)
                    longest = max(longest, done.seconds)
                    show()
        except (UserError, OSError):
            self.trials.ask_to_stop()
            raise
        return Request.NONE


def run_trial(job: Job, seed: int, ranks: Ranks, until: int | None = None) -> Trial:
    """Run one trial.

    With ``until``, it ends when the same units have represented all causes for this many iterations.
    """
    start = perf_counter()
    job = replace(job, run=job.run.model_copy(update={"seed": seed}))
    training = new_training(job, ranks)
    ended = (lambda: False) if until is None else representation_check(training, until)
    for _ in training.iterations():
        if ended():
            break
    state, problem, history = training.state, training.problem, training.history.values

    def last(name: str) -> float:
        return ranks.broadcast_object(
            history[name][-1] if history[name] else float("nan")
        )  # only the root stores the history

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
        seconds=perf_counter() - start,
        params=dict(state.params),
    )


def representation_check(training: Training, iterations: int) -> Callable[[], bool]:
    """Return a function that is true once the same units have represented all causes for this many iterations.

    R-MCA_NN, which never converges, is stopped by this rule in MCA App. E.2. The check runs every
    ``CHECK_INTERVAL`` iterations, with the same outcome on all ranks.
    """
    model, scheme, units, since = training.problem.model, training.problem.scheme, np.empty(0, int), 0
    causes = causes_of(training.truth, model.D)

    def check() -> bool:
        nonlocal units, since
        state = training.state
        if state.iteration % CHECK_INTERVAL:
            return False
        now = recovery(model, scheme, state.params, causes).unit
        if len(np.unique(now)) < len(now) or not np.array_equal(now, units):
            units, since = now, state.iteration
        return state.iteration - since >= iterations

    return check


def summary_of(options: TrialsOptions, trials: list[Trial]) -> str:
    """Return a summary of all trials for the terminal."""
    known, held = trials[0].causes > 0, not np.isnan(trials[0].holdout)
    lines = [
        f"{options.job}: seeds {trials[0].seed} to {trials[-1].seed}",
        *(reliability(trials) if known else ranking(trials, options.best or "free_energy")),
        *([f"held-out evidence per point: {with_error(*mean_and_error([t.holdout for t in trials]))}"] if held else []),
        f"seconds per trial: {np.mean([t.seconds for t in trials]):.2f}",
    ]
    if known and options.best:
        size = min(options.of or BEST_OF_TRIALS, len(trials))
        best, over = best_of(trials, options.best, size), len(trials) % size
        over_words = f"; the last {over} trials are not used" if over else ""
        lines.append(f"best of {size} by {CRITERIA[options.best]}: {successes(best, 'sets')}{over_words}")
    return "\n".join(lines)


def reliability(trials: list[Trial]) -> list[str]:
    """Return lines about the recovery of known causes."""
    missed = ", ".join(f"seed {t.seed}: {t.found}" for t in trials if t.found < t.causes)
    errors = np.array([t.mae for t in trials if t.found == t.causes])
    lines = [
        successes(trials, "trials"),
        f"causes found on average: {np.mean([t.found for t in trials]):.2f}" + (f" ({missed})" if missed else ""),
    ]
    if len(errors):
        lines.append(
            f"mean absolute error of trials that found all causes: mean {errors.mean():.3f}, largest {errors.max():.3f}"
        )
    return lines


def successes(trials: list[Trial], what: str) -> str:
    """Return the number of trials with all causes found, and its confidence interval, in words."""
    complete, count = sum(t.found == t.causes for t in trials), len(trials)
    low, high = wilson(complete, count)
    return (
        f"all {trials[0].causes} causes found in {complete} of {count} {what}"
        f" ({complete / count:.0%}, 95 % interval {low:.0%} to {high:.0%})"
    )


def ranking(trials: list[Trial], by: str) -> list[str]:
    """Return a line for each trial, the best first."""
    return [f"by {CRITERIA[by]}, the best first:"] + [
        f"  seed {t.seed}: free energy {t.free_energy:.6g}"
        + "".join(f", {name} {value.mean():.5g}" for name, value in t.params.items() if value.ndim < 2)
        for t in sorted(trials, key=partial(rank_key, by))
    ]


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return mean and standard error, which is NaN for a single value."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(np.mean(values)), float(error)


def with_error(value: float, error: float) -> str:
    """Return a number in words, with its error unless that is NaN."""
    return f"{value:.4f}" + ("" if np.isnan(error) else f" ± {error:.4f}")


def best_of(trials: list[Trial], by: str, size: int) -> list[Trial]:
    """Return the best trial of each successive set of ``size`` trials; an incomplete set is not used."""
    return [min(trials[i : i + size], key=partial(rank_key, by)) for i in range(0, len(trials) - size + 1, size)]


def rank_key(by: str, trial: Trial) -> float:
    """Return a number that is smaller for better trials."""
    return -trial.free_energy if by == "free_energy" else float(trial.params[by])


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a probability."""
    from scipy.stats import binomtest  # slow to import

    return binomtest(successes, trials).proportion_ci(method="wilson")
