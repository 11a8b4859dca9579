"""One file that all ranks write to, each on its own, and how the ranks part from it when any may have given up."""

import errno
import os
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from parallel_et.parallel.communicator import Ranks

PIECE = 1 << 28
"""Bytes of one call: far from the 2 GiB at which the counts of older MPI libraries end."""
PATIENCE = 2.0
"""Seconds that a rank which gives up waits for the others."""
KNOWN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.ENOENT)
_kept: list[object] = []


class SharedFile:
    """A file that is there already, open on all ranks; to open and to close it all ranks must come."""

    def __init__(self, path: Path, ranks: Ranks) -> None:
        self.path = path
        try:
            self._file = MPI.File.Open(ranks.comm, str(path), MPI.MODE_RDWR)
        except MPI.Exception as error:
            raise plain_error(error.Get_error_string(), path) from None

    def write(self, offset: int, array: np.ndarray) -> None:
        """Write a contiguous array at a byte offset, whatever the other ranks do."""
        raw, status = array.reshape(-1).view(np.uint8), MPI.Status()
        for start in range(0, len(raw), PIECE):
            piece = raw[start : start + PIECE]
            try:
                self._file.Write_at(offset + start, [piece, MPI.BYTE], status)
            except MPI.Exception as error:
                raise plain_error(error.Get_error_string(), self.path) from None
            if status.Get_count(MPI.BYTE) != len(piece):
                raise OSError(errno.EIO, f"{status.Get_count(MPI.BYTE)} of {len(piece)} bytes written", str(self.path))

    def close(self) -> None:
        """Close the file; collective."""
        self._file.Close()


class Farewell:
    """The end of something that was opened by all ranks together, and that any rank may have to leave alone.

    What is open on all ranks can only be closed by all together. A rank in trouble cannot know whether the others will
    ever come, so it waits a little and then goes; those that come later learn that it has gone.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._comm = ranks.comm.Dup()

    def say(self, done: bool) -> tuple[int | None, bool]:
        """Say that this rank is ``done``, or else that it gives up.

        Returns
        -------
        the lowest rank that gave up, if one did and this rank still learned it; whether all ranks are here, so that
        they can close together
        """
        here, size = self._comm.rank, self._comm.size
        lowest = self._lowest(size if done else here, None if done else PATIENCE)
        # All that have spoken have now heard the others or run out of patience: nobody waits long in this round.
        together = self._lowest(int(lowest is not None), 0.0 if lowest is None else None)
        if together == 1:
            self._comm.Free()
        return None if lowest == size else lowest, together == 1

    def _lowest(self, mine: int, patience: float | None) -> int | None:
        value, least = np.array([mine]), np.empty(1, int)
        request = self._comm.Iallreduce(value, least, MPI.MIN)
        begun = time.monotonic()
        while not request.Test():
            if patience is not None and time.monotonic() - begun > patience:
                keep(self, value, least, request)
                return None
            time.sleep(0.001)
        return int(least[0])


def plain_error(text: str, path: Path) -> OSError:
    """The error that MPI tells of in many lines, as the system would have told it."""
    known = [number for number in KNOWN if os.strerror(number) in text]
    number, words = (known[0], os.strerror(known[0])) if known else (errno.EIO, text.strip().splitlines()[-1].strip())
    return OSError(number, words, str(path))


def keep(*things: object) -> None:
    """Keep these for ever: what only all can close must not be closed by one rank's garbage collector."""
    _kept.extend(things)
