"""Files read in a process of their own: there are some at which the libraries that read them crash, or never end.

The process is started anew by its program, never forked from this one, which has MPI; it imports no MPI. It reads a
request a line, (module, function, arguments), and answers with a line and the bytes of arrays, if there are any.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from parallel_et.control.process import free_bytes
from parallel_et.errors import UserError

SECONDS = 8.0
"""Of the processor for a file, and one more for each ``BYTES`` of it."""
BYTES = 10_000_000
OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals to a command, which the process leaves to the one that asks."""


LAUNCHERS = ("PMI", "OMPI", "MPI", "HYD")
"""What the variables begin with that make a process a rank, which this one is not."""


class Apart:
    """A process that reads files; it begins with the first, and anew after one that it did not survive."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._path, self._seconds = "", SECONDS

    def ask(self, path: str, module: str, function: str, *args: str) -> list[np.ndarray]:
        """The arrays that a function makes of a file."""
        if self._process is None:
            self._process = self._start()
        size = os.path.getsize(path) if os.path.exists(path) else 0
        process, self._path, self._seconds = self._process, path, SECONDS + size / BYTES
        assert process.stdin is not None
        assert process.stdout is not None
        answer: dict[str, Any] | None = None
        with suppress(OSError, EOFError, ValueError):
            process.stdin.write(json.dumps([[module, function, path, *args], self._seconds]).encode() + b"\n")
            process.stdin.flush()
            if (answer := json.loads(process.stdout.readline() or "null")) and "arrays" in answer:
                return [_receive(process.stdout, *array) for array in answer["arrays"]]
        if answer and "error" in answer:
            raise UserError(answer["error"])
        self.close()
        raise UserError(f"{path}: expected a sound file, found one of which the process that reads it said nothing")

    def close(self) -> None:
        """End the process; UserError if that is not how it ends."""
        if self._process is None:
            return
        with suppress(OSError):
            self._process.communicate()
        code, self._process = self._process.wait(), None
        if code == -signal.SIGPROF:
            found = f"that takes the library which reads it more than {self._seconds:.1f} s"
        else:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            found = f"at which the library that reads it crashes ({how})"
        if code:
            raise UserError(f"{self._path}: expected a sound file, found one {found}")

    def __enter__(self) -> "Apart":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, OURS)
        try:
            return self._launch()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _launch(self) -> subprocess.Popen[bytes]:
        paths = [*sys.path, str(Path(__file__).parents[2])]
        program = f"import sys; sys.path[:] = {paths!r}; from {__name__} import serve; serve()"
        return subprocess.Popen(
            [sys.executable, "-P", "-S", "-c", program],  # nothing is imported but what is asked for, least of all MPI
            env={key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # who interrupts a command means this process
        )


def _receive(pipe: Any, shape: Sequence[int], dtype: str) -> np.ndarray:
    array = np.empty(shape, dtype)
    room = array.reshape(-1).view(np.uint8)
    while len(room):
        if not (count := pipe.readinto(room)):
            raise EOFError
        room = room[count:]
    return array


def serve() -> None:
    """Answer until nobody asks any more."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (free_bytes(), resource.getrlimit(resource.RLIMIT_DATA)[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        (module, function, *args), seconds = json.loads(line)
        call = getattr(import_module(module), function)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        arrays: list[np.ndarray] = []
        try:
            arrays = [np.ascontiguousarray(array) for array in call(*args)]
            answer: dict[str, Any] = {"arrays": [(array.shape, array.dtype.str) for array in arrays]}
        except UserError as error:
            answer = {"error": str(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(answer).encode() + b"\n")
        for array in arrays:
            answers.write(array.reshape(-1).view(np.uint8).data)
        answers.flush()
