"""The run directory: job.toml, log.txt, result.h5."""

import os
import time
import tomllib
from pathlib import Path
from typing import Any

from parallel_et.errors import UserError
from parallel_et.io.result import Result


class RunDirectory:
    """The directory of one run; only the root writes to it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.job, self.log, self.result = (self.path / name for name in ("job.toml", "log.txt", "result.h5"))

    def stored_job(self) -> dict[str, Any] | None:
        """The resolved job of the run that is there, if one is."""
        try:
            return tomllib.loads(self.job.read_text()) if self.job.exists() else None
        except (OSError, ValueError) as error:
            raise UserError(f"{self.job}: expected the job of an earlier run, found something else ({error})") from None

    @property
    def finished(self) -> bool:
        """Whether the run that is there came to its end."""
        return self.result.exists()

    def check_place(self) -> None:
        """Refuse a place that cannot be a run directory, before any work is done."""
        there = next(place for place in (self.path.resolve(), *self.path.resolve().parents) if place.exists())
        if not there.is_dir():
            raise UserError(f"{self.path}: expected a directory, found a file {there}")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UserError(f"{self.path}: expected a directory to write to, found {there} read-only")
        if self.path.is_dir() and not self.job.exists() and any(self.path.iterdir()):
            raise UserError(f"{self.path}: expected an empty directory or one of a run, found other files")

    def check_free(self) -> None:
        """Refuse a place that holds a run already."""
        if self.job.exists():
            raise UserError(f"{self.path}: expected no run there yet, found one")

    def set_aside(self) -> Path | None:
        """Move what is there out of the way; returns where it went."""
        if not self.path.exists():
            return None
        number = 1
        here = self.path.resolve()
        while (aside := here.with_name(f"{here.name}.old-{number}")).exists():
            number += 1
        try:
            here.rename(aside)
        except OSError as error:
            raise UserError(f"{self.path}: expected a directory that can be moved aside, found {error}") from None
        return self.path.with_name(aside.name) if self.path.name else aside

    def begin(self, job: str) -> None:
        """Make the directory and store the resolved job."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            beside = self.job.with_name("job.toml.part")
            beside.write_text(job)
            beside.replace(self.job)
        except OSError as error:
            raise UserError(f"{self.path}: expected a directory to write to, found {error.strerror}") from None

    def note(self, line: str) -> None:
        """Append a line to the log."""
        with self.log.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    def finish(self, result: Result) -> None:
        """Store the result."""
        result.save(self.result)
