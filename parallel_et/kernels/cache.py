"""Where compiled kernels lie: one directory for all ranks of a node, found anew for every version of the kernels.

Numba's own rule looks at the file that a kernel is in, not at what it calls, and refuses a directory that it cannot
write to even if all is there. Here the directory's name tells the source of all kernels, the versions of Python and
Numba and the processor, so nothing in it is ever out of date; one that ``python -m parallel_et.compile`` has
completed may be read-only.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba.core.caching import CompileResultCacheImpl

HERE = Path(__file__).parent
COMPLETE = "complete"


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
    if told := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(told)]
    home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and Path(os.environ["HOME"]) / ".cache")
    return [HERE / "__pycache__", *([Path(home) / "parallel_et"] if home else [])]


@cache
def directory() -> tuple[Path, str | None]:
    """The directory, and what to tell people if it is in none of its places."""
    found = [place / key() for place in places()]
    for path in found:
        if is_complete(path) or writable(path):
            return path, None
    shared = Path(tempfile.gettempdir()) / f"parallel_et-{os.getuid()}"
    if not (writable(shared, 0o700) and shared.stat().st_uid == os.getuid()):
        shared = Path(tempfile.mkdtemp(prefix="parallel_et-"))
    path = shared / key()
    writable(path)
    tried = " or ".join(str(path.parent) for path in found)
    return path, f"kernels are compiled into {path}, as {tried} cannot be written to"


def writable(path: Path, mode: int = 0o777) -> bool:
    """Whether the directory is there, or can be made, and takes files."""
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError:
        return False
    return True


def is_complete(path: Path) -> bool:
    """Whether all kernels are in a directory, and it may be looked into."""
    try:
        return (path / COMPLETE).exists()
    except OSError:
        return False


def complete() -> bool:
    """Whether all kernels are there."""
    return is_complete(directory()[0])


def notes() -> list[str]:
    """What to tell people before the kernels are loaded: that they lie in an odd place, that it will take a while."""
    path, elsewhere = directory()
    waiting = [] if any(path.glob("*.nbi")) else ["the kernels are compiled for this processor, once; some 20 seconds"]
    return [elsewhere, *waiting] if elsewhere else waiting


def load_all() -> None:
    """Load all kernels, which compiles those that are not there yet."""
    for path in sorted(HERE.glob("*.py")):
        import_module(f"{__package__}.{path.stem}")
    if not complete():
        (directory()[0] / COMPLETE).touch()


class Locator:
    """Tells Numba where a kernel is cached."""

    def __init__(self, function: Any) -> None:
        self.line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Any, file: str) -> "Locator":
        """The locator of a kernel."""
        return cls(function)

    def get_cache_path(self) -> str:
        """The directory."""
        return str(directory()[0])

    def ensure_cache_path(self) -> None:
        """It was made when it was chosen."""

    def get_source_stamp(self) -> str:
        """What a cached kernel must agree with."""
        return directory()[0].name

    def get_disambiguator(self) -> str:
        """What tells kernels of one name apart."""
        return str(self.line)


@contextmanager
def ours() -> Iterator[None]:
    """Kernels that are declared in here are cached in our directory."""
    before = CompileResultCacheImpl._locator_classes
    CompileResultCacheImpl._locator_classes = [Locator]
    try:
        yield
    finally:
        CompileResultCacheImpl._locator_classes = before
