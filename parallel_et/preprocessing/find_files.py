"""Which files are meant by the names of a command line."""

import glob
from collections.abc import Callable, Sequence
from pathlib import Path

from parallel_et.control.paths import check_plain
from parallel_et.errors import UserError, check_name


def find_files(
    names: Sequence[str], endings: Sequence[str], what: str, known: Callable[[str], bool] = lambda name: False
) -> list[str]:
    """The files that are meant by files, folders (what has one of the endings, by name) and patterns; each once.

    ``known`` tells names that stand for themselves, though there is no file called so.
    """
    found: list[str] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if ending(p.name) in endings and not p.name.startswith("."))
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
        check_plain(name, "a file")
    return list(dict.fromkeys(found))


def ending(name: str) -> str:
    """What the name of a file ends in, such as .png."""
    return Path(name).suffix.lower()
