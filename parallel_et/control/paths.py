"""The kinds of files at paths."""

import os
import stat

from parallel_et.errors import UserError

KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def describe_path(path: str | os.PathLike[str], follow: bool = True) -> str:
    """Return the kind of file at a path, for messages. With ``follow``, a link counts as its target."""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path, follow_symlinks=follow).st_mode), "something else")
    except (OSError, ValueError):
        return "nothing there"


def check_regular_file(path: str | os.PathLike[str], what: str) -> None:
    """Refuse an existing path that is not a regular file, as reading from a pipe or a device may never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: expected {what}, found {describe_path(path)}")
