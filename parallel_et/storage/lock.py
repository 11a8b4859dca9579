"""The lock of a run directory, which admits one job at a time. The lock of a dead job is recognised from any node."""

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

from parallel_et.control.process import boot_id, pid_namespace, process_start_ticks
from parallel_et.errors import UserError
from parallel_et.storage.atomic import unwritable_reason

HEARTBEAT_SECONDS = 2.0
"""Seconds between two heartbeats of the holder."""
HEARTBEAT_TIMEOUT_SECONDS = 10.0
"""Seconds without a heartbeat after which a holder on another node, or in another container, is dead."""
REREAD_SECONDS = 0.05
"""Seconds between two attempts to read an unreadable lock."""
MAX_LOCK_BYTES = 1 << 14
"""Largest size of a lock, in bytes."""


class Lock:
    """A file that names the holder of a directory; a growing number in the file is the holder's heartbeat.

    The file system must only refuse hard links to an existing name.

    Parameters
    ----------
    path : the file
    what : description of the locked directory, for messages
    log : prints a line
    """

    def __init__(self, path: Path, what: str, log: Callable[[str], None] = print) -> None:
        self.path, self.what, self.log = path, what, log
        self.me = {
            "host": platform.node(),
            "boot": boot_id(),
            "space": pid_namespace(),
            "pid": os.getpid(),
            "start": process_start_ticks(os.getpid()),
            "job": os.environ.get("SLURM_JOB_ID", ""),
            "restart": os.environ.get("SLURM_RESTART_COUNT", "0"),
            "token": uuid4().hex,
        }
        self._ended = threading.Event()

    def take(self) -> None:
        """Take the lock; UserError if a live job holds it."""
        while not self._try():
            holder = read(self.path)
            if holder is None:
                continue  # it was just removed, or is being written: read it again
            if self._is_alive(holder):
                who = f"process {holder['pid']} on {holder['host']}" + (
                    f", job {holder['job']}" if holder["job"] else ""
                )
                raise UserError(f"{self.what}: expected that no other job works on it, found {who}")
            self.log(f"the lock of a job that died ({holder['host']}, process {holder['pid']}) is taken over")
            self._remove(holder)
        threading.Thread(target=self._beat, daemon=True).start()

    def holder(self) -> str | None:
        """Return the holder of the lock, if a live job holds it, without taking the lock."""
        holder = read(self.path)
        return f"process {holder['pid']} on {holder['host']}" if holder is not None and self._is_alive(holder) else None

    def release(self) -> None:
        """Remove the lock if this job still holds it."""
        self._ended.set()
        with suppress(OSError, UserError):
            if self._is_of(self.me):
                self.path.unlink()

    def keep(self) -> bool:
        """Return whether this job holds the lock, after taking a removed lock again."""
        return self._is_of(self.me) or (not self.path.exists() and self._try())

    def _try(self) -> bool:
        temporary = self.path.with_name(f"{self.path.name}.{self.me['token']}")
        with self._refuse_unwritable():
            file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with self._refuse_unwritable():
                self._write(file, 0)
                os.link(temporary, self.path)
        except (FileExistsError, UserError) as error:
            os.close(file)
            if isinstance(error, FileExistsError):
                return False
            raise
        finally:
            with suppress(OSError):
                temporary.unlink()
        self._file = file  # an open file: later heartbeats cannot reach the lock of another job
        return True

    @contextmanager
    def _refuse_unwritable(self) -> Iterator[None]:
        """Translate an OSError into one line that explains why the lock cannot be written. FileExistsError passes."""
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            why = unwritable_reason(self.path, error)
            raise UserError(f"{self.what}: expected a place to write to, found {why}") from None

    def _write(self, file: int, beat: int) -> None:
        os.pwrite(file, json.dumps({**self.me, "beat": f"{beat:09d}"}).encode(), 0)
        os.fsync(file)

    def _is_alive(self, holder: dict[str, Any]) -> bool:
        if holder["job"] and holder["job"] == self.me["job"] and holder["restart"] != self.me["restart"]:
            return False  # Slurm restarts a requeued job only after its end
        if self.me["space"] and all(holder[key] == self.me[key] for key in ("host", "boot", "space")):
            return process_start_ticks(holder["pid"]) == holder["start"]  # elsewhere the process id means nothing
        wait = f"waiting up to {HEARTBEAT_TIMEOUT_SECONDS:.0f} s for a heartbeat"
        self.log(f"{self.path}: held by a job on {holder['host']}; {wait}")
        deadline = time.monotonic() + HEARTBEAT_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            time.sleep(HEARTBEAT_SECONDS / 4)
            now = read(self.path)
            if now is None or now["token"] != holder["token"]:
                return now is not None
            if now["beat"] != holder["beat"]:
                return True
        return False

    def _remove(self, dead: dict[str, Any]) -> None:
        """Remove the lock of a dead job. A claim file admits one process, which checks the lock again."""
        claim, deadline = (
            self.path.with_name(f"{self.path.name}.{dead['token']}"),
            time.monotonic() + HEARTBEAT_TIMEOUT_SECONDS,
        )
        while self._is_of(dead):
            try:
                with self._refuse_unwritable():
                    os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                    if self._is_of(dead):
                        self.path.unlink(missing_ok=True)
                    claim.unlink(missing_ok=True)
            except FileExistsError:
                if time.monotonic() > deadline:  # the process that claimed the lock died as well
                    with self._refuse_unwritable():
                        claim.unlink(missing_ok=True)
                time.sleep(HEARTBEAT_SECONDS / 4)

    def _is_of(self, job: dict[str, Any]) -> bool:
        holder = read(self.path)
        return holder is not None and holder["token"] == job["token"]

    def _beat(self) -> None:
        beat = 0
        while not self._ended.wait(HEARTBEAT_SECONDS):
            beat += 1
            with suppress(OSError):
                self._write(self._file, beat)


def read(path: Path) -> dict[str, Any] | None:
    """Return the holder of a lock, None if there is no lock."""
    for _ in range(20):
        content = _content(path)
        if content is None:
            return None
        try:
            holder = {"space": "", **json.loads(content)}
        except (ValueError, TypeError, RecursionError):
            holder = {}
        if all(good(holder.get(key)) for key, good in FIELDS.items()):
            return holder
        time.sleep(REREAD_SECONDS)  # another job may be writing it
    raise _not_a_lock(path, "something else")


def _content(path: Path) -> bytes | None:
    """Return the beginning of a file, None if there is no file. Links are not followed, and pipes do not block."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_a_lock(path, "a symbolic link" if path.is_symlink() else error.strerror) from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _not_a_lock(path, "no plain file")
        content = os.read(file, MAX_LOCK_BYTES + 1)
    except OSError:  # on shared file systems: another node has just removed it
        content = b""
    finally:
        os.close(file)
    if len(content) > MAX_LOCK_BYTES:
        raise _not_a_lock(path, "a long file")
    return content


def _not_a_lock(path: Path, found: str | None) -> UserError:
    return UserError(f"{path}: expected the lock of a job, found {found}; remove it if no job is running")


def _is_printable(value: object) -> bool:
    """Return whether a value of a lock can be printed."""
    return isinstance(value, str) and len(value) < 1000 and value.isprintable()


FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("host", "boot", "start", "job", "restart", "space"), _is_printable),
    "pid": lambda value: type(value) is int and 0 < value < 1 << 31,
    "token": lambda value: isinstance(value, str) and re.fullmatch("[0-9A-Za-z]{1,64}", value) is not None,
    "beat": lambda value: type(value) in (int, str),
}
"""Keys of a lock, and checks of their values. The token becomes part of a file name."""
