"""What is known of each iteration as a table of text, for programs that draw curves while a run goes on."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from parallel_et.storage.atomic import write_whole

FIRST = ("free_energy", "temperature")


class Metrics:
    """A file with a line for each iteration, the names before the first; its numbers read back as the same bits.

    It follows the history of the run, which a checkpoint holds: when a run goes on, what it had written of iterations
    that are done again is dropped, and what is missing is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._whole = False

    def update(self, history: Mapping[str, Sequence[float]]) -> None:
        """Add the last iteration to a file that has those before; OSError if that fails, and then all is written anew.

        Parameters
        ----------
        history : name -> one value an iteration
        """
        done = len(next(iter(history.values()), ()))
        if not self._whole or done == 1:
            lines = [",".join(["iteration", *names(history)])] if done else []
            lines += [line(history, index) for index in range(done)]
            write_whole(self.path, "".join(f"{text}\n" for text in lines).encode())
            self._whole = True
            return
        self._whole = False
        with open(self.path, "a", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666)) as file:
            file.write(f"{line(history, done - 1)}\n")
        self._whole = True


def line(history: Mapping[str, Sequence[float]], index: int) -> str:
    """One iteration; the first has the number 1."""
    return ",".join([str(index + 1), *(f"{history[name][index]:.17g}" for name in names(history))])


def names(history: Mapping[str, Sequence[float]]) -> list[str]:
    """The columns in an order of their own, as a checkpoint has them in another than a run: times come last."""
    return sorted(history, key=lambda name: (name.startswith("seconds_"), name not in FIRST, name))
