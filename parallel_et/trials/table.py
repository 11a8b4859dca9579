"""The outcomes of many trials of a job: one row a trial in one HDF5 file, to which more can be added."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.core.limits import LARGEST, Limits, brief, check_arrays, limits_of
from parallel_et.errors import UserError
from parallel_et.job.job import UntrustedError
from parallel_et.runs.result import job_of, read_arrays
from parallel_et.storage.atomic import hdf5_image, why_no_place
from parallel_et.storage.checksum import open_sealed, write_sealed
from parallel_et.storage.lock import Lock

NEVER = "never"
"""How many iterations a trial goes on where nothing is said of it."""
WAY_OUT = "use another --output, or --fresh to start over"


@dataclass(frozen=True)
class Trial:
    """Outcome of one trial.

    Attributes
    ----------
    causes, found : how many causes are behind the data, and how many the trial has found; 0 where they are not known
    mae : mean absolute error between the causes and their fields; NaN where they are not known
    free_energy : that of the last iteration
    params : what was learned, by name
    holdout : evidence a point of rows that were not learned from, at its end; NaN where there are none
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
    """The file of a job's trials, and ``<file>.parts`` with those of a job that runs or was interrupted, a file each.

    Any rank may ``take``, ``add`` and ``ask_to_stop``; the rest is the root's.

    Parameters
    ----------
    about : root attributes of the file, among them the job
    differing : says in which keys the job of a trial that is there differs, a line each

    Attributes
    ----------
    rows : seed -> trial, on the root
    stop : the file whose appearance asks all to stop
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, str],
        differing: Callable[[str], list[str]],
        say: Callable[[str], None],
    ) -> None:
        self.path, self.about, self.differing, self.say = path, about, differing, say
        self.parts = path.with_name(path.name + ".parts")
        self.stop = self.parts / "stop"
        self.rows: dict[int, Trial] = {}
        self._lock = Lock(path.with_name(path.name + ".lock"), str(path), say)

    def hold(self) -> None:
        """Keep other jobs off the file; its folder is made if need be."""
        if self.path.is_dir():
            raise UserError(f"{self.path}: expected a file, found a directory")
        with writing(self.path, parents=True):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock.take()

    def release(self) -> None:
        """Let other jobs in."""
        self._lock.release()

    def set_aside(self) -> None:
        """Move what is there out of the way."""
        there, number = [path for path in (self.path, self.parts) if path.exists()], 1
        while (aside := Path(f"{self.path}.old-{number}")).exists() or Path(f"{aside}.parts").exists():
            number += 1
        with writing(self.path):
            for path in there:
                path.rename(aside if path == self.path else Path(f"{aside}.parts"))
        if there:
            self.say(f"what was there is kept in {aside}{'' if self.path in there else '.parts'}")

    def look(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Read the trials that are there, of parameters of these shapes; those of another job are refused."""
        found = [self.path] if self.path.exists() else []
        for path in [*found, *(sorted(self._stored()) if self.parts.exists() else ())]:
            try:
                about, trials = read_trials(path)
            except UserError as error:
                if path == self.path:
                    raise UserError(f"{error}; {WAY_OUT}") from None
                self.say(f"warning: {error}; this trial is run again")
                path.unlink()
                continue
            self._check(path, about, trials, shapes)
            self.rows.update((trial.seed, trial) for trial in trials)

    def _check(
        self, path: Path, about: Mapping[str, Any], trials: Iterable[Trial], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        if differing := self.differing(about.get("job", "")):
            lines = [f"{path}: holds trials of another job; {WAY_OUT}", *(f"  {line}" for line in differing)]
            raise UserError("\n".join(lines))
        for trial in trials:
            for name, shape in shapes.items():
                if (found := trial.params.get(name, np.empty(0)).shape) != shape:
                    raise UserError(f"{path}: /{name}: expected the shape {shape}, found {found}; {WAY_OUT}")
        until = self.about["until"]
        if (other := str(about.get("until", NEVER))) != until:
            raise UserError(f"{path}: expected trials with --until {until}, found {brief(other)}; {WAY_OUT}")
        wanted = self.about.get("data state", "")
        if (found := about.get("data state", wanted)) != wanted:
            raise UserError(
                f"{path}: expected trials on data of {wanted}, found some on data of {brief(found)}; {WAY_OUT}"
            )

    def begin(self) -> None:
        """Make the folder for trials to come, without what was left there by a job that died."""
        with writing(self.parts):
            self.parts.mkdir(exist_ok=True)
            for left in (*self.parts.glob("*.taken"), *self.parts.glob("*.part"), self.stop):
                left.unlink(missing_ok=True)

    def take(self, seed: int) -> bool:
        """Whether the trial of this seed is the caller's to run: the first who asks gets it."""
        with writing(self.parts):
            try:
                os.close(os.open(self.parts / f"{seed}.taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                return False
        return True

    def add(self, trial: Trial) -> None:
        """Store a trial that is done."""
        self._write(self.parts / f"{trial.seed}.h5", [trial])

    def ask_to_stop(self) -> None:
        """Tell all ranks to stop after the trials that they run now."""
        with suppress(OSError):  # then they come to their end
            os.close(os.open(self.stop, os.O_CREAT | os.O_EXCL | os.O_WRONLY))

    def done(self) -> int:
        """Number of trials that this job has added so far, by whatever rank."""
        with writing(self.parts):  # somebody may have removed the folder
            return sum(int(path.stem) not in self.rows for path in self._stored())

    def collect(self, seeds: Iterable[int]) -> int:
        """Bring the trials of these seeds, and those of an interrupted job, into the one file; returns how many."""
        added = {seed: read_trials(self.parts / f"{seed}.h5")[1][0] for seed in seeds}
        self.rows.update(added)
        with writing(self.parts):
            if self._stored():
                self._write(self.path, [self.rows[seed] for seed in sorted(self.rows)])
            shutil.rmtree(self.parts)
        return len(added)

    def _stored(self) -> list[Path]:
        """The trials that are done, a file each."""
        paths = (self.parts / name for name in os.listdir(self.parts))
        return [path for path in paths if path.suffix == ".h5" and path.stem.isdecimal()]

    def _write(self, path: Path, trials: list[Trial]) -> None:
        columns = {name: np.array([getattr(trial, name) for trial in trials]) for name in COLUMNS}
        if np.isnan(columns["holdout"]).all():
            del columns["holdout"]
        columns |= {name: np.array([trial.params[name] for trial in trials]) for name in trials[0].params}
        with writing(path):
            write_sealed(path, hdf5_image({"": columns}, self.about))


@contextmanager
def writing(path: Path, parents: bool = False) -> Iterator[None]:
    """Say in one line why nothing can be written there, or, with ``parents``, the folders above not be made."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: expected a place to write to, found {why_no_place(path, error, parents)}") from None


def read_trials(path: Path) -> tuple[dict[str, Any], list[Trial]]:
    """The attributes and the trials of a file, which must be sound."""
    with open_sealed(path, "a file of trials") as file:
        about, columns = dict(file.attrs), read_arrays(file, "/", path)
    n, names = len(np.atleast_1d(columns.get("seed", ()))), [name for name in columns if name not in COLUMNS]
    columns.setdefault("holdout", np.full(n, np.nan))  # where nothing is held out
    wanted = {
        "seed": Limits((None,), 0),
        **dict.fromkeys(("causes", "found", "iterations", "seconds"), Limits((n,), 0)),
        **dict.fromkeys(("mae", "free_energy", "holdout"), Limits((n,), any=True)),  # not always known
        **{name: Limits((n, *columns[name].shape[1:]), -LARGEST, LARGEST) for name in names},
        **params_of(about, path, n),
    }
    check_arrays(columns, wanted, f"{path}: ")
    for name in ("seed", "causes", "found", "iterations"):
        if columns[name].dtype.kind not in "iu":
            raise UserError(f"{path}: /{name}: expected whole numbers, found {columns[name].dtype}")
    rows = zip(*(columns[name].tolist() for name in COLUMNS), strict=True)
    params = [{name: columns[name][i] for name in names} for i in range(n)]
    return about, [Trial(**dict(zip(COLUMNS, row, strict=True)), params=p) for row, p in zip(rows, params, strict=True)]


def params_of(about: Mapping[str, Any], path: Path, trials: int) -> dict[str, Limits]:
    """What the parameters of so many trials must be like; nothing is known of those of a model of a file."""
    try:
        job = job_of(about, str(path), {})
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
