"""One run, from its start or its last checkpoint to its result."""

import platform
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.core.contract import Knobs, Params
from parallel_et.core.em import train
from parallel_et.core.plan import Info, Position
from parallel_et.core.problem import Problem
from parallel_et.data.base import Source
from parallel_et.parallel.ranks import Ranks, library_version
from parallel_et.runs.doubts import doubts
from parallel_et.runs.job import Job
from parallel_et.runs.limits import limits
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

    def add(self, at: Position, knobs: Knobs, info: Info) -> None:
        """One more iteration."""
        row = {
            "free_energy": info.free_energy,
            "temperature": knobs.temperature,
            "points_used": info.points_used,
            "unused_causes": info.unused.sum(),
            **told(at.params),
            **knobs.model,
            **({} if info.renewed is None else {"renewed_fields": info.renewed}),
            **({} if info.holdout is None else {"holdout_evidence": info.holdout}),
            **{f"seconds_{phase}": spent for phase, spent in info.seconds.items()},
        }
        for name, value in row.items():
            self.values[name].append(float(value))
        if self.every and at.iteration % self.every == 0:
            self.snapshots["iteration"].append(at.iteration)
            for name, value in at.params.items():
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


class Teller:
    """Tells of every iteration of a run, on the root."""

    def __init__(self, report: Reporter) -> None:
        self.report, self.unused = report, 0

    def __call__(self, params: Params, knobs: Knobs, info: Info) -> None:
        done, unused, report = knobs.iteration + 1, int(info.unused.sum()), self.report
        if unused > self.unused:
            report.say(f"iteration {done}: {unused} of {len(info.unused)} causes are unused, their fields are kept")
        self.unused = unused
        if info.renewed:
            fields = f"{info.renewed} of {len(info.unused)} fields, or values of theirs,"
            report.say(f"iteration {done}: {fields} began anew before it")
        means = "".join(f"  {name} {float(value.mean()):.4g}" for name, value in params.items() if value.ndim < 2)
        known = info.holdout is not None and not np.isnan(info.holdout)
        held = f"held out {info.holdout:.5g}  " if known else ""
        report.step(
            done,
            f"iteration {done}/{report.steps}  T {knobs.temperature:.3g}  free energy {info.free_energy:.5g}  {held}"
            f"used {info.points_used}{means}",
        )


class Training:
    """A run under way: where it stands, and what is known of every iteration so far."""

    def __init__(
        self, job: Job, source: Source, ranks: Ranks, problem: Problem, params: Params, fingerprint: str
    ) -> None:
        self.source, self.ranks, self.problem = source, ranks, problem
        self.truth = source.truth()
        self.at = Position(0, params)
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
        place = (0, 0, 0, -np.inf)
        if earlier is not None:
            self.history.restore(earlier)
            self.about |= {name: earlier.about[name] for name in ("start", "restarts", "seconds checkpoints")}
            self.about["restarts"] += 1
            self.about |= {name: earlier.about[name] for name in ("doubts", "limits") if name in earlier.about}
            iteration, calm, cooled = (int(earlier.about.get(name, 0)) for name in ("iteration", "calm", "cooled"))
            place = iteration, calm, cooled, float(earlier.about.get("best", -np.inf))
            for name, values in earlier.averages.items():
                stage, _, one = name.rpartition("/")
                self.problem.averages.setdefault(stage, {})[one] = values
            self.at = Position(0, {name: earlier.params[name] for name in self.at.params})
        iteration, calm, cooled, best = self.ranks.of_root(place)
        self.at = Position(iteration, self.ranks.share(self.at.params), calm, cooled, best)

    def run(
        self,
        watch: Callable[[Params, Knobs, Info], None] | None = None,
        pause: Callable[[], bool] | None = None,
    ) -> bool:
        """Train on; returns whether the end was reached.

        Parameters
        ----------
        watch : called on the root after every iteration; its arrays are read-only
        pause : called on all ranks after every iteration, says on all whether to leave it at that for now
        """

        def after(at: Position, knobs: Knobs, info: Info) -> bool:
            self.at = at
            if self.ranks.is_root:
                self.history.add(at, knobs, info)
                if watch is not None:
                    shown = {name: read_only(value) for name, value in at.params.items()}
                    watch(shown, knobs, info._replace(unused=read_only(info.unused)))
            return pause is not None and pause()

        self.at = train(self.problem, self.ranks, self.at, after)
        return self.ended

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.problem.plan.ended(self.at.iteration, self.at.calm)

    def judge(self) -> None:
        """Note what speaks against what was learned; all ranks call this together."""
        self.about["doubts"] = doubts(self.problem, self.ranks, self.at.params)
        evidence = self.history.values.get("free_energy", [0.0])[-1]
        self.about["limits"] = limits(self.problem, self.at.params, evidence)

    def result(self, kind: str = RESULT) -> Result:
        """Return what has been learned so far: the parameters on every rank, the history on the root."""
        at, averages = self.at, self.problem.averages
        done = {"iteration": at.iteration, "calm": at.calm, "cooled": at.cooled}
        about = {**self.about, "kind": kind, **done, "end": now()}
        if self.problem.held is not None:
            about |= {"held out": self.problem.held.shard.points, "best": at.best}
        snapshots = {name: np.array(values) for name, values in self.history.snapshots.items()}
        data = {} if self.problem.mean is None else {"mean": self.problem.mean}
        means = {f"{stage}/{name}": values for stage, sums in averages.items() for name, values in sums.items()}
        return Result(dict(at.params), self.history.arrays(), snapshots, self.truth, data, about, means)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view of an array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


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
