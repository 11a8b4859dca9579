"""The outcomes of the trials of a job: an HDF5 file with one row per trial, to which trials can be added."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.core.limits import MAX_PARAMETER, Limits, check_arrays, limits_of, shorten
from parallel_et.errors import UserError
from parallel_et.job.job import UntrustedError
from parallel_et.runs.result import job_of, read_arrays
from parallel_et.storage.atomic import hdf5_image, unwritable_reason
from parallel_et.storage.checksum import open_with_checksum, write_with_checksum
from parallel_et.storage.lock import Lock

NEVER = "never"
"""Value of the attribute ``until`` for trials without early end."""
WAY_OUT = "use another --output, or --fresh to start over"


@dataclass(frozen=True)
class Trial:
    """Outcome of one trial.

    Attributes
    ----------
    causes, found : number of true causes, and number of found causes; 0 if the true causes are not known
    mae : mean absolute error between the causes and their fields; NaN if the causes are not known
    free_energy : free energy of the last iteration
    params : name -> learned value
    holdout : held-out evidence per point at the end of the trial; NaN without held-out points
    """

    seed: int
    causes: int
    found: int
    mae: float
    free_energy: float
    iterations: int
    seconds: float
    params: dict[str, np.ndarray]
    holdout: float = float("nan")


COLUMNS = tuple(name for name in Trial.__annotations__ if name != "params")


class Trials:
    """The file of the trials of a job, and the folder ``<file>.parts`` with a file for each trial of an unfinished job.

    Any rank may call ``take``, ``add`` and ``ask_to_stop``; only the root calls the other methods.

    Parameters
    ----------
    about : root attributes of the file, among them the job
    differing : returns a line for each key in which the job of a stored trial differs

    Attributes
    ----------
    rows : seed -> trial, on the root
    stop : file that asks all groups to stop, once it exists
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, str],
        differing: Callable[[str], list[str]],
        log: Callable[[str], None],
    ) -> None:
        self.path, self.metadata, self.differing, self.log = path, metadata, differing, log
        self.parts = path.with_name(path.name + ".parts")
        self.stop = self.parts / "stop"
        self.rows: dict[int, Trial] = {}
        self._lock = Lock(path.with_name(path.name + ".lock"), str(path), log)

    def hold(self) -> None:
        """Lock the file against other jobs, and create its folder if needed."""
        if self.path.is_dir():
            raise UserError(f"{self.path}: expected a file, found a directory")
        with writing(self.path, parents=True):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock.take()

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def set_aside(self) -> None:
        """Rename existing files."""
        there, number = [path for path in (self.path, self.parts) if path.exists()], 1
        while (aside := Path(f"{self.path}.old-{number}")).exists() or Path(f"{aside}.parts").exists():
            number += 1
        with writing(self.path):
            for path in there:
                path.rename(aside if path == self.path else Path(f"{aside}.parts"))
        if there:
            self.log(f"the earlier trials were moved to {aside}{'' if self.path in there else '.parts'}")

    def read(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Read the stored trials; raise UserError if they are from another job, or parameters have other shapes."""
        found = [self.path] if self.path.exists() else []
        for path in [*found, *(sorted(self._stored()) if self.parts.exists() else ())]:
            try:
                metadata, trials = read_trials(path)
            except UserError as error:
                if path == self.path:
                    raise UserError(f"{error}; {WAY_OUT}") from None
                self.log(f"warning: {error}; this trial is repeated")
                path.unlink()
                continue
            self._check(path, metadata, trials, shapes)
            self.rows.update((trial.seed, trial) for trial in trials)

    def _check(
        self, path: Path, metadata: Mapping[str, Any], trials: Iterable[Trial], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        if differing := self.differing(metadata.get("job", "")):
            lines = [f"{path}: holds trials of another job; {WAY_OUT}", *(f"  {line}" for line in differing)]
            raise UserError("\n".join(lines))
        for trial in trials:
            for name, shape in shapes.items():
                if (found := trial.params.get(name, np.empty(0)).shape) != shape:
                    raise UserError(f"{path}: /{name}: expected the shape {shape}, found {found}; {WAY_OUT}")
        until = self.metadata["until"]
        if (other := str(metadata.get("until", NEVER))) != until:
            raise UserError(f"{path}: expected trials with --until {until}, found {shorten(other)}; {WAY_OUT}")
        wanted = self.metadata.get("data state", "")
        if (found := metadata.get("data state", wanted)) != wanted:
            raise UserError(
                f"{path}: expected trials on data of {wanted}, found some on data of {shorten(found)}; {WAY_OUT}"
            )

    def make_folder(self) -> None:
        """Create the folder of new trials, and remove partial files of a killed job."""
        with writing(self.parts):
            self.parts.mkdir(exist_ok=True)
            for left in (*self.parts.glob("*.taken"), *self.parts.glob("*.part"), self.stop):
                left.unlink(missing_ok=True)

    def take(self, seed: int) -> bool:
        """Reserve the trial of this seed; return false if another group has reserved it."""
        with writing(self.parts):
            try:
                os.close(os.open(self.parts / f"{seed}.taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                return False
        return True

    def add(self, trial: Trial) -> None:
        """Write the file of a finished trial."""
        self._write(self.parts / f"{trial.seed}.h5", [trial])

    def ask_to_stop(self) -> None:
        """Ask all groups to stop after their current trials."""
        with suppress(OSError):  # then the groups run all trials
            os.close(os.open(self.stop, os.O_CREAT | os.O_EXCL | os.O_WRONLY))

    def done(self) -> int:
        """Return the number of trials that this job has added so far, on all ranks."""
        with writing(self.parts):  # the folder may have been removed
            return sum(int(path.stem) not in self.rows for path in self._stored())

    def collect(self, seeds: Iterable[int]) -> int:
        """Merge the trials of these seeds and of an interrupted job into one file; return the number of seeds."""
        added = {seed: read_trials(self.parts / f"{seed}.h5")[1][0] for seed in seeds}
        self.rows.update(added)
        with writing(self.parts):
            if self._stored():
                self._write(self.path, [self.rows[seed] for seed in sorted(self.rows)])
            shutil.rmtree(self.parts)
        return len(added)

    def _stored(self) -> list[Path]:
        """Return the files of finished trials."""
        paths = (self.parts / name for name in os.listdir(self.parts))
        return [path for path in paths if path.suffix == ".h5" and path.stem.isdecimal()]

    def _write(self, path: Path, trials: list[Trial]) -> None:
        columns = {name: np.array([getattr(trial, name) for trial in trials]) for name in COLUMNS}
        if np.isnan(columns["holdout"]).all():
            del columns["holdout"]
        columns |= {name: np.array([trial.params[name] for trial in trials]) for name in trials[0].params}
        with writing(path):
            write_with_checksum(path, hdf5_image({"": columns}, self.metadata))


@contextmanager
def writing(path: Path, parents: bool = False) -> Iterator[None]:
    """Translate an OSError of a write, or with ``parents`` of the creation of folders, to a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: expected a place to write to, found {unwritable_reason(path, error, parents)}"
        ) from None


def read_trials(path: Path) -> tuple[dict[str, Any], list[Trial]]:
    """Read and validate a file of trials; return its attributes and trials."""
    with open_with_checksum(path, "a file of trials") as file:
        metadata, columns = dict(file.attrs), read_arrays(file, "/", path)
    n, names = len(np.atleast_1d(columns.get("seed", ()))), [name for name in columns if name not in COLUMNS]
    columns.setdefault("holdout", np.full(n, np.nan))  # without held-out points
    wanted = {
        "seed": Limits((None,), 0),
        **dict.fromkeys(("causes", "found", "iterations", "seconds"), Limits((n,), 0)),
        **dict.fromkeys(("mae", "free_energy", "holdout"), Limits((n,), any=True)),  # may be NaN
        **{name: Limits((n, *columns[name].shape[1:]), -MAX_PARAMETER, MAX_PARAMETER) for name in names},
        **params_of(metadata, path, n),
    }
    check_arrays(columns, wanted, f"{path}: ")
    for name in ("seed", "causes", "found", "iterations"):
        if columns[name].dtype.kind not in "iu":
            raise UserError(f"{path}: /{name}: expected whole numbers, found {columns[name].dtype}")
    rows = zip(*(columns[name].tolist() for name in COLUMNS), strict=True)
    params = [{name: columns[name][i] for name in names} for i in range(n)]
    return metadata, [
        Trial(**dict(zip(COLUMNS, row, strict=True)), params=p) for row, p in zip(rows, params, strict=True)
    ]


def params_of(metadata: Mapping[str, Any], path: Path, trials: int) -> dict[str, Limits]:
    """Return the limits of the parameters of a number of trials; empty for a custom model."""
    try:
        job = job_of(metadata, str(path), {})
    except UntrustedError:
        return {}
    model = job.Model(job.model, 1)
    limits, axes = limits_of(model), {name: param.axes for name, param in model.params.items()}
    free = {
        name: tuple(None if axis in "DP" else n for axis, n in zip(axes[name], one.shape, strict=False))
        for name, one in limits.items()
    }
    return {
        name: one._replace(shape=(trials, *free[name], *one.shape[len(free[name]) :])) for name, one in limits.items()
    }
