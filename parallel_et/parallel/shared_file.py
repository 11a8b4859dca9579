"""A file that all ranks write independently, and its collective end, even if some ranks have given up."""

import errno
import os
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from parallel_et.parallel.communicator import Ranks

MAX_WRITE_BYTES = 1 << 28
"""Bytes of one MPI call, well below the limit of 2 GiB in older MPI libraries."""
GIVE_UP_SECONDS = 2.0
"""Time that a rank which gives up waits for the other ranks."""
SYSTEM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.ENOENT)
_kept_forever: list[object] = []


class SharedFile:
    """An existing file, open on all ranks. All ranks open and close it together."""

    def __init__(self, path: Path, ranks: Ranks) -> None:
        self.path = path
        try:
            self._file = MPI.File.Open(ranks.comm, str(path), MPI.MODE_RDWR)
        except MPI.Exception as error:
            raise system_error(error.Get_error_string(), path) from None

    def write(self, offset: int, array: np.ndarray) -> None:
        """Write a contiguous array at a byte offset, independently of the other ranks."""
        raw, status = array.reshape(-1).view(np.uint8), MPI.Status()
        for start in range(0, len(raw), MAX_WRITE_BYTES):
            piece = raw[start : start + MAX_WRITE_BYTES]
            try:
                self._file.Write_at(offset + start, [piece, MPI.BYTE], status)
            except MPI.Exception as error:
                raise system_error(error.Get_error_string(), self.path) from None
            if status.Get_count(MPI.BYTE) != len(piece):
                raise OSError(errno.EIO, f"{status.Get_count(MPI.BYTE)} of {len(piece)} bytes written", str(self.path))

    def close(self) -> None:
        """Close the file; collective."""
        self._file.Close()


class ClosingHandshake:
    """The end of the work on a file that all ranks opened, and that all ranks must close together.

    A rank with an error cannot know whether the other ranks will ever arrive. It waits for a short time and then gives
    up. The ranks that arrive later learn this.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._comm = ranks.comm.Dup()

    def finish(self, done: bool) -> tuple[int | None, bool]:
        """Announce that this rank is ``done`` or gives up.

        Returns
        -------
        the lowest rank that gave up, or None if there is none or this rank gave up too early to learn it; and whether
        all ranks have arrived, so that they can close the file together
        """
        rank, size = self._comm.rank, self._comm.size
        lowest = self._minimum(size if done else rank, None if done else GIVE_UP_SECONDS)
        # Every rank that gets here knows the result of the first round or has given up, so the second round is short.
        complete = self._minimum(int(lowest is not None), 0.0 if lowest is None else None)
        if complete == 1:
            self._comm.Free()
        return None if lowest == size else lowest, complete == 1

    def _minimum(self, value: int, timeout: float | None) -> int | None:
        """Return the minimum of the values of all ranks, or None if some ranks are late."""
        sent, minimum = np.array([value]), np.empty(1, int)
        request = self._comm.Iallreduce(sent, minimum, MPI.MIN)
        started = time.monotonic()
        while not request.Test():
            if timeout is not None and time.monotonic() - started > timeout:
                keep_forever(self, sent, minimum, request)
                return None
            time.sleep(0.001)
        return int(minimum[0])


def system_error(text: str, path: Path) -> OSError:
    """Return the system error behind the message of an MPI error, which has many lines."""
    for number in SYSTEM_ERRORS:
        if os.strerror(number) in text:
            return OSError(number, os.strerror(number), str(path))
    return OSError(errno.EIO, text.strip().splitlines()[-1].strip(), str(path))


def keep_forever(*things: object) -> None:
    """Keep objects from the garbage collector of one rank, as only all ranks together can close them."""
    _kept_forever.extend(things)
