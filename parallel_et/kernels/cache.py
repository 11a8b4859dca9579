"""Where compiled kernels lie: one directory for all ranks of a node, found anew for every version of the kernels.

Numba's own rule looks at the file that a kernel is in, not at what it calls, and refuses a directory that it cannot
write to even if all is there. Here the directory's name tells the source of all kernels, the versions of Python and
Numba and the processor, so nothing in it is ever out of date, and one that has what is needed may be read-only.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
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
COMPILING = "the kernels are compiled for this processor, once; some 20 seconds"
declared: dict[str, Callable[[], Any]] = {}
"""The kernels of the modules that were imported and that are not loaded yet, by name: each loads itself."""


def name_of(function: Callable[..., Any]) -> str:
    """The name of a kernel, with which Numba's file of it begins."""
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
    if told := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(told)]
    home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and Path(os.environ["HOME"]) / ".cache")
    return [HERE / "__pycache__", *([Path(home) / "parallel_et"] if home else [])]


@cache
def usual() -> list[Path]:
    """The directory in each of its places."""
    return [place / key() for place in places()]


@cache
def target() -> tuple[Path, str | None]:
    """Where kernels are compiled into, and what to tell people if that is in none of its places."""
    for path in usual():
        if writable(path):
            return path, None
    shared = Path(tempfile.gettempdir()) / f"parallel_et-{os.getuid()}"
    if not (writable(shared, 0o700) and shared.stat().st_uid == os.getuid()):
        shared = Path(tempfile.mkdtemp(prefix="parallel_et-"))
    path = shared / key()
    writable(path)
    tried = " or ".join(str(path.parent) for path in usual())
    return path, f"kernels are compiled into {path}, as {tried} cannot be written to"


def writable(path: Path, mode: int = 0o777) -> bool:
    """Whether the directory is there, or can be made, and takes files."""
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError:
        return False
    return True


def compiled_in(paths: Iterable[Path]) -> set[str]:
    """Names of the kernels that are in some directories, as far as these may be looked into."""
    found: set[str] = set()
    for path in paths:
        try:
            found |= {name.partition("-")[0] for name in os.listdir(path) if name.endswith(".nbc")}
        except OSError:
            continue
    return found


def directory_of(name: str) -> Path:
    """Where a kernel is, or is to be."""
    return next((path for path in usual() if name in compiled_in([path])), None) or target()[0]


def missing() -> bool:
    """Whether any of the declared kernels has to be compiled."""
    elsewhere = declared.keys() - compiled_in(usual())
    return bool(elsewhere and elsewhere - compiled_in([target()[0]]))


def notes() -> list[str]:
    """What to tell people before the declared kernels are loaded: that some lie in an odd place, or take a while."""
    elsewhere = None if declared.keys() <= compiled_in(usual()) else target()[1]
    return [note for note in (elsewhere, COMPILING if missing() else None) if note]


def declare_all() -> None:
    """Import all modules that have kernels."""
    for path in sorted(HERE.glob("*.py")):
        import_module(f"{__package__}.{path.stem}")


def load_declared(share: int = 0, shares: int = 1) -> None:
    """Load the declared kernels, or one of so many shares of them, which compiles those that are not there yet."""
    for name in sorted(declared)[share::shares]:
        declared[name]()


class Locator:
    """Tells Numba where a kernel is cached."""

    def __init__(self, function: Any) -> None:
        self.directory, self.line = directory_of(name_of(function)), function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Any, file: str) -> "Locator":
        """The locator of a kernel."""
        return cls(function)

    def get_cache_path(self) -> str:
        """The directory."""
        return str(self.directory)

    def ensure_cache_path(self) -> None:
        """It was made when it was chosen."""

    def get_source_stamp(self) -> str:
        """What a cached kernel must agree with."""
        return self.directory.name

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
