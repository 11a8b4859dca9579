"""The command line: options of the commands, and their output."""

import argparse
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from parallel_et.control.signals import EXIT_STOPPED as EXIT_STOPPED
from parallel_et.core.schema import duration
from parallel_et.errors import UserError
from parallel_et.runs.directory import RunDirectory

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """An argument parser with error messages of one line."""

    def __init__(self, name: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"python -m parallel_et {name}",
            description=description,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_job(self, description: str) -> None:
        """Add the job file and settings of its keys."""
        self.add_argument("job", metavar="JOB.toml", help=description)
        setting = "set a key of the job; may be repeated"
        self.add_argument("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], help=setting)

    def add_max_time(self) -> None:
        """Add the time limit."""
        stop = "stop before this time has passed, with exit code 75; the same command resumes"
        self.add_argument("--max-time", metavar="H:MM:SS", type=self._time, help=stop)

    def add_running(self) -> None:
        """Add the options of commands that write a file piece by piece."""
        self.add_argument("--fresh", action="store_true", help="start over, and replace an existing FILE")
        self.add_argument("--quiet", action="store_true", help="print errors only")
        self.add_max_time()

    def add_cutting(self, bad: str) -> None:
        """Add the options of commands that cut patches or segments; ``bad`` describes an unusable file."""
        self.add_argument(
            "--seed", metavar="NUMBER", type=int, default=1, help="seed of all random numbers; default: 1"
        )
        effect = f"effect of {bad}: an error (default), or a message, and the file is skipped"
        self.add_argument("--bad", choices=("fatal", "skip"), default="fatal", help=effect)

    def add_trust(self) -> None:
        """Add the permission to execute the code of a custom model or scheme."""
        trust = "execute the code of a custom model or scheme in the run directory"
        self.add_argument("--trust", action="store_true", help=trust)
        for kind in ("model", "scheme"):
            again = f"file of the custom {kind} of the run"
            self.add_argument(f"--{kind}", metavar="FILE", help=again)

    def _time(self, text: str) -> float:
        try:
            return duration(text)
        except ValueError as error:
            self.error(f"--max-time: {error}")

    def options(self, argv: Sequence[str], kind: Callable[..., T]) -> T:
        """Parse the command line to an object of the class ``kind``; its UserErrors become errors of the parser."""
        args = vars(self.parse_args(argv))
        try:
            return kind(**args)
        except UserError as error:
            self.error(str(error))

    def error(self, message: str) -> NoReturn:
        """Raise a UserError instead of printing the usage and exiting."""
        raise UserError(f"{self.prog}: {message}; --help shows an example")


def directory_and_files(args: argparse.Namespace) -> tuple[RunDirectory, dict[str, str]]:
    """Return the directory of a run, and the files of its custom model and scheme that may be executed, by section."""
    directory = RunDirectory(args.run)
    return directory, directory.trusted_files(args.trust, args.model, args.scheme)
