"""Where compiled kernels lie: one directory for all ranks of a node, found anew for every version of the kernels.

Numba's own cache looks at the file that a kernel is in, not at what the kernel calls. It believes every file that it
finds, and refuses a directory that cannot be written to. Here the directory's name follows from the source of all
kernels, the versions of Python and Numba and the processor, so nothing in it is ever out of date. Every file is sealed,
so a damaged one is compiled again. A directory that has what is needed may be read-only.
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
COMPILING = "the kernels are compiled for this processor, once; some 20 seconds"
VARIABLE = "NUMBA_CACHE_DIR"
SUFFIX = ".kernel"
lock = RLock()
"""Held by the thread that finds, loads or compiles a kernel."""
declared: dict[str, Callable[[], Any]] = {}
"""The functions that load the kernels of imported modules, by name, until each kernel is loaded."""
found: dict[str, tuple[Path, bytes]] = {}
"""Files of declared kernels and their verified contents, until each kernel is loaded."""
damaged: dict[str, Path] = {}
"""Damaged files of kernels that have no sound file, by name."""
unsaved: dict[str, OSError] = {}
"""Kernels that could not be stored, and why."""
used: set[Path] = set()
"""The directories from which kernels were loaded or in which they were stored."""
printed: set[str] = set()
"""The notes that this process has given."""


def name_of(function: Callable[..., Any]) -> str:
    """The name of a kernel, and of its file but for the suffix."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"


def key() -> str:
    """Name of the directory."""
    sources = sorted(HERE.glob("*.py"))
    machine = numba.config.CPU_NAME or get_host_cpu_name()
    features = numba.config.CPU_FEATURES or get_host_cpu_features().flatten()
    versions = f"{machine} {features} {sys.implementation.cache_tag} {numba.__version__}"
    parts = [versions.encode(), *(path.read_bytes() for path in sources)]
    return sha256(b"\0".join(parts)).hexdigest()[:16]


def places() -> list[Path]:
    """Where the directory may be, best first: as Numba is told, beside the kernels, in the user's cache."""
    if told := os.environ.get(VARIABLE):
        if os.path.exists(told) and not os.path.isdir(told):
            raise UserError(f"{VARIABLE}={told}: expected a folder for compiled kernels, found a file; name a folder")
        return [Path(told)]
    home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and Path(os.environ["HOME"]) / ".cache")
    return [HERE / "__pycache__", *([Path(home) / "parallel_et"] if home else [])]


@cache
def usual() -> list[Path]:
    """The directory in each of its places."""
    name = key()
    return [place / name for place in places()]


def directories(make: bool = False) -> Iterator[Path]:
    """The directory in each of its places, then a temporary one that nobody else can write to, if there can be one."""
    yield from usual()
    try:
        shared = Path(tempfile.gettempdir()) / f"parallel_et-{os.getuid()}"
        if make:
            shared.mkdir(0o700, exist_ok=True)
        status = shared.stat()
    except OSError:
        return
    if status.st_uid == os.getuid() and not status.st_mode & 0o022:
        yield shared / usual()[0].name


def find(name: str) -> tuple[Path, bytes] | None:
    """Return the first sound file of a kernel and its content, which is read and verified once a process.

    Damaged files in better places are replaced by it where that is possible.
    """
    with lock:
        wrong: list[Path] = []
        for directory in directories() if name not in found else ():
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
            found[name] = path, content
            break
        else:
            if wrong:
                damaged[name] = wrong[0]
        return found.get(name)


def store(name: str, content: bytes) -> None:
    """Write the file of a kernel to the first directory that takes it."""
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


class SealedCache(NullCache):
    """What Numba asks for the compiled code of one kernel, and gives this code to if it had to compile."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        """The compiled kernel, if it has a sound file."""
        if (there := find(self.name)) is None:
            return None
        path, content = there
        target_context.refresh()
        compiled = CompileResult._rebuild(target_context, *pickle.loads(content))
        _cache_log("[cache] data loaded from %r", str(path))
        used.add(path.parent)
        return compiled

    def save_overload(self, sig: Any, data: CompileResult) -> None:
        """Store the compiled kernel."""
        assert not data.library.has_dynamic_globals, f"{self.name} contains addresses of this process"
        store(self.name, dumps(data._reduce()))


def loaded(name: str) -> None:
    """Forget the file of a kernel that is loaded."""
    declared.pop(name, None)
    found.pop(name, None)


def missing() -> bool:
    """Whether any of the declared kernels has to be compiled."""
    return [find(name) for name in list(declared)].count(None) > 0


def notes() -> list[str]:
    """Return lines about the declared kernels that people should read; each is returned once a process."""
    with lock:
        lines = [COMPILING] if missing() else []
        if damaged:
            path, more = min(damaged.values()), f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            lines = [f"{path}: expected a compiled kernel, found a damaged file{more}; it is compiled again"]
        tried = " or ".join(str(directory.parent) for directory in usual())
        advice = f"set {VARIABLE} to a folder that can be written to"
        for directory in sorted(used - {*usual()}):
            lines.append(f"compiled kernels are stored in {directory}, as {tried} does not take them; {advice}")
        if unsaved:
            why = next(iter(unsaved.values())).strerror
            lines.append(f"compiled kernels cannot be stored in {tried}: {why}; every process compiles; {advice}")
        new = [line for line in lines if line not in printed]
        printed.update(new)
        return new


def declare_all() -> None:
    """Import all modules that have kernels."""
    for path in sorted(HERE.glob("*.py")):
        import_module(f"{__package__}.{path.stem}")


def load_declared(share: int = 0, shares: int = 1) -> None:
    """Load the declared kernels, or one of so many shares of them, which compiles those that are not there yet."""
    for _, load in sorted(declared.items())[share::shares]:
        load()
