"""When to stop before the end: on a signal, near a time limit, or when a file asks for it."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntFlag
from pathlib import Path

from parallel_et.process import age, tell

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
AT_ONCE = 1.0
"""Signals within so many seconds of the first are the same wish, which came on several ways."""
LOOK = 1.0
"""Seconds between two looks for the file."""
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
    """Watches for wishes to stop, from now to the end of the process. A second signal ends it at once.

    A signal wakes a thread, so that it is heard also while the program waits for other ranks or is deep in a kernel.

    Parameters
    ----------
    limit : seconds since the start of the process
    file : whose appearance means stop; only looked for where it is given
    """

    def __init__(self, limit: float | None = None, file: Path | None = None) -> None:
        limits = [time.monotonic() - age() + limit] if limit is not None else []
        if (end := os.environ.get("SLURM_JOB_END_TIME", "")).isdigit():
            limits.append(time.monotonic() + float(end) - time.time() - MARGIN)
        self.ends = min(limits, default=float("inf"))
        self.file = file
        self.signal = ""
        self._looked = 0.0
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        first = 0.0
        while received := self._read.recv(1):
            number = received[0]
            if number not in SIGNALS:
                continue
            if not self.signal:
                first, self.signal = time.monotonic(), signal.Signals(number).name
            elif time.monotonic() > first + AT_ONCE:
                tell(f"a second signal, {signal.Signals(number).name}: ended at once", sys.stderr)
                os._exit(128 + number)

    def wish(self, needed: float) -> Wish:
        """What this rank wishes now, if the next safe point is ``needed`` seconds away."""
        now = time.monotonic()
        wish = Wish.SIGNAL if self.signal else Wish.NONE
        if now + needed > self.ends:
            wish |= Wish.TIME
        if self.file is not None and now > self._looked + LOOK:
            self._looked = now
            if os.path.exists(self.file):  # false where the file system does not answer
                wish |= Wish.FILE
        return wish


@contextmanager
def signals_restored() -> Iterator[None]:
    """After a command that watches for signals, as a part of something longer, whoever watched before does so again."""
    handlers = [signal.getsignal(number) for number in SIGNALS]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number, handler in zip(SIGNALS, handlers, strict=True):
            if handler is not None:  # else it was set by a library, and is not to be had
                signal.signal(number, handler)
