"""Reading of files in another process, as some damaged files crash their library or never end.

The process is started as a new program, not forked from this one, and does not import MPI.
It reads one request per line: module, function, arguments.
It answers with a line, and with the bytes of the arrays.
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

from parallel_et.control.process import available_bytes
from parallel_et.errors import UserError

TIMEOUT_SECONDS = 8.0
"""Processor seconds for a file, in addition to those for its size."""
BYTES_PER_SECOND = 10_000_000
"""Bytes of a file that add one processor second."""
COMMAND_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that the reading process ignores, as the command handles them."""
LAUNCHER_PREFIXES = ("PMI", "OMPI", "MPI", "HYD")
"""Prefixes of environment variables that would make the reading process a rank."""


class SubprocessReader:
    """A process that reads files. It starts with the first file, and again after a file that crashed it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._path, self._seconds = "", TIMEOUT_SECONDS

    def call(self, path: str, module: str, function: str, *args: str) -> list[np.ndarray]:
        """Return the arrays that ``module.function(path, *args)`` reads from a file."""
        if self._process is None:
            self._process = self._start()
        size = os.path.getsize(path) if os.path.exists(path) else 0
        process, self._path, self._seconds = self._process, path, TIMEOUT_SECONDS + size / BYTES_PER_SECOND
        assert process.stdin is not None
        assert process.stdout is not None
        answer: dict[str, Any] | None = None
        with suppress(OSError, EOFError, ValueError):
            request = [[module, function, path, *args], self._seconds, os.getcwd()]  # paths are relative to the caller
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            if (answer := json.loads(process.stdout.readline() or "null")) and "arrays" in answer:
                return [_receive(process.stdout, *array) for array in answer["arrays"]]
        if answer and "error" in answer:
            raise UserError(answer["error"])
        self.close()
        raise UserError(f"{path}: expected a sound file, found one for which the reading process gave no answer")

    def close(self) -> None:
        """End the process; UserError if it has crashed."""
        if self._process is None:
            return
        with suppress(OSError):
            self._process.communicate()
        code, self._process = self._process.wait(), None
        if code == -signal.SIGPROF:
            found = f"that its library reads for more than {self._seconds:.1f} s"
        else:
            reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            found = f"on which its library crashes ({reason})"
        if code:
            raise UserError(f"{self._path}: expected a sound file, found one {found}")

    def __enter__(self) -> "SubprocessReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, COMMAND_SIGNALS)
        try:
            return self._launch()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _launch(self) -> subprocess.Popen[bytes]:
        paths = [*sys.path, str(Path(__file__).parents[2])]
        program = f"import sys; sys.path[:] = {paths!r}; from {__name__} import serve; serve()"
        return subprocess.Popen(
            [sys.executable, "-P", "-S", "-c", program],  # imports only the requested modules, and never MPI
            env={key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER_PREFIXES)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C interrupts the command only
        )


def _receive(pipe: Any, shape: Sequence[int], dtype: str) -> np.ndarray:
    array = np.empty(shape, dtype)
    missing = array.reshape(-1).view(np.uint8)
    while len(missing):
        if not (count := pipe.readinto(missing)):
            raise EOFError
        missing = missing[count:]
    return array


def serve() -> None:
    """Handle requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (available_bytes(), resource.getrlimit(resource.RLIMIT_DATA)[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of libraries goes elsewhere
    for line in sys.stdin:
        (module, function, *args), seconds, folder = json.loads(line)
        os.chdir(folder)
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
