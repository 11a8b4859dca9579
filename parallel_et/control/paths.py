"""What there is at a path."""

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


def kind_of(path: str | os.PathLike[str], follow: bool = True) -> str:
    """Return what there is at a path, in words. With ``follow`` a link is what it leads to."""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path, follow_symlinks=follow).st_mode), "something else")
    except (OSError, ValueError):
        return "nothing there"


def check_plain(path: str | os.PathLike[str], what: str) -> None:
    """Refuse what is there and is no plain file: to read a pipe or a device may never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: expected {what}, found {kind_of(path)}")
