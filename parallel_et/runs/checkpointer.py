"""Checkpointing of a run: the claim on its directory, resumption, checkpoints during training, and stopping."""

import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from parallel_et.control.signals import ctrl_c_reply
from parallel_et.control.stopping import Request, StopMonitor
from parallel_et.core.schema import duration
from parallel_et.em.state import Info
from parallel_et.errors import UserError
from parallel_et.job.job import CHANGEABLE_KEYS, Job, differing_keys
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.checkpoints import load_point_states, save_point_states, set_aside_unusable
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.metrics import Metrics
from parallel_et.runs.result import CHECKPOINT, Result
from parallel_et.runs.trainer import Training


@dataclass(frozen=True)
class Claim:
    """The claim of a job on its run directory.

    Attributes
    ----------
    log : prints a line, on the root
    allowed : keys in which an existing run may differ from the job
    fresh : move an existing run away and start over
    """

    directory: RunDirectory
    job: Job
    log: Callable[[str], None]
    allowed: Sequence[str] = ()
    fresh: bool = False

    def check(self) -> None:
        """Raise UserError if the path cannot be a run directory, or holds a run of another job."""
        self.directory.check_path()
        if self.fresh or (stored := self.directory.stored_job()) is None:
            return
        if differing := differing_keys(stored, self.job.resolved(), self.allowed):
            may = [key for key in CHANGEABLE_KEYS if any(line.startswith(key) for line in differing)]
            harmless = all(line.startswith(CHANGEABLE_KEYS) for line in differing)
            resume = f", or resume it with {' '.join(f'--allow {key}' for key in may)}" if harmless else ""
            raise UserError(
                f"{self.directory.path}: holds a run of another job; use another --output, or --fresh to start over"
                + "\n".join([resume, *(f"  {line}" for line in differing)])
            )

    def take(self) -> None:
        """Lock the directory; with ``fresh``, move an existing run away."""
        self.directory.hold(self.log)
        self.check()  # again: another job may have written the directory before it was locked
        if self.fresh and (aside := self.directory.set_aside()) is not None:
            self.directory.hold(self.log)
            self.log(f"the earlier run was moved to {aside}")

    def find(self) -> tuple[Path, Result] | None:
        """Return the file to resume from, and its content; None for a new run."""
        found = self.directory.newest(self._foreign, self.log)
        if found is None and self.directory.stored_job() is not None:
            self.log(f"{self.directory.path}: this run has no checkpoint yet and starts from the beginning")
        return found

    def _foreign(self, found: Result) -> str | None:
        keys = differing_keys(tomllib.loads(found.metadata["job"]), self.job.resolved(), CHANGEABLE_KEYS)
        return f"expected a run of this job, found a run of another job ({keys[0]})" if keys else None


FIRST_CHECKPOINT_SECONDS = 60.0
"""Longest time before the first checkpoint, if the job sets a time between checkpoints."""
MAX_CHECKPOINT_FRACTION = 0.01
"""Largest fraction of the time for writing checkpoints, if the job sets a time between them."""


class Checkpointer:
    """Resumes a run from its directory and writes its checkpoints. All methods are collective."""

    def __init__(self, claim: Claim, ranks: Ranks) -> None:
        self.claim, self.ranks = claim, ranks
        self.directory, self.job, self.log = claim.directory, claim.job, claim.log
        self.every = self.job.run.checkpoint.every
        self.seconds = duration(self.every) if isinstance(self.every, str) else 0.0
        self.longest = self.cost = 0.0
        self.written_at = 0
        self.stopped = Request.NONE
        self.metrics = Metrics(self.directory.path / "metrics.csv") if self.job.run.metrics else None
        self._warned_of_metrics = False
        self._stopping: StopMonitor | None = None
        self._earlier: Result | None = None

    @contextmanager
    def resume_run(self, training: Training) -> Iterator[None]:
        """Lock the directory, and resume the training from the run in it."""
        self.training = training
        try:
            self.ranks.from_root(self.claim.take)
            self._resume()
            self.last = self.written = time.monotonic()
            iteration = training.state.iteration
            exists = self.ranks.from_root(lambda: self.directory.checkpoints.path_of(iteration).exists())
            self.written_at = iteration if exists else 0
            yield
        finally:
            if self.ranks.is_root:
                self.directory.release()

    def _resume(self) -> None:
        while (found := self.ranks.from_root(self._find)) is not None:
            name, fingerprint, points = found
            own = self.training.metadata["data fingerprint"]
            if fingerprint != own:
                raise UserError(
                    f"{self.directory.path}: expected the data of the existing run (fingerprint {fingerprint}), "
                    f"found other data ({own}); use another --output, or --fresh to start over"
                )
            point_states = self.training.state.point_states
            path = self.directory.checkpoints.path / name
            of_result = name == self.directory.result.name  # a result has no point states
            shard = self.training.problem.shard
            if not point_states or of_result or load_point_states(path, point_states, shard, self.ranks) == points:
                break
            reason = f"{path}: expected its file of point states, found it damaged or missing"
            self.ranks.from_root(partial(set_aside_unusable, path, reason, self.log))
        else:
            return
        self.training.resume(self._earlier)
        if point_states and of_result and not self.training.ended:
            raise UserError(f"{self.directory.path}: expected a checkpoint to resume from, found only the result")
        if not self.finished:
            self.log(f"{self.directory.path}: resumes from {name}, after {self.training.state.iteration} iterations")

    def _find(self) -> tuple[str, str, str] | None:
        """Return name, data fingerprint and digest of the point states of the file to resume from; on the root."""
        if (found := self.claim.find()) is None:
            return None
        path, self._earlier = found
        metadata = self._earlier.metadata
        return path.name, metadata["data fingerprint"], metadata.get("points digest", "")

    @property
    def finished(self) -> bool:
        """True if the run in the directory is finished, and the job asks for no more iterations."""
        return self.training.ended and self.ranks.from_root(lambda: self.directory.finished)

    def prepare_files(self) -> None:
        """Update the files of the directory to the iteration from which the training resumes."""
        self._save()  # prepare() renames a result, so its iteration needs a checkpoint
        self.ranks.from_root(
            lambda: self.directory.prepare(self.job.toml(), self.training.state.iteration, self.job.code())
        )
        self._update_metrics()

    def iterations(self, stopping: StopMonitor | None = None) -> Iterator[Info]:
        """Train to the end or until it is time to stop; yield the metadata of each iteration before its checkpoint."""
        self._stopping = stopping
        with ctrl_c_reply("after this iteration, with a checkpoint"):
            for info in self.training.iterations():
                yield info
                if self._after():
                    break
            self._save()
        if self.training.ended:
            self.training.diagnose()
            self.ranks.from_root(lambda: self.directory.finish(self.training.result()))

    def _after(self) -> bool:
        """Write a checkpoint if any rank needs one; return whether any rank requests to stop."""
        self._update_metrics()
        now = time.monotonic()
        self.longest = max(now - self.last, 0.9 * self.longest)
        request = Request.CHECKPOINT if self.ranks.is_root and self._due(now) else Request.NONE
        if self._stopping is not None:
            request |= self._stopping.requested(1.2 * self.longest + 2 * self.cost)
        request = Request(self.ranks.bitwise_or(request))
        if request & Request.CHECKPOINT:
            self._save()
        self.stopped = request & Request.STOP
        self.last = time.monotonic()
        return bool(self.stopped)

    def _update_metrics(self) -> None:
        """Update ``metrics.csv`` on the root; a failure is a warning."""
        if self.metrics is None or not self.ranks.is_root:
            return
        try:
            self.metrics.update(self.training.history.values)
            self._warned_of_metrics = False
        except OSError as error:
            if not self._warned_of_metrics:
                self.log(
                    f"warning: {self.metrics.path}: {error.strerror}; the next successful write includes all iterations"
                )
            self._warned_of_metrics = True

    def _due(self, now: float) -> bool:
        if isinstance(self.every, int):
            return self.training.state.iteration % self.every == 0
        interval = self.seconds if self.written_at else min(FIRST_CHECKPOINT_SECONDS, self.seconds)
        return now - self.written >= max(interval, self.cost / MAX_CHECKPOINT_FRACTION)

    def _save(self) -> None:
        """Write a checkpoint, unless this iteration has one; a failure is a warning."""
        start = time.monotonic()
        done = self.training.state.iteration
        if done == self.written_at:
            return
        try:
            self._write(done)
            self.written_at = done
        except (OSError, UserError) as error:
            reason = getattr(error, "strerror", error)
            self.log(f"warning: no checkpoint of iteration {done} ({reason}); the previous checkpoint remains")
        self.written = time.monotonic()
        self.cost = self.written - start
        self.training.metadata["seconds checkpoints"] += self.cost

    def _write(self, done: int) -> None:
        point_states = self.training.state.point_states
        checkpoints = self.directory.checkpoints

        def make_folder() -> None:
            self.directory.check_held()
            checkpoints.make()

        self.ranks.from_root(make_folder)
        if point_states:
            shard = self.training.problem.shard
            self.training.metadata["points digest"] = save_point_states(
                checkpoints.path_of(done), point_states, shard, self.ranks
            )
        keep = self.job.run.checkpoint.keep
        self.ranks.from_root(lambda: checkpoints.save(done, self.training.result(CHECKPOINT), keep))
