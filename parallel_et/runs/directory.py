"""The run directory: job.toml, log.txt, checkpoints, result.h5, and the lock of the job that works on it."""

import errno
import os
import re
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from parallel_et.control.process import age, tell
from parallel_et.errors import UserError
from parallel_et.job.job import differing_keys
from parallel_et.runs.checkpoints import Checkpoints, first_sound, pass_over, read
from parallel_et.runs.result import Result, load
from parallel_et.storage.atomic import why_no_place, write_whole
from parallel_et.storage.lock import Lock

CODE = {"model": "model.py", "inference": "scheme.py"}
"""Copies of the files of a model and a scheme of one's own, by section of the job."""


class RunDirectory:
    """The directory of one run; only the root writes to it, and only while it holds it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        names = ("job.toml", "log.txt", "result.h5", "stop")
        self.job, self.log, self.result, self.stop = (self.path / name for name in names)
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self._lock: Lock | None = None
        self._full = False

    def stored_job(self) -> dict[str, Any] | None:
        """The resolved job of the run that is there, if one is."""
        try:
            return tomllib.loads(self.job.read_text()) if self.job.is_file() else None
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{self.job}: expected the job of an earlier run, found something else ({error})") from None

    @property
    def finished(self) -> bool:
        """Whether the run that is there came to its end."""
        return self.result.exists()

    def check_place(self) -> None:
        """Refuse a place that cannot be a run directory, before any work is done."""
        here = self._real()
        there = next(place for place in (here, *here.parents) if place.exists())
        if not there.is_dir():
            raise UserError(f"{self.path}: expected a directory, found a file {there}")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UserError(f"{self.path}: expected a directory to write to, found {there} read-only")
        for file in (self.job, self.log, self.result):
            if file.is_symlink() or (file.exists() and not file.is_file()):
                found = "a symbolic link" if file.is_symlink() else "a directory" if file.is_dir() else "something else"
                raise UserError(f"{file}: expected a file, found {found}")
        folder = self.checkpoints.path
        if not folder.is_dir() and (folder.is_symlink() or folder.exists()):
            raise UserError(f"{folder}: expected a directory, found something else")
        if self.path.is_dir() and not self.job.exists():
            ours = ("lock", "stop", "job.toml.part", *CODE.values())  # of a run that was killed before it began
            if not all(item.name.startswith(ours) for item in self.path.iterdir()):
                raise UserError(f"{self.path}: expected an empty directory or one of a run, found other files")

    def _real(self) -> Path:
        """Where the directory is, or will be, if links lead to it."""
        try:
            os.stat(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):  # such as links that lead round in a circle
                raise UserError(f"{self.path}: expected a directory, found {error.strerror}") from None
        return Path(os.path.realpath(self.path))

    def hold(self, say: Callable[[str], None]) -> None:
        """Make the directory if need be, and keep other jobs out of it."""
        try:
            self._real().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = why_no_place(self.path, error, parents=True)
            raise UserError(f"{self.path}: expected a directory to write to, found {why}") from None
        self._lock = Lock(self.path / "lock", str(self.path), say)
        self._lock.take()

    def check_held(self) -> None:
        """End a job that another one took for dead and put out."""
        if self._lock is None or not self._lock.keep():
            raise RuntimeError(f"{self.path}: the lock is gone: another job works on this run now")

    def release(self) -> None:
        """Let other jobs in; a directory in which nothing has begun goes away."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        with suppress(OSError):
            self.path.rmdir()

    def set_aside(self) -> Path | None:
        """Move what is there out of the way; returns where it went."""
        if not self.job.exists():
            return None
        self.release()
        number = 1
        here = self._real()
        while (aside := here.with_name(f"{here.name}.old-{number}")).exists():
            number += 1
        try:
            here.rename(aside)
        except OSError as error:
            raise UserError(f"{self.path}: expected a directory that can be moved aside, found {error}") from None
        return aside

    def begin(self, job: str, done: int, code: Mapping[str, bytes]) -> None:
        """Store the resolved job, of which so many iterations are done, and make the log and the files agree with it.

        So is the code of a model or a scheme of a file, by section.

        The log loses its lines of later iterations, which are to be done again; an earlier result, of a run that is to
        go on, keeps its iterations in its name.
        """
        try:
            if self.stop.exists() and self.stop.stat().st_mtime < time.time() - age():
                self.stop.unlink()  # it was meant for an earlier job
            if self.result.exists():
                self.result.replace(self.result.with_name(f"result-{done:06d}.h5"))
            if self.log.exists():
                lines = self.log.read_bytes().splitlines()
                write_whole(self.log, b"".join(line + b"\n" for line in lines if iteration(line) <= done))
            for section, text in code.items():
                write_whole(self.path / CODE[section], text)
            write_whole(self.job, job.encode())
        except OSError as error:
            raise UserError(f"{self.path}: expected a directory to write to, found {error.strerror}") from None

    def load_result(self) -> Result:
        """Read the result, which must be that of the job in this directory; no file is changed."""
        stored = self.stored_job()
        try:
            found = load(self.result)
            if stored is not None and (keys := differing_keys(stored, tomllib.loads(found.about["job"]))):
                expected = f"expected the result of the job in {self.job.name}"
                raise UserError(f"{self.result}: {expected}, found one of another ({keys[0]})")
        except UserError as error:
            if not self.checkpoints.names():
                raise
            raise UserError(f"{error}; the command that began this run writes it again") from None
        return found

    def latest(self) -> tuple[Result, str]:
        """The result, or else what the newest sound checkpoint has, and its name; nothing is touched."""
        names: list[Path] = []
        self._real()
        while True:
            if self.finished:
                return self.load_result(), self.result.name
            before, names = names, self.checkpoints.names()
            for path in names:
                with suppress(UserError):
                    return read(path), path.name
            if names == before:  # else those of a run at work made place for others
                raise UserError(f"{self.path}: expected a run with a result or a checkpoint, found none")

    def newest(
        self, foreign: Callable[[Result], str | None], warn: Callable[[str], None]
    ) -> tuple[Path, Result] | None:
        """What this run goes on from, if there is anything: the newest checkpoint, or a result that is newer still.

        What is not sound, or foreign, is put aside; only who holds the directory may do this.
        """
        result = first_sound([self.result] if self.finished else [], load, foreign, warn)
        if not self.checkpoints:
            return result
        self.checkpoints.tidy()
        if result is None:
            return self.checkpoints.newest(foreign, warn)
        checkpoint = first_sound(self.checkpoints.names(), read, foreign, warn)
        if checkpoint is None:
            return result
        done, latest = (int(found.about["iteration"]) for _, found in (result, checkpoint))
        if done > latest:
            return result
        if done < latest or not same_params(result[1], checkpoint[1]):
            found = f"{done} iterations" if done < latest else "other parameters"
            why = f"expected the result of the {latest} iterations of {checkpoint[0].name}, found one of {found}"
            pass_over(self.result, f"{self.result}: {why}", warn)
        return checkpoint

    def trusted(self, trust: bool, model: str | None, scheme: str | None) -> dict[str, str]:
        """Files of a model and a scheme that may be executed: those that are named, or the run's own if trusted."""
        own = {section: str(self.path / name) for section, name in CODE.items() if trust}
        named = {"model": model, "inference": scheme}
        return own | {section: path for section, path in named.items() if path is not None}

    def at_work(self, say: Callable[[str], None]) -> str | None:
        """Who works on the run just now, if somebody does; nothing is touched."""
        return Lock(self.path / "lock", str(self.path), say).holder()

    def note(self, line: str) -> None:
        """Append a line to the log; a disk that is full is no reason to end a run."""
        try:
            with open(self.log, "a", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666)) as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")
            self._full = False
        except OSError as error:
            if not self._full:
                tell(f"warning: {self.log}: {error.strerror}; lines are missing there", sys.stderr)
            self._full = True

    def finish(self, result: Result) -> None:
        """Store the result."""
        try:
            result.write(self.result)
        except OSError as error:
            raise UserError(
                f"{self.result}: expected room to write the result, found {error.strerror}; "
                "the same command goes on from the last checkpoint"
            ) from None


def same_params(one: Result, other: Result) -> bool:
    """Return whether two results have the same parameters, bit for bit."""
    return one.params.keys() == other.params.keys() and all(
        value.tobytes() == other.params[name].tobytes() for name, value in one.params.items()
    )


def iteration(line: bytes) -> int:
    """The number of the iteration that a line of the log tells of; 0 if it is about something else."""
    found = re.match(rb"\S+ \S+  iteration (\d+)", line)
    return int(found[1]) if found else 0
