"""The run directory: job.toml, log.txt, result.h5."""

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
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise UserError(f"{self.job}: expected the job of an earlier run, found something else ({error})") from None

    @property
    def finished(self) -> bool:
        """Whether the run that is there came to its end."""
        return self.result.exists()

    def check_place(self) -> None:
        """Refuse a place that cannot be a run directory, before any work is done."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: expected a directory, found a file")
        if self.path.is_dir() and not self.job.exists() and any(self.path.iterdir()):
            raise UserError(f"{self.path}: expected an empty directory or one of a run, found other files")

    def set_aside(self) -> Path | None:
        """Move what is there out of the way; returns where it went."""
        if not self.path.exists():
            return None
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.old-{number}")).exists():
            number += 1
        self.path.rename(aside)
        return aside

    def begin(self, job: str) -> None:
        """Make the directory and store the resolved job."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.job.write_text(job)
        except OSError as error:
            raise UserError(f"{self.path}: expected a directory to write to, found {error.strerror}") from None

    def note(self, line: str) -> None:
        """Append a line to the log."""
        with self.log.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    def finish(self, result: Result) -> None:
        """Store the result."""
        result.save(self.result)
