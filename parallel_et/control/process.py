"""What the operating system knows of this process and of others."""

import ctypes
import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

SELF = Path("/proc/self")
GROUPS = Path("/sys/fs/cgroup")
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""What mallopt calls the free memory that goes back to the system, and the arrays that have memory of their own."""
KEPT, OWN = 256 << 20, 32 << 20
"""Bytes of these."""


def keep_freed_memory() -> None:
    """Let the C library keep some of the memory that is freed (glibc; others are left as they are).

    Arrays of a block come and go; to have their pages from the system each time takes longer than to compute with them.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(TRIM_THRESHOLD, KEPT)
        library.mallopt(MMAP_THRESHOLD, OWN)


def reset_peak() -> None:
    """Forget the largest memory so far, where the system lets us (Linux); elsewhere peaks are those since the start."""
    with suppress(OSError):
        (SELF / "clear_refs").write_text("5")


def peak_bytes() -> float:
    """The largest memory that this process has had."""
    try:
        status = (SELF / "status").read_text()
        return 1024.0 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def held_bytes() -> int:
    """The memory that this process has now; 0 where the system does not tell."""
    try:
        return int((SELF / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def usable_bytes(held: int) -> float:
    """The memory of this node that is left to processes that have ``held`` bytes of it; infinite if nobody knows.

    That is what the system has, or what the limits of our control group (of both versions) leave.
    """
    usable = float("inf")
    with suppress(OSError, IndexError, ValueError):
        usable = 1024.0 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])
    with suppress(OSError):
        for line in (SELF / "cgroup").read_text().splitlines():
            _, kind, group = line.split(":", 2)
            if kind not in ("", "memory"):
                continue
            root, limit = GROUPS / kind, "memory.max" if kind == "" else "memory.limit_in_bytes"
            place = root / group.lstrip("/")
            for folder in (place, *place.parents):
                if root in (folder, *folder.parents):
                    with suppress(OSError, ValueError):  # "max", or of the host and not seen from within a container
                        usable = min(usable, int((folder / limit).read_text()) - held)
    return max(0.0, usable)


def free_bytes() -> int:
    """Memory that this process may still take, by what the machine has left and by its own limits."""
    page = os.sysconf("SC_PAGE_SIZE")
    free = [usable_bytes(held_bytes()), float(os.sysconf("SC_PHYS_PAGES") * page)]
    with suppress(OSError, IndexError):  # where the system tells
        words = (SELF / "statm").read_text().split()
        for limit, taken in ((resource.RLIMIT_AS, words[0]), (resource.RLIMIT_DATA, words[5])):
            most = resource.getrlimit(limit)[0]
            if most != resource.RLIM_INFINITY:
                free.append(max(0.0, most - int(taken) * page))
    return int(min(free))


def tell(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """Print at once, by default to standard output; that nobody can read it, or its disk is full, ends no work."""
    with suppress(OSError):
        print(text, file=file, end=end, flush=True)


def start_of(pid: int) -> str:
    """When a process began, in the system's own ticks; "" if /proc shows none of that number, or a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


def age() -> float:
    """Seconds since this process began; 0 where the system does not tell."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(start_of(os.getpid())) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, ValueError):
        return 0.0


def namespace() -> str:
    """What tells the process numbers that we see from those of containers; "" where /proc does not show ours."""
    try:
        return os.readlink(SELF / "ns/pid") if os.readlink(SELF) == str(os.getpid()) else ""
    except OSError:
        return ""


def boot() -> str:
    """What tells one start of the system from another, where it has a name for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def readable(size: float) -> str:
    """A number of bytes for people."""
    power = max(0, min(4, (int(size).bit_length() - 1) // 10))
    return f"{size / 1024**power:.{min(power, 1)}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
