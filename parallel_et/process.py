"""What the operating system knows of this process and of others."""

import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

SELF = Path("/proc/self")


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


def free_bytes() -> int:
    """Memory that this process may still take, by the machine and by its own limits."""
    page = os.sysconf("SC_PAGE_SIZE")
    free, whole, data = [os.sysconf("SC_PHYS_PAGES") * page], 0, 0
    with suppress(OSError, IndexError):  # where the system tells
        free.append(int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) << 10)
        fields = (SELF / "statm").read_text().split()
        whole, data = int(fields[0]) * page, int(fields[5]) * page
    for limit, taken in ((resource.RLIMIT_AS, whole), (resource.RLIMIT_DATA, data)):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            free.append(max(0, most - taken))
    return min(free)


def tell(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """Print at once, by default to standard output; that nobody can read it, or its disk is full, ends no work."""
    with suppress(OSError):
        print(text, file=file, end=end, flush=True)


def start_of(pid: int) -> str:
    """When a process began, in the system's own ticks; "" if there is none of that number, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if Path("/proc/self/stat").exists() or not _answers(pid) else "unknown"
    return "" if fields[0] in "ZX" else fields[19]


def _answers(pid: int) -> bool:
    """Whether there is a process of that number, where the system has no /proc."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def age() -> float:
    """Seconds since this process began; 0 where the system does not tell."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(start_of(os.getpid())) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, ValueError):
        return 0.0


def boot() -> str:
    """What tells one start of the system from another, where it has a name for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
