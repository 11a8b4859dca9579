"""The signals that request a command to stop. The module loads fast, as commands listen from their first line on."""

import atexit
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
SAME_REQUEST_SECONDS = 1.0
"""Time after the first signal in which more signals count as the same request, sent in several ways."""
EXIT_STOPPED = 75
"""Exit code of a command that stopped early and can be resumed."""
STOPPED_BEFORE_START = "stopped by a signal before the start; the same command resumes"
CTRL_C_REPLY = "Ctrl-C: stops {}; press it again to end at once"


class Listener:
    """A listener that stores the first signal. A second signal ends the process at once.

    A signal wakes a thread, so that the process can react while it waits for other ranks or runs a kernel. Ctrl-C
    (SIGINT) is answered at once, as a user waits at the terminal. If SIGINT is ignored, as in the background of a
    script, it stays ignored.

    Parameters
    ----------
    answers : whether this process answers to Ctrl-C
    """

    def __init__(self, answers: bool) -> None:
        self.received = ""
        self.answers = answers
        self.stop_time = "before it starts"
        ignored = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else []
        self.signals = [number for number in SIGNALS if number not in ignored]
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.install()
        threading.Thread(target=self._listen, daemon=True).start()

    def install(self) -> None:
        """Install the handlers, again if a library has replaced them."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self.signals:
            signal.signal(number, lambda *_: None)

    def stop(self) -> None:
        """Stop listening. The caller restores the earlier handlers."""
        signal.set_wakeup_fd(-1)
        os.close(self._write)

    def _listen(self) -> None:
        """Store the first signal, and exit at the second."""
        first = 0.0
        while received := os.read(self._read, 1):
            number = received[0]
            if number not in self.signals:
                continue
            name = signal.Signals(number).name
            if not self.received:
                first, self.received = time.monotonic(), name
                if number == signal.SIGINT and self.answers:
                    with suppress(OSError):  # the terminal shows ^C at the cursor, so begin a new line
                        os.write(2, f"\n{CTRL_C_REPLY.format(self.stop_time)}\n".encode())
            elif time.monotonic() > first + SAME_REQUEST_SECONDS:
                with suppress(OSError):
                    os.write(2, f"a second signal, {name}: ended at once\n".encode())
                os._exit(128 + number)
        os.close(self._read)


_listener: Listener | None = None


def ignore_at_exit() -> None:
    """Ignore signals while Python shuts down after the work is done.

    Python restores the default handlers then, and a signal would end the process with an error.
    """
    atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in SIGNALS])


def listen_for_signals(answers: bool = True) -> None:
    """Listen for signals from now on, or install the handlers again."""
    global _listener
    if _listener is None:
        _listener = Listener(answers)
    else:
        _listener.install()


@contextmanager
def ctrl_c_reply(stop_time: str) -> Iterator[None]:
    """Set the stop time that the reply to Ctrl-C names within this block, such as "after this iteration"."""
    if (listener := _listener) is None:
        yield
        return
    before, listener.stop_time = listener.stop_time, stop_time
    try:
        yield
    finally:
        listener.stop_time = before


def received_signal() -> str:
    """Return the name of the first signal that this process received, or ""."""
    return "" if _listener is None else _listener.received


@contextmanager
def signals_restored() -> Iterator[None]:
    """Restore all handlers at the end of the block, in which a script that does not listen may run commands."""
    global _listener
    if _listener is not None:  # the process keeps listening
        yield
        return
    handlers = [signal.getsignal(number) for number in SIGNALS]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    try:
        yield
    finally:
        if _listener is not None:
            _listener.stop()
            _listener = None
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number, handler in zip(SIGNALS, handlers, strict=True):
            if handler is not None:  # None: a library has set it in C, and Python cannot restore it
                signal.signal(number, handler)
