"""The cache of compiled kernels: one directory for all ranks of a node and each version of the kernels.

Numba's own cache checks only the file of a kernel, not the functions that the kernel calls.
It trusts every file, and refuses a directory that is not writable.
Here the name of the directory is a hash of the source of all kernels, the versions of Python and Numba, and the
processor. Its content is therefore always up to date.
Every file carries a checksum, so a damaged file is compiled again. A complete directory may be read-only.
"""

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any

import numba
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba.core.caching import NullCache, _cache_log
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from parallel_et.errors import UserError
from parallel_et.kernels import cache_files

HERE = Path(__file__).parent
COMPILING = "the kernels are compiled for this processor, once; about 20 seconds"
VARIABLE = "NUMBA_CACHE_DIR"
SUFFIX = ".kernel"
lock = RLock()
"""Held by the thread that finds, loads or compiles a kernel."""
declared: dict[str, Callable[[], Any]] = {}
"""Functions that load the kernels of imported modules, by name, until each kernel is loaded."""
sound: dict[str, tuple[Path, bytes]] = {}
"""Files of declared kernels and their verified contents, until each kernel is loaded."""
damaged: dict[str, Path] = {}
"""Damaged files of kernels that have no sound file, by name."""
unsaved: dict[str, OSError] = {}
"""Kernels that could not be stored, and the error."""
used: set[Path] = set()
"""Directories from which kernels were loaded or in which they were stored."""
returned: set[str] = set()
"""Lines that ``notes`` has returned in this process."""


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a kernel, which is also the stem of its file."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"


def directory_name() -> str:
    """Return the name of the directory, a hash of everything that the compiled code depends on."""
    sources = sorted(HERE.glob("*.py"))
    machine = numba.config.CPU_NAME or get_host_cpu_name()
    features = numba.config.CPU_FEATURES or get_host_cpu_features().flatten()
    versions = f"{machine} {features} {sys.implementation.cache_tag} {numba.__version__}"
    parts = [versions.encode(), *(path.read_bytes() for path in sources)]
    return sha256(b"\0".join(parts)).hexdigest()[:16]


def candidate_folders() -> list[Path]:
    """Return the folders that may contain the directory, best first.

    They are the folder in ``NUMBA_CACHE_DIR``, or else the package's own and then the user's cache.
    """
    if folder := os.environ.get(VARIABLE):
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise UserError(f"{VARIABLE}={folder}: expected a folder for compiled kernels, found a file; name a folder")
        return [Path(folder)]
    home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and Path(os.environ["HOME"]) / ".cache")
    return [HERE / "__pycache__", *([Path(home) / "parallel_et"] if home else [])]


@cache
def standard_directories() -> list[Path]:
    """Return the directory in each of the candidate folders."""
    name = directory_name()
    return [place / name for place in candidate_folders()]


def directories(make: bool = False) -> Iterator[Path]:
    """Yield the standard directories, then a temporary one if only this user can write to it."""
    yield from standard_directories()
    try:
        shared = Path(tempfile.gettempdir()) / f"parallel_et-{os.getuid()}"
        if make:
            shared.mkdir(0o700, exist_ok=True)
        status = shared.stat()
    except OSError:
        return
    if status.st_uid == os.getuid() and not status.st_mode & 0o022:
        yield shared / standard_directories()[0].name


def find(name: str) -> tuple[Path, bytes] | None:
    """Return the first sound file of a kernel and its content, which is read and verified once per process.

    Damaged files in better folders are replaced by this file where possible.
    """
    with lock:
        wrong: list[Path] = []
        for directory in directories() if name not in sound else ():
            path = directory / f"{name}{SUFFIX}"
            try:
                content = cache_files.read(path)
            except OSError:
                continue
            if content is None:
                wrong.append(path)
                continue
            for better in reversed(wrong):
                with suppress(OSError):
                    cache_files.write(better, content)
                    path = better
            sound[name] = path, content
            break
        else:
            if wrong:
                damaged[name] = wrong[0]
        return sound.get(name)


def store(name: str, content: bytes) -> None:
    """Write the file of a kernel to the first directory that is writable."""
    for directory in directories(make=True):
        path = directory / f"{name}{SUFFIX}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            cache_files.write(path, content)
        except OSError as error:
            unsaved[name] = error
            continue
        _cache_log("[cache] data saved to %r", str(path))
        used.add(directory)
        unsaved.pop(name, None)
        return


class ChecksummedCache(NullCache):
    """The interface through which Numba requests the compiled code of one kernel, or hands over new code."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        """Return the compiled kernel if it has a sound file."""
        if (entry := find(self.name)) is None:
            return None
        path, content = entry
        target_context.refresh()
        compiled = CompileResult._rebuild(target_context, *pickle.loads(content))
        _cache_log("[cache] data loaded from %r", str(path))
        used.add(path.parent)
        return compiled

    def save_overload(self, sig: Any, data: CompileResult) -> None:
        """Store the compiled kernel."""
        assert not data.library.has_dynamic_globals, f"{self.name} contains addresses of this process"
        store(self.name, dumps(data._reduce()))


def forget(name: str) -> None:
    """Forget the file of a kernel that is loaded."""
    declared.pop(name, None)
    sound.pop(name, None)


def missing() -> bool:
    """Return whether any declared kernel has to be compiled."""
    return [find(name) for name in list(declared)].count(None) > 0


def notes() -> list[str]:
    """Return lines about the declared kernels for the user; each line is returned once per process."""
    with lock:
        lines = [COMPILING] if missing() else []
        if damaged:
            path, more = min(damaged.values()), f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            lines = [f"{path}: expected a compiled kernel, found a damaged file{more}; it is compiled again"]
        tried = " or ".join(str(directory.parent) for directory in standard_directories())
        advice = f"set {VARIABLE} to a folder that can be written to"
        for directory in sorted(used - {*standard_directories()}):
            lines.append(f"compiled kernels are stored in {directory}, because {tried} cannot be written to; {advice}")
        if unsaved:
            why = next(iter(unsaved.values())).strerror
            lines.append(
                f"compiled kernels cannot be stored in {tried}: {why}; every process compiles them again; {advice}"
            )
        new = [line for line in lines if line not in returned]
        returned.update(new)
        return new


def declare_all() -> None:
    """Load all modules that have kernels, which declares these kernels."""
    for path in sorted(HERE.glob("*.py")):
        import_module(f"{__package__}.{path.stem}")


def load_declared(index: int = 0, parts: int = 1) -> None:
    """Load every ``parts``-th declared kernel from ``index`` on, and compile the kernels without a file."""
    for _, load in sorted(declared.items())[index::parts]:
        load()
