"""Files of compiled kernels. Each begins with a checksum, which is verified before the content is used."""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

MARK = b"parallel_et kernel sha256 "
HEAD = len(MARK) + 64
"""Bytes before the content: the mark and 64 hexadecimal digits."""


def head_of(path: Path, content: bytes) -> bytes:
    """Return the head of a file: the mark and a checksum of the content, the file's name and its folder's name."""
    parts = path.parent.name.encode(), path.name.encode(), content
    return MARK + sha256(b"\0".join(parts)).hexdigest().encode()


def read(path: Path) -> bytes | None:
    """Return the content of a file, or None if it is damaged or a pipe, a device or a dead link.

    Raise OSError if the path does not exist or is a directory.
    """
    if not path.is_file():
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            return None
        raise FileNotFoundError(path)
    raw = path.read_bytes()
    content = raw[HEAD:]
    return content if raw[:HEAD] == head_of(path, content) else None


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically by one with a checksum. Several processes may write the same file at once."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        temporary.write_bytes(head_of(path, content) + content)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()
