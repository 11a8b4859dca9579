"""Checkpoints: the result so far and the point states beside it, from which a run goes on; the last few are kept."""

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

STEP = 4096


def place_of(checkpoint: Path) -> Path:
    """The file that goes with a checkpoint."""
    return checkpoint.with_name(f"{checkpoint.stem}.points.h5")


def save_kept(checkpoint: Path, kept: Mapping[str, np.ndarray], shard: Shard, ranks: Ranks) -> str:
    """Write the arrays (n, ...) of all ranks; returns their digest. Collective; OSError on all ranks if one has it."""
    path = place_of(checkpoint)
    ranks.from_root(lambda: remove_kept(checkpoint))
    tables = {name: Table((shard.points, *array.shape[1:]), array.dtype) for name, array in kept.items()}
    with open_output(path, tables, ranks) as output:
        output.write(shard.first, kept)
    return digest(kept, shard, ranks)


def load_kept(checkpoint: Path, kept: Mapping[str, np.ndarray], shard: Shard, ranks: Ranks) -> str:
    """Fill the arrays of all ranks; returns their digest, or what was wrong with them. Collective."""
    try:
        for name, array in kept.items():
            array[:] = read_rows(place_of(checkpoint), name, shard.first, shard.last)
        good = True
    except (UserError, OSError, TypeError, ValueError):
        good = False
    return digest(kept, shard, ranks) if not ranks.either(not good) else "unreadable"


def remove_kept(checkpoint: Path) -> None:
    """Remove the file that goes with a checkpoint, whole or not."""
    path = place_of(checkpoint)
    discard(path)
    path.unlink(missing_ok=True)


def digest(kept: Mapping[str, np.ndarray], shard: Shard, ranks: Ranks) -> str:
    """Of the values of all ranks and their places, whoever has them."""
    total = np.zeros(len(kept), np.uint64)
    for k, name in enumerate(sorted(kept)):
        for start in range(0, len(shard), STEP):
            rows = np.ascontiguousarray(kept[name][start : start + STEP])
            raw = rows.reshape(len(rows), -1).view(np.uint8)
            wide = np.zeros((len(rows), -(-raw.shape[1] // 8) * 8), np.uint8)
            wide[:, : raw.shape[1]] = raw
            total[k : k + 1] += fixed.digest(wide.view(np.uint64), shard.first + start)
    ranks.sum(total)
    return "".join(f"{int(value):016x}" for value in total)


class Checkpoints:
    """The checkpoints in one directory, named by the number of iterations done; true if there ever was one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __bool__(self) -> bool:
        return bool(self._files(r"\d{6,}\.h5(\.unusable)?"))

    def names(self) -> list[Path]:
        """All checkpoint files, the newest first."""
        return sorted(self._files(r"\d{6,}\.h5"), key=number, reverse=True)

    def _files(self, form: str) -> list[Path]:
        return [path for path in self.path.glob("*.h5*") if re.fullmatch(form, path.name)]

    def of(self, iterations: int) -> Path:
        """The file of the checkpoint after so many iterations."""
        return self.path / f"{iterations:06d}.h5"

    def make(self) -> None:
        """Make the directory."""
        if not self.path.is_dir():
            self.path.mkdir()
            make_durable(self.path.parent)

    def save(self, iterations: int, result: Result, keep: int) -> None:
        """Write one and remove those before the last ``keep``; OSError if there is no room, and all others stand."""
        self.make()
        result.write(self.of(iterations))
        for old in self.names()[keep:]:
            with suppress(OSError):
                old.unlink()
                remove_kept(old)

    def newest(self, foreign: Callable[[Result], str | None], warn: Callable[[str], None]) -> tuple[Path, Result]:
        """The newest checkpoint that is sound, see ``first_sound``; none at all is an error."""
        if (found := first_sound(self.names(), read, foreign, warn)) is None:
            raise UserError(
                f"{self.path}: expected a checkpoint to go on from, found none that is sound; --fresh starts over"
            )
        return found

    def tidy(self) -> None:
        """Remove what a killed run has left half written; only who holds the run directory may do this."""
        for part in self.path.glob("*.h5.part"):
            with suppress(OSError):
                part.unlink()
        for points in self.path.glob("*.points.h5*"):
            checkpoint = points.with_name(f"{points.name.partition('.')[0]}.h5")
            with suppress(OSError):
                if not checkpoint.exists():
                    remove_kept(checkpoint)


def number(path: Path) -> int:
    """Iterations done, from the name."""
    return int(path.stem)


def read(path: Path) -> Result:
    """A checkpoint, verified; UserError that says what is wrong with it."""
    return read_result(path, "a checkpoint")


def first_sound(
    paths: Iterable[Path],
    read: Callable[[Path], Result],
    foreign: Callable[[Result], str | None],
    warn: Callable[[str], None],
) -> tuple[Path, Result] | None:
    """The first file that is sound and of this run; those before it are put aside with a warning.

    Parameters
    ----------
    foreign : says why a result or checkpoint is not one of this run, or None
    """
    for path in paths:
        try:
            result = read(path)
            if (why := foreign(result)) is None:
                return path, result
            why = f"{path}: {why}"
        except UserError as error:
            why = str(error)
        pass_over(path, why, warn)
    return None


def pass_over(path: Path, why: str, warn: Callable[[str], None]) -> None:
    """Put a checkpoint or a result aside that is of no use; ``why`` names it."""
    aside = path.with_name(f"{path.name}.unusable")
    try:
        path.replace(aside)
    except FileNotFoundError:
        pass  # it is gone already
    except OSError as error:
        raise UserError(f"{aside}: expected a place to put {path.name} aside, found {error.strerror}") from None
    warn(f"warning: {why}; it is passed over and kept as {aside.name}")
