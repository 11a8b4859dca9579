"""The table ``metrics.csv``: the history of a run as text, for programs that plot curves during training."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from parallel_et.storage.atomic import write_atomically

FIRST_COLUMNS = ("free_energy", "temperature")


class Metrics:
    """A CSV file with a header and one line per iteration. Its numbers have all digits of a double.

    When a run resumes, the file is written again from the history of the checkpoint. No line is missing or repeated.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._complete = False

    def update(self, history: Mapping[str, Sequence[float]]) -> None:
        """Append the last iteration; the first call, and a call after an OSError, write the whole file.

        Parameters
        ----------
        history : name -> one value per iteration
        """
        done = len(next(iter(history.values()), ()))
        if not self._complete or done == 1:
            lines = [",".join(["iteration", *columns(history)])] if done else []
            lines += [format_line(history, index) for index in range(done)]
            write_atomically(self.path, "".join(f"{text}\n" for text in lines).encode())
            self._complete = True
            return
        self._complete = False
        with open(self.path, "a", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666)) as file:
            file.write(f"{format_line(history, done - 1)}\n")
        self._complete = True


def format_line(history: Mapping[str, Sequence[float]], index: int) -> str:
    """Return the line of an iteration; the number of the first is 1."""
    return ",".join([str(index + 1), *(f"{history[name][index]:.17g}" for name in columns(history))])


def columns(history: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the names of the columns in a fixed order, times last; a checkpoint may have them in another order."""
    return sorted(history, key=lambda name: (name.startswith("seconds_"), name not in FIRST_COLUMNS, name))
