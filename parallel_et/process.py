"""What the operating system knows of this process."""

import resource
from contextlib import suppress
from pathlib import Path

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
