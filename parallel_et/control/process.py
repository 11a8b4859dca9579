"""Memory, age and identity of processes, as the operating system reports them."""

import ctypes
import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

SELF = Path("/proc/self")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
M_TRIM_THRESHOLD = -1
"""mallopt: the parameter for ``KEPT_BYTES``."""
M_MMAP_THRESHOLD = -3
"""mallopt: the parameter for ``MAPPED_ARRAY_BYTES``."""
KEPT_BYTES = 256 << 20
"""Freed memory that the C library keeps for later arrays."""
MAPPED_ARRAY_BYTES = 32 << 20
"""Size above which the memory of an array goes back to the system when it is freed."""


def keep_freed_memory() -> None:
    """Let the C library keep some of the freed memory (glibc only).

    Every block allocates and frees arrays. New pages from the system would take longer than the computation.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(M_MMAP_THRESHOLD, MAPPED_ARRAY_BYTES)


def reset_peak() -> None:
    """Reset the peak memory of this process to the present memory (Linux only)."""
    with suppress(OSError):
        (SELF / "clear_refs").write_text("5")


def peak_bytes() -> float:
    """Return the peak memory of this process."""
    try:
        status = (SELF / "status").read_text()
        return 1024.0 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def resident_bytes() -> int:
    """Return the resident memory of this process, or 0 if it is unknown."""
    try:
        return int((SELF / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def node_available_bytes(resident: int) -> float:
    """Return the free memory of this node for processes with ``resident`` bytes, or infinity if it is unknown.

    The limits of the control group (version 1 or 2) of this process count as well.
    """
    available = float("inf")
    with suppress(OSError, IndexError, ValueError):
        available = 1024.0 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])
    with suppress(OSError):
        for line in (SELF / "cgroup").read_text().splitlines():
            _, kind, group = line.split(":", 2)
            if kind not in ("", "memory"):
                continue
            root, limit = CONTROL_GROUPS / kind, "memory.max" if kind == "" else "memory.limit_in_bytes"
            inner = root / group.lstrip("/")
            for folder in (inner, *inner.parents):
                if root in (folder, *folder.parents):
                    with suppress(OSError, ValueError):  # no limit ("max"), or a file that a container cannot see
                        available = min(available, int((folder / limit).read_text()) - resident)
    return max(0.0, available)


def available_bytes() -> int:
    """Return the memory that this process may still allocate, by the free memory of the node and its own limits."""
    page = os.sysconf("SC_PAGE_SIZE")
    free = [node_available_bytes(resident_bytes()), float(os.sysconf("SC_PHYS_PAGES") * page)]
    with suppress(OSError, IndexError):  # systems without /proc
        pages = (SELF / "statm").read_text().split()
        for limit, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
            maximum = resource.getrlimit(limit)[0]
            if maximum != resource.RLIM_INFINITY:
                free.append(max(0.0, maximum - int(used) * page))
    return int(min(free))


def print_now(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """Print and flush, by default to standard output. Ignore a closed pipe or a full disk."""
    with suppress(OSError):
        print(text, file=file, end=end, flush=True)


def process_start_ticks(pid: int) -> str:
    """Return the start time of a process in clock ticks, or "" if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def process_age_seconds() -> float:
    """Return the seconds since the start of this process, or 0 if it is unknown."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(process_start_ticks(os.getpid())) / os.sysconf(
            "SC_CLK_TCK"
        )
    except (AttributeError, ValueError):
        return 0.0


def pid_namespace() -> str:
    """Return the namespace of process numbers, which differs between containers, or "" if it is unknown."""
    try:
        return os.readlink(SELF / "ns/pid") if os.readlink(SELF) == str(os.getpid()) else ""
    except OSError:
        return ""


def boot_id() -> str:
    """Return an identifier of the present boot of the system, or "" if it is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def format_bytes(size: float) -> str:
    """Return a number of bytes with a unit, such as "1.5 GiB"."""
    power = max(0, min(4, (int(size).bit_length() - 1) // 10))
    return f"{size / 1024**power:.{min(power, 1)}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
