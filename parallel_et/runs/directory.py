"""The run directory: job.toml, log.txt, checkpoints, result.h5, and a lock."""

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

from parallel_et.control.process import print_now, process_age_seconds
from parallel_et.errors import UserError
from parallel_et.job.job import differing_keys
from parallel_et.runs.checkpoints import Checkpoints, first_valid, read, set_aside_unusable
from parallel_et.runs.result import Result, load
from parallel_et.storage.atomic import unwritable_reason, write_atomically
from parallel_et.storage.lock import Lock

CODE_FILES = {"model": "model.py", "inference": "scheme.py"}
"""Section of the job -> name of the copy of the code of a custom model or scheme."""


class RunDirectory:
    """The directory of a run. Only the root writes to it, and only while it holds the lock."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        names = ("job.toml", "log.txt", "result.h5", "stop")
        self.job, self.log, self.result, self.stop = (self.path / name for name in names)
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self._lock: Lock | None = None
        self._warned_of_log = False

    def stored_job(self) -> dict[str, Any] | None:
        """Return the resolved job of the existing run, None if there is no run."""
        try:
            return tomllib.loads(self.job.read_text()) if self.job.is_file() else None
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{self.job}: expected the job of an earlier run, found something else ({error})") from None

    @property
    def finished(self) -> bool:
        """True if the directory contains a result."""
        return self.result.exists()

    def check_path(self) -> None:
        """Raise UserError if the path cannot be a run directory, before any work is done."""
        real = self._real_path()
        existing = next(path for path in (real, *real.parents) if path.exists())
        if not existing.is_dir():
            raise UserError(f"{self.path}: expected a directory, found a file {existing}")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise UserError(f"{self.path}: expected a directory to write to, found {existing} read-only")
        for file in (self.job, self.log, self.result):
            if file.is_symlink() or (file.exists() and not file.is_file()):
                found = "a symbolic link" if file.is_symlink() else "a directory" if file.is_dir() else "something else"
                raise UserError(f"{file}: expected a file, found {found}")
        folder = self.checkpoints.path
        if not folder.is_dir() and (folder.is_symlink() or folder.exists()):
            raise UserError(f"{folder}: expected a directory, found something else")
        if self.path.is_dir() and not self.job.exists():
            ours = ("lock", "stop", "job.toml.part", *CODE_FILES.values())  # of a run that was killed at its start
            if not all(item.name.startswith(ours) for item in self.path.iterdir()):
                raise UserError(f"{self.path}: expected an empty directory or a run directory, found other files")

    def _real_path(self) -> Path:
        """Return the path of the directory with all links resolved."""
        try:
            os.stat(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):  # such as a circle of links
                raise UserError(f"{self.path}: expected a directory, found {error.strerror}") from None
        return Path(os.path.realpath(self.path))

    def hold(self, log: Callable[[str], None]) -> None:
        """Create the directory if needed, and lock it against other jobs."""
        try:
            self._real_path().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = unwritable_reason(self.path, error, parents=True)
            raise UserError(f"{self.path}: expected a directory to write to, found {why}") from None
        self._lock = Lock(self.path / "lock", str(self.path), log)
        self._lock.take()

    def check_held(self) -> None:
        """Raise RuntimeError if another job has taken over the lock."""
        if self._lock is None or not self._lock.keep():
            raise RuntimeError(f"{self.path}: the lock was lost: another job now works on this run")

    def release(self) -> None:
        """Release the lock, and remove the directory if it is empty."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        with suppress(OSError):
            self.path.rmdir()

    def set_aside(self) -> Path | None:
        """Rename the directory of an existing run; return its new path."""
        if not self.job.exists():
            return None
        self.release()
        number = 1
        real = self._real_path()
        while (aside := real.with_name(f"{real.name}.old-{number}")).exists():
            number += 1
        try:
            real.rename(aside)
        except OSError as error:
            raise UserError(f"{self.path}: expected a directory that can be renamed, found {error}") from None
        return aside

    def prepare(self, job: str, done: int, code: Mapping[str, bytes]) -> None:
        """Store the job, and bring all files to the iteration from which the run starts or resumes.

        Lines of later iterations are removed from the log. An earlier result is renamed to ``result-<iterations>.h5``.

        Parameters
        ----------
        job : the resolved job, as TOML
        done : number of finished iterations
        code : section of the job -> code of a custom model or scheme
        """
        try:
            if self.stop.exists() and self.stop.stat().st_mtime < time.time() - process_age_seconds():
                self.stop.unlink()  # a request to an earlier job
            if self.result.exists():
                self.result.replace(self.result.with_name(f"result-{done:06d}.h5"))
            if self.log.exists():
                lines = self.log.read_bytes().splitlines()
                write_atomically(self.log, b"".join(line + b"\n" for line in lines if iteration(line) <= done))
            for section, text in code.items():
                write_atomically(self.path / CODE_FILES[section], text)
            write_atomically(self.job, job.encode())
        except OSError as error:
            raise UserError(f"{self.path}: expected a directory to write to, found {error.strerror}") from None

    def load_result(self) -> Result:
        """Read the result, and check that it is from the job in this directory; change no file."""
        stored = self.stored_job()
        try:
            found = load(self.result)
            if stored is not None and (keys := differing_keys(stored, tomllib.loads(found.metadata["job"]))):
                expected = f"expected the result of the job in {self.job.name}"
                raise UserError(f"{self.result}: {expected}, found the result of another job ({keys[0]})")
        except UserError as error:
            if not self.checkpoints.newest_first():
                raise
            raise UserError(f"{error}; the command that started this run writes it again") from None
        return found

    def latest(self) -> tuple[Result, str]:
        """Return the result or the newest valid checkpoint, and the name of its file; change no file."""
        paths: list[Path] = []
        self._real_path()
        while True:
            if self.finished:
                return self.load_result(), self.result.name
            before, paths = paths, self.checkpoints.newest_first()
            for path in paths:
                with suppress(UserError):
                    return read(path), path.name
            if paths == before:  # else a running job has replaced its checkpoints
                raise UserError(f"{self.path}: expected a run with a result or a checkpoint, found none")

    def newest(
        self, foreign: Callable[[Result], str | None], warn: Callable[[str], None]
    ) -> tuple[Path, Result] | None:
        """Return path and content of the newest checkpoint, or of a newer result; None for a new run.

        Files that are invalid or from another job are set aside. Only the holder of the lock may call this.
        """
        result = first_valid([self.result] if self.finished else [], load, foreign, warn)
        if not self.checkpoints:
            return result
        self.checkpoints.tidy()
        if result is None:
            return self.checkpoints.newest(foreign, warn)
        checkpoint = first_valid(self.checkpoints.newest_first(), read, foreign, warn)
        if checkpoint is None:
            return result
        done, latest = (int(found.metadata["iteration"]) for _, found in (result, checkpoint))
        if done > latest:
            return result
        if done < latest or not same_params(result[1], checkpoint[1]):
            found = f"{done} iterations" if done < latest else "other parameters"
            reason = f"expected the result of the {latest} iterations of {checkpoint[0].name}, found one of {found}"
            set_aside_unusable(self.result, f"{self.result}: {reason}", warn)
        return checkpoint

    def trusted_files(self, trust: bool, model: str | None, scheme: str | None) -> dict[str, str]:
        """Return the files of a custom model and scheme that may be executed, by section of the job.

        Files that the user names precede the copies in the run directory, which are executed only with ``trust``.
        """
        own = {section: str(self.path / name) for section, name in CODE_FILES.items() if trust}
        named = {"model": model, "inference": scheme}
        return own | {section: path for section, path in named.items() if path is not None}

    def lock_holder(self, log: Callable[[str], None]) -> str | None:
        """Return the host and process that are working on the run, None if there is no such process; change no file."""
        return Lock(self.path / "lock", str(self.path), log).holder()

    def append_to_log(self, line: str) -> None:
        """Append a line to the log; a failure, such as a full disk, is a warning."""
        try:
            with open(self.log, "a", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666)) as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")
            self._warned_of_log = False
        except OSError as error:
            if not self._warned_of_log:
                print_now(f"warning: {self.log}: {error.strerror}; some lines are missing from the log", sys.stderr)
            self._warned_of_log = True

    def finish(self, result: Result) -> None:
        """Write the result."""
        try:
            result.write(self.result)
        except OSError as error:
            raise UserError(
                f"{self.result}: expected space to write the result, found {error.strerror}; "
                "the same command resumes from the last checkpoint"
            ) from None


def same_params(one: Result, other: Result) -> bool:
    """Return whether two results have the same parameters, bit for bit."""
    return one.params.keys() == other.params.keys() and all(
        value.tobytes() == other.params[name].tobytes() for name, value in one.params.items()
    )


def iteration(line: bytes) -> int:
    """Return the number of the iteration that a line of the log reports, 0 for other lines."""
    found = re.match(rb"\S+ \S+  iteration (\d+)", line)
    return int(found[1]) if found else 0
