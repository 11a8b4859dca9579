"""Which rows of a part are safe on the disk: lines ``first last`` in files of their own for each rank of each run."""

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from parallel_et.io.tables import Span, merged


class Journal:
    """The folder of these files; ``way`` in it names the way that the part was begun with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None

    def read(self) -> tuple[list[Span], int]:
        """All rows that are safe, and a number for the next run. A line that was torn off counts for nothing."""
        rows, run = [], 0
        for path in self.folder.glob("*.rows"):
            run = max(run, 1 + int(path.name.partition("-")[0]))
            for line in path.read_bytes().split(b"\n")[:-1]:
                if found := re.fullmatch(rb"(\d+) (\d+)", line):
                    rows.append((int(found[1]), int(found[2])))
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
