"""One run, from its start or its last checkpoint to its result."""

import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.core.types import Params
from parallel_et.data.base import Source
from parallel_et.em.loop import em
from parallel_et.em.problem import Problem
from parallel_et.em.state import EMState, Info, Progress
from parallel_et.inference.diagnostics import doubts, limits
from parallel_et.job.job import Job
from parallel_et.parallel.communicator import Ranks, library_version
from parallel_et.runs.result import RESULT, Result
from parallel_et.runs.setup import open_together, set_up

LONGEST = 1 << 14
"""Characters that are kept of a job as it was written: an attribute has room for some 64 KiB."""
PACKAGES = ("parallel_et", "numpy", "scipy", "numba", "mpi4py", "h5py")


class History:
    """Collects on the root what a result stores of every iteration."""

    def __init__(self, snapshots: int) -> None:
        self.every = snapshots
        self.values: dict[str, list[float]] = defaultdict(list)
        self.snapshots: dict[str, list[Any]] = defaultdict(list)

    def add(self, state: EMState, info: Info) -> None:
        """Add an iteration."""
        row = {
            "free_energy": info.free_energy,
            "temperature": info.settings.temperature,
            "points_used": info.points_used,
            "unused_causes": info.unused.sum(),
            **told(state.params),
            **info.settings.model,
            **({} if info.restarted is None else {"renewed_fields": info.restarted}),
            **({} if info.holdout is None else {"holdout_evidence": info.holdout}),
            **{f"seconds_{phase}": spent for phase, spent in info.seconds.items()},
        }
        for name, value in row.items():
            self.values[name].append(float(value))
        if self.every and state.iteration % self.every == 0:
            self.snapshots["iteration"].append(state.iteration)
            for name, value in state.params.items():
                if value.ndim:
                    self.snapshots[name].append(value)

    def restore(self, result: Result) -> None:
        """Begin with the iterations of an earlier result."""
        self.values.update({name: list(map(float, values)) for name, values in result.history.items()})
        self.snapshots.update({name: list(values) for name, values in result.snapshots.items()})

    def arrays(self) -> dict[str, np.ndarray]:
        """One array a name; counts as integers."""
        counts = ("points_used", "unused_causes", "renewed_fields")
        return {name: np.array(v, np.int64 if name in counts else float) for name, v in self.values.items()}


def told(params: Params) -> dict[str, float]:
    """Of each parameter what fits in a line: a number itself, of a vector the mean and the range, of others nothing."""
    lines: dict[str, float] = {}
    for name, value in params.items():
        if value.ndim == 0:
            lines[name] = float(value)
        elif value.ndim == 1:
            lines |= {name: float(value.mean()), f"{name}_low": float(value.min()), f"{name}_high": float(value.max())}
    return lines


class IterationLog:
    """The lines about each iteration of a run, on the root."""

    def __init__(self, report: Reporter) -> None:
        self.report, self.unused = report, 0

    def add(self, params: Params, info: Info) -> None:
        """Report an iteration."""
        done, unused, report = info.settings.iteration + 1, int(info.unused.sum()), self.report
        if unused > self.unused:
            report.say(f"iteration {done}: {unused} of {len(info.unused)} causes are unused, their fields are kept")
        self.unused = unused
        if info.restarted:
            fields = f"{info.restarted} of {len(info.unused)} fields, or values of theirs,"
            report.say(f"iteration {done}: {fields} began anew before it")
        means = "".join(f"  {name} {float(value.mean()):.4g}" for name, value in params.items() if value.ndim < 2)
        known = info.holdout is not None and not np.isnan(info.holdout)
        held = f"held out {info.holdout:.5g}  " if known else ""
        report.step(
            done,
            f"iteration {done}/{report.steps}  T {info.settings.temperature:.3g}  "
            f"free energy {info.free_energy:.5g}  {held}used {info.points_used}{means}",
        )


class Training:
    """A run between two iterations: its problem, its state and its history so far."""

    def __init__(
        self, job: Job, source: Source, ranks: Ranks, problem: Problem, params: Params, fingerprint: str
    ) -> None:
        self.source, self.ranks, self.problem = source, ranks, problem
        self.truth = source.truth()
        self.state = problem.initial_state(params)
        self.history = History(job.run.snapshots)
        self.about: dict[str, Any] = {
            "job": job.toml(),
            **({"job as written": job.written[:LONGEST]} if job.written else {}),
            "name": job.name,
            "seed": job.run.seed,
            "data fingerprint": fingerprint,
            "N": problem.shard.points,
            "D": problem.model.D,
            "ranks": ranks.size,
            "restarts": 0,
            "seconds checkpoints": 0.0,
            "mpi": library_version(),
            "host": platform.node(),
            "start": now(),
            **{f"version {package}": installed(package) for package in PACKAGES},
            "version python": platform.python_version(),
            "commit": commit(),
        }

    def resume(self, earlier: Result | None) -> None:
        """Go on from an earlier result, which the root has; all ranks call this together."""
        params, averages, place = dict(self.state.params), {}, (0, Progress())
        if earlier is not None:
            self.history.restore(earlier)
            self.about |= {name: earlier.about[name] for name in ("start", "restarts", "seconds checkpoints")}
            self.about["restarts"] += 1
            self.about |= {name: earlier.about[name] for name in ("doubts", "limits") if name in earlier.about}
            iteration, quiet, cooled = (int(earlier.about.get(name, 0)) for name in ("iteration", "calm", "cooled"))
            place = iteration, Progress(quiet, cooled, float(earlier.about.get("best", -np.inf)))
            params = {name: earlier.params[name] for name in params}
            averages = by_stage(earlier.averages)
        iteration, progress = self.ranks.of_root(place)
        shared = self.ranks.share(params)
        self.state = EMState(iteration, shared, self.state.point_states, averages, progress)

    def iterations(self) -> Iterator[Info]:
        """Run EM; yield the metadata of each iteration when state and history contain it. Collective."""
        for state, info in em(self.problem, self.ranks, self.state):
            self.state = state
            if self.ranks.is_root:
                self.history.add(self.state, info)
            yield info

    def run(self) -> None:
        """Run EM to its end."""
        for _ in self.iterations():
            pass

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.problem.schedule.finished(self.state)

    def judge(self) -> None:
        """Note what speaks against what was learned; all ranks call this together."""
        self.about["doubts"] = doubts(self.problem, self.ranks, self.state.params)
        evidence = self.history.values.get("free_energy", [0.0])[-1]
        self.about["limits"] = limits(self.problem, self.state.params, evidence)

    def result(self, kind: str = RESULT) -> Result:
        """Return what has been learned so far: the parameters on every rank, the history on the root."""
        state = self.state
        done = {"iteration": state.iteration, "calm": state.progress.quiet, "cooled": state.progress.cooled}
        about = {**self.about, "kind": kind, **done, "end": now()}
        if self.problem.held is not None:
            about |= {"held out": self.problem.held.shard.points, "best": state.progress.best}
        snapshots = {name: np.array(values) for name, values in self.history.snapshots.items()}
        data = {} if self.problem.mean is None else {"mean": self.problem.mean}
        means = {f"{stage}/{name}": values for stage, sums in state.averages.items() for name, values in sums.items()}
        return Result(dict(state.params), self.history.arrays(), snapshots, self.truth, data, about, means)


def by_stage(averages: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Return averages of statistics by stage, from the names "stage/statistic" of files."""
    found: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, values in averages.items():
        stage, _, statistic = name.rpartition("/")
        found[stage][statistic] = values
    return dict(found)


def begin(job: Job, ranks: Ranks, source: Source | None = None) -> Training:
    """A run before its first iteration, on the data of the job or on others; all ranks call this together."""
    data = open_together(job, ranks) if source is None else source
    return Training(job, data, ranks, *set_up(job, data, ranks))


def now() -> str:
    """The time of day."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def installed(package: str) -> str:
    """Version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """The commit of the source tree that runs, where there is one; read from its files, as a fork upsets some MPIs."""
    git = Path(__file__).resolve().parents[2] / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        reference = head.removeprefix("ref: ")
        if (git / reference).exists():
            return (git / reference).read_text().strip()
        packed = (git / "packed-refs").read_text().splitlines()
        return next(line.split()[0] for line in packed if line.endswith(f" {reference}"))
    except (OSError, StopIteration):
        return "unknown"
