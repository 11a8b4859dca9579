"""What can go wrong by the user's hand."""

import errno
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

PLACE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENOSPC, errno.EDQUOT),
)
"""Errors that are the place's and not ours."""


class UserError(Exception):
    """The user's input is wrong: one line a mistake, exit code 2, nothing written."""


def why_no_place(path: str | PathLike[str], error: OSError, parents: bool = False) -> str:
    """Why nothing can be written at a path; of what is missing, what that is, which the system does not say.

    ``parents`` : whether the folders above it were to be made as well
    """
    if error.errno != errno.ENOENT:
        return error.strerror or str(error)
    folder = Path(path).parent
    while parents and not folder.exists():
        folder = folder.parent
    return f"{folder}, where nothing can be made" if folder.exists() else f"no folder {folder}"


def meant(word: str, known: list[str]) -> str:
    """What to add to a line about a word that is not known: the nearest that is, if there is one."""
    close = get_close_matches(word.lower(), known, 1, 0.6)
    return f", did you mean {close[0]}?" if close else ""


def check_name(name: str) -> None:
    """Refuse a name that could neither be stored nor printed."""
    if name != name.encode(errors="replace").decode():
        raise UserError(f"{name!a}: expected a name in UTF-8, which can be stored, found other bytes")
