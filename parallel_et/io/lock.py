"""The lock of a run directory: one job at a time; that of a dead one is recognised, also from another node."""

import json
import os
import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from parallel_et.errors import UserError
from parallel_et.process import boot, start_of

BEAT = 2.0
"""Seconds between two signs of life of the holder."""
PATIENCE = 10.0
"""Seconds without one after which a holder on another node is dead."""


class Lock:
    """A file that says who holds a directory, and, by a growing number in it, that the holder lives.

    Needs nothing of the file system but that a link to a name that is taken fails.

    Parameters
    ----------
    path : the file
    what : it keeps others from, in words
    """

    def __init__(self, path: Path, what: str, say: Callable[[str], None] = print) -> None:
        self.path, self.what, self.say = path, what, say
        self.me = {
            "host": platform.node(),
            "boot": boot(),
            "pid": os.getpid(),
            "start": start_of(os.getpid()),
            "job": os.environ.get("SLURM_JOB_ID", ""),
            "restart": os.environ.get("SLURM_RESTART_COUNT", "0"),
            "token": uuid4().hex,
        }
        self._ended = threading.Event()

    def take(self) -> None:
        """Take the lock; UserError if somebody alive has it."""
        while not self._try():
            holder = read(self.path)
            if holder is None:
                continue  # it went away, or was empty for good reason: look again
            if self._lives(holder):
                who = f"process {holder['pid']} on {holder['host']}" + (
                    f", job {holder['job']}" if holder["job"] else ""
                )
                raise UserError(f"{self.what}: expected that no other job works on it, found {who} at work")
            self.say(f"the lock of a job that died ({holder['host']}, process {holder['pid']}) is taken over")
            self._remove(holder)
        threading.Thread(target=self._beat, daemon=True).start()

    def holder(self) -> str | None:
        """Who holds the lock, if somebody alive does; it is left as it is."""
        holder = read(self.path)
        return f"process {holder['pid']} on {holder['host']}" if holder is not None and self._lives(holder) else None

    def release(self) -> None:
        """Give the lock back, if it is still ours."""
        self._ended.set()
        with suppress(OSError, UserError):
            if self._is_of(self.me):
                self.path.unlink()

    def keep(self) -> bool:
        """Whether we still have the lock; where somebody has removed it, we take it again."""
        return self._is_of(self.me) or (not self.path.exists() and self._try())

    def _try(self) -> bool:
        beside = self.path.with_name(f"{self.path.name}.{self.me['token']}")
        try:
            file = os.open(beside, os.O_RDWR | os.O_CREAT, 0o666)
            self._write(file, 0)
            os.link(beside, self.path)
        except FileExistsError:
            os.close(file)
            return False
        except OSError as error:
            raise UserError(f"{self.path}: expected a place to write to, found {error.strerror}") from None
        finally:
            with suppress(OSError):
                beside.unlink()
        self._file = file  # of our own lock: what we write there later cannot hit that of another
        return True

    def _write(self, file: int, beat: int) -> None:
        os.pwrite(file, json.dumps({**self.me, "beat": f"{beat:09d}"}).encode(), 0)
        os.fsync(file)

    def _lives(self, holder: dict[str, Any]) -> bool:
        if holder["job"] and holder["job"] == self.me["job"] and holder["restart"] != self.me["restart"]:
            return False  # Slurm runs a requeued job again only when it has ended
        if (holder["host"], holder["boot"]) == (self.me["host"], self.me["boot"]):
            return start_of(holder["pid"]) == holder["start"]
        self.say(f"{self.path}: held by a job on {holder['host']}; waiting up to {PATIENCE:.0f} s for a sign of life")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            time.sleep(BEAT / 4)
            now = read(self.path)
            if now is None or now["token"] != holder["token"]:
                return now is not None
            if now["beat"] != holder["beat"]:
                return True
        return False

    def _remove(self, dead: dict[str, Any]) -> None:
        """Remove the lock of a dead job; who makes a file of its name first may do so, and looks again before."""
        claim, deadline = self.path.with_name(f"{self.path.name}.{dead['token']}"), time.monotonic() + PATIENCE
        while self._is_of(dead):
            try:
                os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                if time.monotonic() > deadline:  # who made it died as well
                    claim.unlink(missing_ok=True)
                time.sleep(BEAT / 4)
                continue
            if self._is_of(dead):
                self.path.unlink(missing_ok=True)
            claim.unlink(missing_ok=True)

    def _is_of(self, job: dict[str, Any]) -> bool:
        holder = read(self.path)
        return holder is not None and holder["token"] == job["token"]

    def _beat(self) -> None:
        beat = 0
        while not self._ended.wait(BEAT):
            beat += 1
            with suppress(OSError):
                self._write(self._file, beat)


def read(path: Path) -> dict[str, Any] | None:
    """Who holds a lock, if anybody does."""
    for _ in range(20):
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):  # being written just now
            time.sleep(0.05)
    raise UserError(f"{path}: expected the lock of a job, found something else; remove it if no job is at work")
