"""A run that cannot be lost: its claim on a directory, where to go on, checkpoints, and stopping well."""

import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from parallel_et.control.signals import stops
from parallel_et.control.stopping import Stopping, Wish
from parallel_et.core.schema import duration
from parallel_et.em.state import Info
from parallel_et.errors import UserError
from parallel_et.job.job import HARMLESS, Job, differing_keys
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.checkpoints import load_kept, pass_over, save_kept
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.metrics import Metrics
from parallel_et.runs.result import CHECKPOINT, Result
from parallel_et.runs.trainer import Training


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


FIRST = 60.0
"""Seconds after which a run that has none yet writes a checkpoint at the latest, if it does so by the clock."""
COST = 0.01
"""Share of the time that checkpoints by the clock may take at most; where writing is slow they get rarer."""


class Keeper:
    """Keeps a run in its directory: goes on, within ``keeping``, from what the claim finds there; all is collective."""

    def __init__(self, claim: Claim, ranks: Ranks) -> None:
        self.claim, self.ranks = claim, ranks
        self.directory, self.job, self.say = claim.directory, claim.job, claim.say
        self.every = self.job.run.checkpoint.every
        self.seconds = duration(self.every) if isinstance(self.every, str) else 0.0
        self.longest = self.cost = 0.0
        self.written_at = 0
        self.stopped = Wish.NONE
        self.metrics = Metrics(self.directory.path / "metrics.csv") if self.job.run.metrics else None
        self._told_metrics = False
        self._stopping: Stopping | None = None
        self._earlier: Result | None = None

    @contextmanager
    def keeping(self, training: Training) -> Iterator[None]:
        """Hold the directory, and put the training where the run that is there stands."""
        self.training = training
        try:
            self.ranks.from_root(self.claim.take)
            self._resume()
            self.last = self.written = time.monotonic()
            there = self.ranks.from_root(lambda: self.directory.checkpoints.of(training.state.iteration).exists())
            self.written_at = training.state.iteration if there else 0
            yield
        finally:
            if self.ranks.is_root:
                self.directory.release()

    def _resume(self) -> None:
        while (found := self.ranks.from_root(self._find)) is not None:
            name, fingerprint, points = found
            here = self.training.about["data fingerprint"]
            if fingerprint != here:
                raise UserError(
                    f"{self.directory.path}: expected the data of the run that is there (fingerprint {fingerprint}), "
                    f"found other data ({here}); use another --output, or --fresh to start over"
                )
            kept, path = self.training.state.point_states, self.directory.checkpoints.path / name
            of_result = name == self.directory.result.name  # which does not have what is kept of the points
            shard = self.training.problem.shard
            if not kept or of_result or load_kept(path, kept, shard, self.ranks) == points:
                break
            why = f"{path}: expected what is kept of the points beside it, found it damaged or gone"
            self.ranks.from_root(partial(pass_over, path, why, self.say))
        else:
            return
        self.training.resume(self._earlier)
        if kept and of_result and not self.training.ended:
            raise UserError(f"{self.directory.path}: expected a checkpoint to go on from, found only the result")
        if not self.finished:
            self.say(f"{self.directory.path}: goes on from {name}, after {self.training.state.iteration} iterations")

    def _find(self) -> tuple[str, str, str] | None:
        """On the root: the name, the data's fingerprint and the digest of the points of what to go on from."""
        if (found := self.claim.find()) is None:
            return None
        path, self._earlier = found
        about = self._earlier.about
        return path.name, about["data fingerprint"], about.get("points digest", "")

    @property
    def finished(self) -> bool:
        """Whether the run that is there has come to its end, also as the job is now."""
        return self.training.ended and self.ranks.from_root(lambda: self.directory.finished)

    def begin(self) -> None:
        """Make the files agree with where the training stands; it goes on from there."""
        self._save()  # a result without a checkpoint is about to be put aside
        self.ranks.from_root(
            lambda: self.directory.begin(self.job.toml(), self.training.state.iteration, self.job.code())
        )
        self._note_metrics()

    def iterations(self, stopping: Stopping | None = None) -> Iterator[Info]:
        """Train to the end or until it is time to stop; yield the metadata of each iteration before its checkpoint."""
        self._stopping = stopping
        with stops("after this iteration, with a checkpoint"):
            for info in self.training.iterations():
                yield info
                if self._after():
                    break
            self._save()
        if self.training.ended:
            self.training.judge()
            self.ranks.from_root(lambda: self.directory.finish(self.training.result()))

    def _after(self) -> bool:
        """Called after every iteration: checkpoint, and whether to stop, as all ranks together wish."""
        self._note_metrics()
        now = time.monotonic()
        self.longest = max(now - self.last, 0.9 * self.longest)
        wish = Wish.CHECKPOINT if self.ranks.is_root and self._due(now) else Wish.NONE
        if self._stopping is not None:
            wish |= self._stopping.wish(1.2 * self.longest + 2 * self.cost)
        wish = Wish(self.ranks.either(wish))
        if wish & Wish.CHECKPOINT:
            self._save()
        self.stopped = wish & Wish.STOP
        self.last = time.monotonic()
        return bool(self.stopped)

    def _note_metrics(self) -> None:
        """On the root: bring what is written of each iteration up to date; where that fails the run goes on."""
        if self.metrics is None or not self.ranks.is_root:
            return
        try:
            self.metrics.update(self.training.history.values)
            self._told_metrics = False
        except OSError as error:
            if not self._told_metrics:
                self.say(f"warning: {self.metrics.path}: {error.strerror}; it is written again when there is room")
            self._told_metrics = True

    def _due(self, now: float) -> bool:
        if isinstance(self.every, int):
            return self.training.state.iteration % self.every == 0
        usual = self.seconds if self.written_at else min(FIRST, self.seconds)
        return now - self.written >= max(usual, self.cost / COST)

    def _save(self) -> None:
        """Write a checkpoint, if there is none of this iteration yet; where that fails the run goes on."""
        begun, done = time.monotonic(), self.training.state.iteration
        if done == self.written_at:
            return
        try:
            self._write(done)
            self.written_at = done
        except (OSError, UserError) as error:
            why = getattr(error, "strerror", error)
            self.say(f"warning: no checkpoint of iteration {done} ({why}); the last one that could be written stands")
        self.written = time.monotonic()
        self.cost = self.written - begun
        self.training.about["seconds checkpoints"] += self.cost

    def _write(self, done: int) -> None:
        kept, checkpoints = self.training.state.point_states, self.directory.checkpoints

        def begin() -> None:
            self.directory.check_held()
            checkpoints.make()

        self.ranks.from_root(begin)
        if kept:
            shard = self.training.problem.shard
            self.training.about["points digest"] = save_kept(checkpoints.of(done), kept, shard, self.ranks)
        keep = self.job.run.checkpoint.keep
        self.ranks.from_root(lambda: checkpoints.save(done, self.training.result(CHECKPOINT), keep))
