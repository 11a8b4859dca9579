"""Errors that users can correct."""

import errno
from difflib import get_close_matches

PATH_ERRORS = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENOSPC, errno.EDQUOT),
)
"""System errors whose cause is a path or the file system, not this program."""


class UserError(Exception):
    """An error in the input of the user, with one line for each mistake. Commands exit with code 2."""


def suggestion(word: str, known: list[str]) -> str:
    """Return the text ", did you mean …?" for an unknown word that is similar to a known one, or ""."""
    close = get_close_matches(word.lower(), known, 1, 0.6)
    return f", did you mean {close[0]}?" if close else ""


def check_name(name: str) -> None:
    """Refuse a name that is not valid UTF-8, as it can be neither stored nor printed."""
    if name != name.encode(errors="replace").decode():
        raise UserError(f"{name!a}: expected a name in UTF-8, which can be stored, found other bytes")
