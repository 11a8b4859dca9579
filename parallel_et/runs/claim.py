"""What a job wants of its run directory: to begin there, or to go on from what is there. All of it is the root's."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parallel_et.errors import UserError
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.job import HARMLESS, Job, differing_keys
from parallel_et.runs.result import Result


@dataclass(frozen=True)
class Claim:
    """A job and its run directory.

    Attributes
    ----------
    say : how the root tells of it
    allowed : keys in which the run that is there may differ
    fresh : start over, whatever is there
    """

    directory: RunDirectory
    job: Job
    say: Callable[[str], None]
    allowed: Sequence[str] = ()
    fresh: bool = False

    def check(self) -> None:
        """Refuse a place that is none for this run: not a directory, or the run of another job."""
        self.directory.check_place()
        if self.fresh or (stored := self.directory.stored_job()) is None:
            return
        if differing := differing_keys(stored, self.job.resolved(), self.allowed):
            may = [key for key in HARMLESS if any(line.startswith(key) for line in differing)]
            harmless = all(line.startswith(HARMLESS) for line in differing)
            go_on = f", or go on all the same with {' '.join(f'--allow {key}' for key in may)}" if harmless else ""
            raise UserError(
                f"{self.directory.path}: holds a run of another job; use another --output, or --fresh to start over"
                + "\n".join([go_on, *(f"  {line}" for line in differing)])
            )

    def take(self) -> None:
        """Hold the directory; what is there goes aside if the job is to start over."""
        self.directory.hold(self.say)
        self.check()  # again: another job may have been here meanwhile
        if self.fresh and (aside := self.directory.set_aside()) is not None:
            self.directory.hold(self.say)
            self.say(f"what was there is kept in {aside}")

    def find(self) -> tuple[Path, Result] | None:
        """What to go on from, and where it lies."""
        found = self.directory.newest(self._foreign, self.say)
        if found is None and self.directory.stored_job() is not None:
            self.say(f"{self.directory.path}: holds this run, but not yet a checkpoint; it starts from the beginning")
        return found

    def _foreign(self, found: Result) -> str | None:
        keys = differing_keys(tomllib.loads(found.about["job"]), self.job.resolved(), HARMLESS)
        return f"expected a run of this job, found one of another ({keys[0]})" if keys else None
