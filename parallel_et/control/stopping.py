"""When to stop before the end: on a signal, near a time limit, or when a file asks for it."""

import os
import time
from enum import IntFlag
from pathlib import Path

from parallel_et.control.process import age
from parallel_et.control.signals import heard, listen

LOOK = 1.0
"""Seconds between two looks for the file."""
TIME_LEFT = "PARALLEL_ET_TIME_LEFT"
"""Environment variable: seconds that a batch system leaves a process from its start; no clock has to be right."""
MARGIN = 10.0
"""Seconds that a batch system's time limit is anticipated by, for the program to end."""


class Wish(IntFlag):
    """What may come up after an iteration; the wishes of all ranks are those of each."""

    NONE = 0
    CHECKPOINT = 1
    SIGNAL = 2
    TIME = 4
    FILE = 8
    STOP = 14

    def words(self) -> str:
        """Why to stop."""
        reasons = {Wish.SIGNAL: "a signal", Wish.TIME: "the time limit", Wish.FILE: "the file stop"}
        return " and ".join(text for wish, text in reasons.items() if wish in self)


class Stopping:
    """Watches for wishes to stop; signals that came since the command began count as well.

    Parameters
    ----------
    limit : seconds since the start of the process
    file : whose appearance means stop; only looked for where it is given
    """

    def __init__(self, limit: float | None = None, file: Path | None = None) -> None:
        limits = [time.monotonic() - age() + limit] if limit is not None else []
        if (left := os.environ.get(TIME_LEFT, "")).isdigit():
            limits.append(time.monotonic() - age() + int(left) - MARGIN)
        elif (end := os.environ.get("SLURM_JOB_END_TIME", "")).isdigit():
            limits.append(time.monotonic() + float(end) - time.time() - MARGIN)
        self.ends = min(limits, default=float("inf"))
        self.file = file
        self._looked = 0.0
        listen()

    def wish(self, needed: float) -> Wish:
        """What this rank wishes now, if the next safe point is ``needed`` seconds away."""
        now = time.monotonic()
        wish = Wish.SIGNAL if heard() else Wish.NONE
        if now + needed > self.ends:
            wish |= Wish.TIME
        if self.file is not None and now > self._looked + LOOK:
            self._looked = now
            if os.path.exists(self.file):  # false where the file system does not answer
                wish |= Wish.FILE
        return wish
