"""What can go wrong by the user's hand."""

import errno
from difflib import get_close_matches

PLACE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENOSPC, errno.EDQUOT),
)
"""Errors that are the place's and not ours."""


class UserError(Exception):
    """The user's input is wrong: one line a mistake, exit code 2, nothing written."""


def meant(word: str, known: list[str]) -> str:
    """What to add to a line about a word that is not known: the nearest that is, if there is one."""
    close = get_close_matches(word.lower(), known, 1, 0.6)
    return f", did you mean {close[0]}?" if close else ""


def check_name(name: str) -> None:
    """Refuse a name that could neither be stored nor printed."""
    if name != name.encode(errors="replace").decode():
        raise UserError(f"{name!a}: expected a name in UTF-8, which can be stored, found other bytes")
