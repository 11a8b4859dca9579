"""Checkpoints: files of the result so far and of the point states, from which a run resumes."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from parallel_et.errors import UserError
from parallel_et.kernels import fixed
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard
from parallel_et.runs.result import Result, read_result
from parallel_et.storage.atomic import make_durable
from parallel_et.storage.output import Table, discard, open_output, read_rows

DIGEST_ROWS = 4096
"""Rows for which a digest is computed at a time."""


def point_states_path(checkpoint: Path) -> Path:
    """Return the path of the point states of a checkpoint."""
    return checkpoint.with_name(f"{checkpoint.stem}.points.h5")


def save_point_states(checkpoint: Path, point_states: Mapping[str, np.ndarray], shard: Shard, ranks: Ranks) -> str:
    """Write the point states (n, ...) of all ranks, and return their digest.

    Collective. If a rank has an OSError, all ranks raise it.
    """
    path = point_states_path(checkpoint)
    ranks.from_root(lambda: remove_point_states(checkpoint))
    tables = {name: Table((shard.points, *array.shape[1:]), array.dtype) for name, array in point_states.items()}
    with open_output(path, tables, ranks) as output:
        output.write(shard.first, point_states)
    return digest(point_states, shard, ranks)


def load_point_states(checkpoint: Path, point_states: Mapping[str, np.ndarray], shard: Shard, ranks: Ranks) -> str:
    """Read the point states of all ranks into their arrays; return their digest, or "unreadable". Collective."""
    try:
        for name, array in point_states.items():
            array[:] = read_rows(point_states_path(checkpoint), name, shard.first, shard.last)
        good = True
    except (UserError, OSError, TypeError, ValueError):
        good = False
    return digest(point_states, shard, ranks) if not ranks.bitwise_or(not good) else "unreadable"


def remove_point_states(checkpoint: Path) -> None:
    """Remove the point states of a checkpoint, complete or partial."""
    path = point_states_path(checkpoint)
    discard(path)
    path.unlink(missing_ok=True)


def digest(point_states: Mapping[str, np.ndarray], shard: Shard, ranks: Ranks) -> str:
    """Return a digest of the values of all ranks and their indices, the same for any distribution over ranks."""
    total = np.zeros(len(point_states), np.uint64)
    for k, name in enumerate(sorted(point_states)):
        for start in range(0, len(shard), DIGEST_ROWS):
            rows = np.ascontiguousarray(point_states[name][start : start + DIGEST_ROWS])
            raw = rows.reshape(len(rows), -1).view(np.uint8)
            wide = np.zeros((len(rows), -(-raw.shape[1] // 8) * 8), np.uint8)
            wide[:, : raw.shape[1]] = raw
            total[k : k + 1] += fixed.digest(wide.view(np.uint64), shard.first + start)
    ranks.sum(total)
    return "".join(f"{int(value):016x}" for value in total)


class Checkpoints:
    """The checkpoints in a directory, named by their number of iterations; false if there never was a checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __bool__(self) -> bool:
        return bool(self._files(r"\d{6,}\.h5(\.unusable)?"))

    def newest_first(self) -> list[Path]:
        """Return all checkpoint files, the newest first."""
        return sorted(self._files(r"\d{6,}\.h5"), key=iterations_of, reverse=True)

    def _files(self, form: str) -> list[Path]:
        return [path for path in self.path.glob("*.h5*") if re.fullmatch(form, path.name)]

    def path_of(self, iterations: int) -> Path:
        """Return the path of the checkpoint after a number of iterations."""
        return self.path / f"{iterations:06d}.h5"

    def make(self) -> None:
        """Create the directory."""
        if not self.path.is_dir():
            self.path.mkdir()
            make_durable(self.path.parent)

    def save(self, iterations: int, result: Result, keep: int) -> None:
        """Write a checkpoint, and remove all but the last ``keep`` checkpoints.

        If the write fails with an OSError, all earlier checkpoints remain.
        """
        self.make()
        result.write(self.path_of(iterations))
        for old in self.newest_first()[keep:]:
            with suppress(OSError):
                old.unlink()
                remove_point_states(old)

    def newest(self, foreign: Callable[[Result], str | None], warn: Callable[[str], None]) -> tuple[Path, Result]:
        """Return the newest valid checkpoint, see ``first_valid``; raise UserError if there is none."""
        if (found := first_valid(self.newest_first(), read, foreign, warn)) is None:
            raise UserError(
                f"{self.path}: expected a checkpoint to resume from, found no valid one; --fresh starts over"
            )
        return found

    def tidy(self) -> None:
        """Remove partial files of a killed run; only the holder of the lock may do this."""
        for part in self.path.glob("*.h5.part"):
            with suppress(OSError):
                part.unlink()
        for points in self.path.glob("*.points.h5*"):
            checkpoint = points.with_name(f"{points.name.partition('.')[0]}.h5")
            with suppress(OSError):
                if not checkpoint.exists():
                    remove_point_states(checkpoint)


def iterations_of(path: Path) -> int:
    """Return the number of finished iterations, from the name of the file."""
    return int(path.stem)


def read(path: Path) -> Result:
    """Read and verify a checkpoint; raise UserError if it is not valid."""
    return read_result(path, "a checkpoint")


def first_valid(
    paths: Iterable[Path],
    read: Callable[[Path], Result],
    foreign: Callable[[Result], str | None],
    warn: Callable[[str], None],
) -> tuple[Path, Result] | None:
    """Return the first valid file of this run; set the files before it aside, with a warning.

    Parameters
    ----------
    foreign : returns the reason why a result or checkpoint is not from this run, or None
    """
    for path in paths:
        try:
            result = read(path)
            if (reason := foreign(result)) is None:
                return path, result
            reason = f"{path}: {reason}"
        except UserError as error:
            reason = str(error)
        set_aside_unusable(path, reason, warn)
    return None


def set_aside_unusable(path: Path, reason: str, warn: Callable[[str], None]) -> None:
    """Rename an unusable checkpoint or result to ``<name>.unusable``, and warn of it with the reason."""
    aside = path.with_name(f"{path.name}.unusable")
    try:
        path.replace(aside)
    except FileNotFoundError:
        pass  # another process has removed it
    except OSError as error:
        raise UserError(f"{aside}: expected to rename {path.name} to it, found {error.strerror}") from None
    warn(f"warning: {reason}; it is ignored and renamed to {aside.name}")
