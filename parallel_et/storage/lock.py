"""The lock of a run directory: one job at a time; that of a dead one is recognised, also from another node."""

import json
import os
import platform
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from parallel_et.control.process import boot, namespace, start_of
from parallel_et.errors import UserError
from parallel_et.storage.atomic import why_no_place

BEAT = 2.0
"""Seconds between two signs of life of the holder."""
PATIENCE = 10.0
"""Seconds without one after which a holder on another node, or in another container, is dead."""
GLANCE = 0.05
"""Seconds between two looks at a lock that cannot be read."""
MOST = 1 << 14
"""Bytes of a lock."""


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
            "space": namespace(),
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
        with self._writing():
            file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with self._writing():
                self._write(file, 0)
                os.link(beside, self.path)
        except (FileExistsError, UserError) as error:
            os.close(file)
            if isinstance(error, FileExistsError):
                return False
            raise
        finally:
            with suppress(OSError):
                beside.unlink()
        self._file = file  # of our own lock: what we write there later cannot hit that of another
        return True

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say in one line why nothing can be written there; that a name is taken is no such reason."""
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            why = why_no_place(self.path, error)
            raise UserError(f"{self.what}: expected a place to write to, found {why}") from None

    def _write(self, file: int, beat: int) -> None:
        os.pwrite(file, json.dumps({**self.me, "beat": f"{beat:09d}"}).encode(), 0)
        os.fsync(file)

    def _lives(self, holder: dict[str, Any]) -> bool:
        if holder["job"] and holder["job"] == self.me["job"] and holder["restart"] != self.me["restart"]:
            return False  # Slurm runs a requeued job again only when it has ended
        if self.me["space"] and all(holder[key] == self.me[key] for key in ("host", "boot", "space")):
            return start_of(holder["pid"]) == holder["start"]  # else its number means nothing here
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
                with self._writing():
                    os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                    if self._is_of(dead):
                        self.path.unlink(missing_ok=True)
                    claim.unlink(missing_ok=True)
            except FileExistsError:
                if time.monotonic() > deadline:  # who made it died as well
                    with self._writing():
                        claim.unlink(missing_ok=True)
                time.sleep(BEAT / 4)

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
        content = _content(path)
        if content is None:
            return None
        try:
            holder = {"space": "", **json.loads(content)}
        except (ValueError, TypeError, RecursionError):
            holder = {}
        if all(good(holder.get(key)) for key, good in WANTED.items()):
            return holder
        time.sleep(GLANCE)  # it may be being written just now
    raise _no_lock(path, "something else")


def _content(path: Path) -> bytes | None:
    """The beginning of a file, none if there is no file; a link is not followed, a pipe not waited for."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _no_lock(path, "a symbolic link" if path.is_symlink() else error.strerror) from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _no_lock(path, "no plain file")
        content = os.read(file, MOST + 1)
    except OSError:  # on shared file systems: somebody has just removed it
        content = b""
    finally:
        os.close(file)
    if len(content) > MOST:
        raise _no_lock(path, "a long file")
    return content


def _no_lock(path: Path, found: str | None) -> UserError:
    return UserError(f"{path}: expected the lock of a job, found {found}; remove it if no job is at work")


def _word(value: object) -> bool:
    """Whether a value of a lock can be shown to people."""
    return isinstance(value, str) and len(value) < 1000 and value.isprintable()


WANTED: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("host", "boot", "start", "job", "restart", "space"), _word),
    "pid": lambda value: type(value) is int and 0 < value < 1 << 31,
    "token": lambda value: isinstance(value, str) and re.fullmatch("[0-9A-Za-z]{1,64}", value) is not None,
    "beat": lambda value: type(value) in (int, str),
}
"""What a lock says, and whether it can be: the token becomes part of the name of a file."""
