"""Requests to stop early: a signal, a time limit, or a file."""

import os
import time
from enum import IntFlag
from pathlib import Path

from parallel_et.control.process import process_age_seconds
from parallel_et.control.signals import listen_for_signals, received_signal

FILE_CHECK_SECONDS = 1.0
"""Time between two checks for the file."""
TIME_LEFT = "PARALLEL_ET_TIME_LEFT"
"""Environment variable: seconds from the start of a process to the time limit of a batch system."""
EXIT_MARGIN_SECONDS = 10.0
"""Time for the program to exit before the time limit of a batch system."""


class Request(IntFlag):
    """The requests that a rank may have after an iteration. Ranks combine them by ``Ranks.bitwise_or``."""

    NONE = 0
    CHECKPOINT = 1
    SIGNAL = 2
    TIME = 4
    FILE = 8
    STOP = 14

    def reasons(self) -> str:
        """Return the reasons to stop, for messages."""
        reasons = {Request.SIGNAL: "a signal", Request.TIME: "the time limit", Request.FILE: "the file stop"}
        return " and ".join(text for request, text in reasons.items() if request in self)


class StopMonitor:
    """A monitor of requests to stop, including signals since the start of the command.

    Parameters
    ----------
    limit : seconds since the start of the process
    file : file that requests to stop as soon as it exists
    """

    def __init__(self, limit: float | None = None, file: Path | None = None) -> None:
        limits = [time.monotonic() - process_age_seconds() + limit] if limit is not None else []
        if (left := os.environ.get(TIME_LEFT, "")).isdigit():
            limits.append(time.monotonic() - process_age_seconds() + int(left) - EXIT_MARGIN_SECONDS)
        elif (end := os.environ.get("SLURM_JOB_END_TIME", "")).isdigit():
            limits.append(time.monotonic() + float(end) - time.time() - EXIT_MARGIN_SECONDS)
        self.ends = min(limits, default=float("inf"))
        self.file = file
        self._checked = 0.0
        listen_for_signals()

    def requested(self, needed: float) -> Request:
        """Return the requests of this rank to stop now, if the next opportunity is ``needed`` seconds away."""
        now = time.monotonic()
        request = Request.SIGNAL if received_signal() else Request.NONE
        if now + needed > self.ends:
            request |= Request.TIME
        if self.file is not None and now > self._checked + FILE_CHECK_SECONDS:
            self._checked = now
            if os.path.exists(self.file):  # False if the file system does not answer
                request |= Request.FILE
        return request
