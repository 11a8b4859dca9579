"""Files of compiled kernels: each begins with a checksum, which is verified before anybody sees the content."""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

MARK = b"parallel_et kernel sha256 "
HEAD = len(MARK) + 64
"""Bytes before the content: the mark and 64 hexadecimal digits."""


def head_of(path: Path, content: bytes) -> bytes:
    """Return what stands before the content: a checksum of it, of the file's name and of its folder's name."""
    words = path.parent.name.encode(), path.name.encode(), content
    return MARK + sha256(b"\0".join(words)).hexdigest().encode()


def read(path: Path) -> bytes | None:
    """Return the content of a file, or None if it is damaged or a pipe, a device or a dead link.

    Raise OSError if there is nothing, or a directory.
    """
    if not path.is_file():
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            return None
        raise FileNotFoundError(path)
    raw = path.read_bytes()
    content = raw[HEAD:]
    return content if raw[:HEAD] == head_of(path, content) else None


def write(path: Path, content: bytes) -> None:
    """Replace a file by a sealed one in a single step, which is right for several processes at once."""
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        part.write_bytes(head_of(path, content) + content)
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink()
