"""One run, from the set-up problem to its result."""

import platform
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from parallel_et.data.base import ArrayRows
from parallel_et.em import Info, Problem, train
from parallel_et.io.directory import RunDirectory
from parallel_et.io.result import Result
from parallel_et.job import Job, read_job
from parallel_et.models.base import Knobs, Params
from parallel_et.parallel.ranks import Ranks, library_version
from parallel_et.setup import open_source, set_up

PACKAGES = ("parallel_et", "numpy", "scipy", "numba", "mpi4py", "h5py")


class History:
    """Collects on the root what a result stores of every iteration."""

    def __init__(self, snapshots: int) -> None:
        self.every = snapshots
        self.values: dict[str, list[float]] = defaultdict(list)
        self.snapshots: dict[str, list[Any]] = defaultdict(list)

    def __call__(self, params: Params, knobs: Knobs, info: Info) -> None:
        row = {
            "free_energy": info.free_energy,
            "temperature": knobs.temperature,
            "points_used": info.points_used,
            "unused_causes": info.unused.sum(),
            "sigma": params.sigma,
            "pi": params.pi,
            **knobs.model,
            **{f"seconds_{phase}": spent for phase, spent in info.seconds.items()},
        }
        for name, value in row.items():
            self.values[name].append(float(value))
        if self.every and (knobs.iteration + 1) % self.every == 0:
            self.snapshots["iteration"].append(knobs.iteration + 1)
            self.snapshots["W"].append(params.W)

    def arrays(self) -> dict[str, np.ndarray]:
        """One array a name; counts as integers."""
        counts = ("points_used", "unused_causes")
        return {name: np.array(v, np.int64 if name in counts else float) for name, v in self.values.items()}


def run(
    job: Job,
    problem: Problem,
    params: Params,
    ranks: Ranks,
    truth: dict[str, np.ndarray],
    about: dict[str, Any],
    watch: Callable[[Params, Knobs, Info], None] | None = None,
) -> Result:
    """Train, and return the result: the parameters on every rank, the history on the root."""
    history, begun = History(job.run.snapshots), datetime.now(UTC)

    def note(params: Params, knobs: Knobs, info: Info) -> None:
        if ranks.is_root:
            history(params, knobs, info)
            if watch is not None:
                watch(params, knobs, info)

    params = train(problem, ranks, params, note)
    about = {
        "job": job.toml(),
        "name": job.name,
        "seed": job.run.seed,
        "N": problem.shard.points,
        "D": problem.model.D,
        "ranks": ranks.size,
        "mpi": library_version(),
        "host": platform.node(),
        "start": begun.isoformat(timespec="seconds"),
        "end": datetime.now(UTC).isoformat(timespec="seconds"),
        **{f"version {package}": installed(package) for package in PACKAGES},
        "version python": platform.python_version(),
        "commit": commit(),
        **about,
    }
    snapshots = {name: np.array(values) for name, values in history.snapshots.items()}
    return Result(dict(vars(params)), history.arrays(), snapshots, truth, about)


def fit(ranks: Ranks, job: str | Mapping[str, Any], data: Any, output: str | None, watch: Any) -> Result:
    """What ``parallel_et.fit`` does once its kernels are there."""
    instead = None if data is None else {"source": "array:data"}
    with threadpool_limits(1):
        checked = ranks.from_root(lambda: read_job(job, instead=instead))
        directory = None if output is None else RunDirectory(output)
        if directory is not None:
            ranks.from_root(directory.check_place)
            ranks.from_root(directory.check_free)
        with ranks.together():
            source = open_source(checked) if data is None else ArrayRows(data)
        problem, params, fingerprint = set_up(checked, source, ranks)
        result = run(checked, problem, params, ranks, source.truth(), {"data fingerprint": fingerprint}, watch)
    if directory is not None and ranks.is_root:
        directory.begin(checked.toml())
        directory.finish(result)
    return result


def installed(package: str) -> str:
    """Version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """The commit of the source tree that runs, where there is one; read from its files, as a fork upsets some MPIs."""
    git = Path(__file__).resolve().parent.parent / ".git"
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
