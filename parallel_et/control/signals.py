"""The signals that ask a command to stop, heard from its first line on: so light that it can come first."""

import atexit
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
AT_ONCE = 1.0
"""Signals within so many seconds of the first are the same wish, which came on several ways."""
STOPPED = 75
"""Exit code of a command that stopped early on purpose and can go on."""
NOT_BEGUN = "stopped by a signal before it began; the same command goes on"
WILL_STOP = "Ctrl-C: stops {}; once more ends it at once"


class Listener:
    """Hears signals from now on. A second one ends the process at once.

    A signal wakes a thread, so that it is heard also while the program waits for other ranks or is deep in a kernel.
    Ctrl-C (SIGINT) is answered at once, as somebody waits; where it is ignored, as in the background of a script, it
    stays so.

    Parameters
    ----------
    answers : whether this process is the one that answers
    """

    def __init__(self, answers: bool) -> None:
        self.heard, self.answers, self.when = "", answers, "before it begins"
        ignored = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else []
        self.signals = [number for number in SIGNALS if number not in ignored]
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.take()
        threading.Thread(target=self._listen, daemon=True).start()

    def take(self) -> None:
        """Have the signals, also after a library has put its own handlers before ours."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self.signals:
            signal.signal(number, lambda *_: None)

    def end(self) -> None:
        """Hear no more; whoever had the signals before is to take them again."""
        signal.set_wakeup_fd(-1)
        os.close(self._write)

    def _listen(self) -> None:
        first = 0.0
        while received := os.read(self._read, 1):
            number = received[0]
            if number not in self.signals:
                continue
            name = signal.Signals(number).name
            if not self.heard:
                first, self.heard = time.monotonic(), name
                if number == signal.SIGINT and self.answers:
                    with suppress(OSError):  # on a line of its own: the terminal shows ^C where the cursor is
                        os.write(2, f"\n{WILL_STOP.format(self.when)}\n".encode())
            elif time.monotonic() > first + AT_ONCE:
                with suppress(OSError):
                    os.write(2, f"a second signal, {name}: ended at once\n".encode())
                os._exit(128 + number)
        os.close(self._read)


_listener: Listener | None = None


def ignore_at_exit() -> None:
    """Once all is done and said, and Python takes itself apart, a signal changes nothing any more.

    Python would have the system's handlers back then, by which a process ends as if it had failed.
    """
    atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in SIGNALS])


def listen(answers: bool = True) -> None:
    """Hear signals from now on; who does so already has them back."""
    global _listener
    if _listener is None:
        _listener = Listener(answers)
    else:
        _listener.take()


@contextmanager
def stops(when: str) -> Iterator[None]:
    """When a command that listens will stop, for those who ask it to by Ctrl-C in this block."""
    if (listener := _listener) is None:
        yield
        return
    before, listener.when = listener.when, when
    try:
        yield
    finally:
        listener.when = before


def heard() -> str:
    """The name of the first signal since this process listens; "" if there was none."""
    return "" if _listener is None else _listener.heard


@contextmanager
def signals_restored() -> Iterator[None]:
    """After a command that listens, as a part of a script that does not, all signals do what they did before."""
    global _listener
    if _listener is not None:  # it goes on listening, and has not forgotten what it heard
        yield
        return
    handlers = [signal.getsignal(number) for number in SIGNALS]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    try:
        yield
    finally:
        if _listener is not None:
            _listener.end()
            _listener = None
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number, handler in zip(SIGNALS, handlers, strict=True):
            if handler is not None:  # else it was set by a library, and is not to be had
                signal.signal(number, handler)
