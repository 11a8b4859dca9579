"""Checkpoints: the result so far, from which a run goes on; checksummed, whole or not there, the last few kept."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from parallel_et.errors import UserError
from parallel_et.io.whole import make_durable
from parallel_et.runs.kept import remove_kept
from parallel_et.runs.result import Result, read_result


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
