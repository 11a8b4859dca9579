"""A terminal of its own in which a command runs, and somebody who types."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
from pathlib import Path
from threading import Thread

from launch import CLEAN, PATIENCE, command

CTRL_C = b"\x03"


class Terminal:
    """``python -m parallel_et name args`` on some ranks (``None``: without mpirun) in a terminal of its own.

    What is typed goes the way that it goes at a desk: the terminal makes of Ctrl-C a signal to all processes in its
    foreground, which are mpirun and what it has not taken out of its group.
    """

    def __init__(self, ranks: int | None, name: str, *args: object, cwd: Path, **env: str) -> None:
        self._desk, inside = pty.openpty()
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
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests may run in the background of a script

    def _read(self) -> None:
        while True:
            try:
                self._shown += os.read(self._desk, 1 << 16)
            except OSError:  # the last one that had it open has gone
                return

    @property
    def said(self) -> str:
        """All that the terminal has shown so far."""
        return self._shown.decode(errors="replace").replace("\r\n", "\n")

    def type(self, keys: bytes = CTRL_C) -> None:
        """Press keys."""
        os.write(self._desk, keys)

    def wait(self) -> int:
        """The exit code, once the command has ended and all is shown."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        os.close(self._desk)
        return code
