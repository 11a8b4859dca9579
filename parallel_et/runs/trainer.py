"""Training of one run, from its initial values or a checkpoint to its result."""

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
from parallel_et.inference.diagnostics import diagnostics, limits
from parallel_et.job.job import Job
from parallel_et.parallel.communicator import Ranks, library_version
from parallel_et.runs.result import RESULT, Result
from parallel_et.runs.setup import open_on_all_ranks, set_up

MAX_JOB_CHARACTERS = 1 << 14
"""Characters of the job file that are stored as an attribute of the result; HDF5 allows 64 KiB per attribute."""
PACKAGES = ("parallel_et", "numpy", "scipy", "numba", "mpi4py", "h5py")


class History:
    """The values of every iteration that a result stores, collected on the root.

    Parameters
    ----------
    snapshots : iterations between two snapshots of the parameters; 0: no snapshots
    """

    def __init__(self, snapshots: int) -> None:
        self.every = snapshots
        self.values: dict[str, list[float]] = defaultdict(list)
        self.snapshots: dict[str, list[Any]] = defaultdict(list)

    def add(self, state: EMState, info: Info) -> None:
        """Append the values of an iteration."""
        row = {
            "free_energy": info.free_energy,
            "temperature": info.settings.temperature,
            "points_used": info.points_used,
            "unused_causes": info.unused.sum(),
            **scalar_summary(state.params),
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
        """Set the history to that of an earlier result."""
        self.values.update({name: list(map(float, values)) for name, values in result.history.items()})
        self.snapshots.update({name: list(values) for name, values in result.snapshots.items()})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return an array for each name; counts are integers."""
        counts = ("points_used", "unused_causes", "renewed_fields")
        return {name: np.array(v, np.int64 if name in counts else float) for name, v in self.values.items()}


def scalar_summary(params: Params) -> dict[str, float]:
    """Return each scalar parameter, and mean, minimum and maximum of each vector; larger parameters are omitted."""
    found: dict[str, float] = {}
    for name, value in params.items():
        if value.ndim == 0:
            found[name] = float(value)
        elif value.ndim == 1:
            found |= {name: float(value.mean()), f"{name}_low": float(value.min()), f"{name}_high": float(value.max())}
    return found


class IterationLog:
    """The log lines of the iterations, on the root."""

    def __init__(self, report: Reporter) -> None:
        self.report, self.unused = report, 0

    def add(self, params: Params, info: Info) -> None:
        """Log an iteration, and warnings of unused causes and restarted fields."""
        done = info.settings.iteration + 1
        unused = int(info.unused.sum())
        report = self.report
        if unused > self.unused:
            report.log(
                f"iteration {done}: {unused} of {len(info.unused)} causes are unused; their fields stay unchanged"
            )
        self.unused = unused
        if info.restarted:
            report.log(f"iteration {done}: {info.restarted} of {len(info.unused)} fields were restarted")
        means = "".join(f"  {name} {float(value.mean()):.4g}" for name, value in params.items() if value.ndim < 2)
        known = info.holdout is not None and not np.isnan(info.holdout)
        held = f"held out {info.holdout:.5g}  " if known else ""
        report.update(
            done,
            f"iteration {done}/{report.steps}  T {info.settings.temperature:.3g}  "
            f"free energy {info.free_energy:.5g}  {held}used {info.points_used}{means}",
        )


class Training:
    """A run between two iterations: its problem, state, history and metadata."""

    def __init__(
        self, job: Job, source: Source, ranks: Ranks, problem: Problem, params: Params, fingerprint: str
    ) -> None:
        self.source, self.ranks, self.problem = source, ranks, problem
        self.truth = source.truth()
        self.state = problem.initial_state(params)
        self.history = History(job.run.snapshots)
        self.metadata: dict[str, Any] = {
            "job": job.toml(),
            **({"job as written": job.written[:MAX_JOB_CHARACTERS]} if job.written else {}),
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
        """Resume from an earlier result, given on the root. Collective."""
        params, averages, resumed = dict(self.state.params), {}, (0, Progress())
        if earlier is not None:
            self.history.restore(earlier)
            self.metadata |= {name: earlier.metadata[name] for name in ("start", "restarts", "seconds checkpoints")}
            self.metadata["restarts"] += 1
            self.metadata |= {
                name: earlier.metadata[name] for name in ("diagnostics", "limits") if name in earlier.metadata
            }
            iteration, quiet, cooled = (int(earlier.metadata.get(name, 0)) for name in ("iteration", "calm", "cooled"))
            resumed = iteration, Progress(quiet, cooled, float(earlier.metadata.get("best", -np.inf)))
            params = {name: earlier.params[name] for name in params}
            averages = by_stage(earlier.averages)
        iteration, progress = self.ranks.broadcast_object(resumed)
        shared = self.ranks.broadcast(params)
        self.state = EMState(iteration, shared, self.state.point_states, averages, progress)

    def iterations(self) -> Iterator[Info]:
        """Run EM, and yield the metadata of each iteration after the update of state and history. Collective."""
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
        """True if the schedule has ended or training has converged."""
        return self.problem.schedule.finished(self.state)

    def diagnose(self) -> None:
        """Add diagnostics and active limits to the metadata. Collective."""
        self.metadata["diagnostics"] = diagnostics(self.problem, self.ranks, self.state.params)
        evidence = self.history.values.get("free_energy", [0.0])[-1]
        self.metadata["limits"] = limits(self.problem, self.state.params, evidence)

    def result(self, kind: str = RESULT) -> Result:
        """Return what has been learned so far: the parameters on every rank, the history on the root."""
        state = self.state
        done = {"iteration": state.iteration, "calm": state.progress.quiet, "cooled": state.progress.cooled}
        metadata = {**self.metadata, "kind": kind, **done, "end": now()}
        if self.problem.holdout is not None:
            metadata |= {"held out": self.problem.holdout.shard.points, "best": state.progress.best}
        snapshots = {name: np.array(values) for name, values in self.history.snapshots.items()}
        data = {} if self.problem.mean is None else {"mean": self.problem.mean}
        means = {f"{stage}/{name}": values for stage, sums in state.averages.items() for name, values in sums.items()}
        return Result(dict(state.params), self.history.arrays(), snapshots, self.truth, data, metadata, means)


def by_stage(averages: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Return averages of statistics by stage, from the names "stage/statistic" of files."""
    found: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, values in averages.items():
        stage, _, statistic = name.rpartition("/")
        found[stage][statistic] = values
    return dict(found)


def new_training(job: Job, ranks: Ranks, source: Source | None = None) -> Training:
    """Return a run before its first iteration, on ``source`` or the data of the job. Collective."""
    data = open_on_all_ranks(job, ranks) if source is None else source
    return Training(job, data, ranks, *set_up(job, data, ranks))


def now() -> str:
    """Return the current time in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def installed(package: str) -> str:
    """Return the installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """Return the Git commit of the source tree, or "unknown".

    The commit is read from files, because some MPI libraries do not support a fork.
    """
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
