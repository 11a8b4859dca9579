"""Which rows of a part are safe on the disk: lines ``first last`` in files of their own for each rank of each run."""

import errno
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from parallel_et.control.paths import check_plain, kind_of
from parallel_et.errors import UserError
from parallel_et.storage.row_tables import Span, merged

LONGEST = 20
"""Bytes of the name of a way that are looked at."""


def check_folder(folder: Path, names: str, what: str) -> None:
    """Refuse what is neither nothing nor a folder of files whose names have a form: somebody may need it."""
    if not os.path.lexists(folder):
        return
    if (found := kind_of(folder, follow=False)) != "a directory":
        raise UserError(f"{folder}: expected {what} or nothing, found {found}; move it away")
    for path in sorted(folder.iterdir()):
        if not re.fullmatch(rf"{names}|\.nfs.*", path.name) or kind_of(path, follow=False) == "a directory":
            raise UserError(f"{folder}: expected {what} or nothing, found {path.name!a} in it; move it away")


class Journal:
    """The folder of these files; ``way`` in it names the way that the part was begun with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None

    def check(self) -> None:
        """Refuse what has the name of the folder and is something else."""
        check_folder(self.folder, r"way|\d+-\d+\.rows", "the journal of an output")

    def clear(self) -> None:
        """Remove the journal of an earlier part."""
        self.check()
        shutil.rmtree(self.folder, ignore_errors=True)

    def way(self, ways: Sequence[str]) -> str:
        """Read the way that the part was begun with, one of ``ways``."""
        path = self.folder / "way"
        check_plain(path, f"one of {', '.join(ways)}")
        text = path.read_bytes()[:LONGEST].decode(errors="replace")
        if text not in ways:
            raise UserError(f"{path}: expected one of {', '.join(ways)}, found {text!a}; remove the part beside it")
        return text

    def read(self, count: int) -> tuple[list[Span], int]:
        """Read which of ``count`` rows are safe, and a number for the next run; torn lines are ignored."""
        rows, run = [], 0
        for path in self.folder.glob("*.rows"):
            if not (name := re.fullmatch(r"(\d{1,9})-\d+\.rows", path.name)):
                continue
            check_plain(path, "a journal")
            run = max(run, 1 + int(name[1]))
            for line in path.read_bytes().split(b"\n")[:-1]:
                if found := re.fullmatch(rb"(\d{1,18}) (\d{1,18})", line):
                    rows.append((int(found[1]), int(found[2])))
                    if rows[-1][1] > count:
                        expected = f"expected some of {count} rows, found {line.decode()}"
                        raise UserError(f"{path}: {expected}: it is damaged; remove it and the part beside it")
        return merged(rows), run

    def begin(self, run: int, rank: int) -> None:
        """The file of this run and rank; it appears with its first line."""
        self._path = self.folder / f"{run}-{rank}.rows"

    def add(self, rows: Sequence[Span]) -> None:
        """Note rows, which must be safe already."""
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        # The leading line end: what stands there torn off, of a write that failed, must not run into these.
        lines = "".join(f"\n{first} {last}\n" for first, last in merged(rows)).encode()
        if os.write(self._file, lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
