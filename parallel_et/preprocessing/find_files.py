"""Expansion of files, folders and patterns on a command line."""

import glob
from collections.abc import Callable, Sequence
from pathlib import Path

from parallel_et.control.paths import check_regular_file
from parallel_et.errors import UserError, check_name


def find_files(
    names: Sequence[str], endings: Sequence[str], what: str, known: Callable[[str], bool] = lambda name: False
) -> list[str]:
    """Return the files that files, folders and patterns name, each once.

    Parameters
    ----------
    endings : endings of the files that are taken from a folder
    what : kind of the files, for messages
    known : returns True for a name that is valid without a file of that name
    """
    found: list[str] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if file_suffix(p.name) in endings and not p.name.startswith("."))
            if not inside:
                raise UserError(f"{name}: expected {what} ({' '.join(endings)}), found none in this folder")
            found += map(str, inside)
        elif path.is_file() or known(name):
            found.append(name)
        elif matching := sorted(p for p in glob.glob(name, recursive=True) if Path(p).is_file()):
            found += matching
        else:
            raise UserError(f"{name}: expected a file, a folder or a pattern of files, found nothing there")
    for name in found:
        check_name(name)
        check_regular_file(name, "a file")
    return list(dict.fromkeys(found))


def file_suffix(name: str) -> str:
    """Return the ending of a file name in lower case, e.g. ".png"."""
    return Path(name).suffix.lower()
