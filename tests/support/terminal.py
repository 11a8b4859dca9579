"""A pseudo-terminal that runs a command and receives keys."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
from pathlib import Path
from threading import Thread

from launch import CLEAN, TIMEOUT_SECONDS, command

CTRL_C = b"\x03"


class Terminal:
    """A terminal that runs ``python -m parallel_et name args`` on some ranks (``None``: without mpirun).

    As for a user, the terminal converts Ctrl-C to a signal to all processes of its foreground group.
    """

    def __init__(self, ranks: int | None, name: str, *args: object, cwd: Path, **env: str) -> None:
        self._keyboard, inside = pty.openpty()
        self.process = subprocess.Popen(
            command(ranks, "-m", "parallel_et", name, *args),
            cwd=cwd,
            env={**CLEAN, **env},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=self._take_terminal,
        )
        os.close(inside)
        self._shown = bytearray()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    @staticmethod
    def _take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # background processes ignore SIGINT

    def _read(self) -> None:
        while True:
            try:
                self._shown += os.read(self._keyboard, 1 << 16)
            except OSError:  # all processes have closed the terminal
                return

    @property
    def output(self) -> str:
        """Output of the terminal so far."""
        return self._shown.decode(errors="replace").replace("\r\n", "\n")

    def type(self, keys: bytes = CTRL_C) -> None:
        """Send keys to the terminal."""
        os.write(self._keyboard, keys)

    def wait(self) -> int:
        """Wait for the end of the command and of its output. Return the exit code."""
        code = self.process.wait(TIMEOUT_SECONDS)
        self._reader.join(TIMEOUT_SECONDS)
        os.close(self._keyboard)
        return code
