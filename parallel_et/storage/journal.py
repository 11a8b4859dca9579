"""The journal of an output: ranges of rows that are safe on the disk, one file for each rank of each run.

A line ``first last`` is the range [first, last).
"""

import errno
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from parallel_et.control.paths import check_regular_file, describe_path
from parallel_et.errors import UserError
from parallel_et.storage.row_tables import RowRange, merge_ranges

WRITER_NAME_BYTES = 20
"""Bytes that are read of the file with the writer's name."""


def check_folder(folder: Path, names: str, what: str) -> None:
    """Refuse a path that exists, unless it is a folder whose files all match ``names``: other files may be needed."""
    if not os.path.lexists(folder):
        return
    if (found := describe_path(folder, follow=False)) != "a directory":
        raise UserError(f"{folder}: expected {what} or nothing, found {found}; move it away")
    for path in sorted(folder.iterdir()):
        if not re.fullmatch(rf"{names}|\.nfs.*", path.name) or describe_path(path, follow=False) == "a directory":
            raise UserError(f"{folder}: expected {what} or nothing, found {path.name!a} in it; move it away")


class Journal:
    """The folder of the journal, with the name of the writer that began the part."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None

    def check(self) -> None:
        """Refuse the folder if it is not a journal."""
        check_folder(self.folder, r"way|\d+-\d+\.rows", "the journal of an output")

    def clear(self) -> None:
        """Remove the journal of an earlier part."""
        self.check()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def writer_file(self) -> Path:
        """Return the file with the name of the writer."""
        return self.folder / "way"

    def read_writer(self, writers: Sequence[str]) -> str:
        """Return the name of the writer that began the part, one of ``writers``."""
        path, expected = self.writer_file, f"one of {', '.join(writers)}"
        check_regular_file(path, expected)
        text = path.read_bytes()[:WRITER_NAME_BYTES].decode(errors="replace")
        if text not in writers:
            raise UserError(f"{path}: expected {expected}, found {text!a}; remove the journal and its part")
        return text

    def read(self, count: int) -> tuple[list[RowRange], int]:
        """Return the ranges of ``count`` rows that are safe, and a number for the next run. Torn lines are ignored."""
        rows, run = [], 0
        for path in self.folder.glob("*.rows"):
            if not (name := re.fullmatch(r"(\d{1,9})-\d+\.rows", path.name)):
                continue
            check_regular_file(path, "a journal")
            run = max(run, 1 + int(name[1]))
            for line in path.read_bytes().split(b"\n")[:-1]:
                if found := re.fullmatch(rb"(\d{1,18}) (\d{1,18})", line):
                    rows.append((int(found[1]), int(found[2])))
                    if rows[-1][1] > count:
                        expected = f"expected some of {count} rows, found {line.decode()}"
                        raise UserError(f"{path}: {expected}: it is damaged; remove the journal and its part")
        return merge_ranges(rows), run

    def start(self, run: int, rank: int) -> None:
        """Set the file of this run and rank. The file is created with its first line."""
        self._path = self.folder / f"{run}-{rank}.rows"

    def add(self, rows: Sequence[RowRange]) -> None:
        """Record rows, which must be safe on the disk already."""
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        # The leading line end separates these lines from a torn line of a failed write.
        lines = "".join(f"\n{first} {last}\n" for first, last in merge_ranges(rows)).encode()
        if os.write(self._file, lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
