"""What the commands do: arguments, and words for people."""

import argparse
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from parallel_et.control.signals import STOPPED as STOPPED
from parallel_et.core.schema import duration
from parallel_et.errors import UserError
from parallel_et.runs.directory import RunDirectory

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def __init__(self, name: str, does: str, example: str) -> None:
        super().__init__(
            prog=f"python -m parallel_et {name}",
            description=does,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_job(self, does: str) -> None:
        """The job file and settings of its keys."""
        self.add_argument("job", metavar="JOB.toml", help=does)
        what = "set a key of the job; may be repeated"
        self.add_argument("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], help=what)

    def add_max_time(self) -> None:
        """When to stop before the end."""
        stop = "stop in time before so much time has passed, with exit code 75; the same command goes on"
        self.add_argument("--max-time", metavar="H:MM:SS", type=self._time, help=stop)

    def add_running(self) -> None:
        """What makes no difference to a file that is written piece by piece."""
        self.add_argument("--fresh", action="store_true", help="start over, also if FILE is there")
        self.add_argument("--quiet", action="store_true", help="print errors only")
        self.add_max_time()

    def add_cutting(self, bad: str) -> None:
        """What all have that cut; ``bad`` says what makes a file a bad one."""
        self.add_argument("--seed", metavar="NUMBER", type=int, default=1, help="of all that is random; 1 by default")
        does = f"what {bad}, is: fatal (by default), or named and skipped"
        self.add_argument("--bad", choices=("fatal", "skip"), default="fatal", help=does)

    def add_trust(self) -> None:
        """Whose code may be executed, where a run is of a model or scheme of a file."""
        trust = "run the code of a model or scheme of its author's that lies in the run directory"
        self.add_argument("--trust", action="store_true", help=trust)
        for kind in ("model", "scheme"):
            again = f"the {kind} of the run, named again, if it is of a file"
            self.add_argument(f"--{kind}", metavar="FILE", help=again)

    def _time(self, text: str) -> float:
        try:
            return duration(text)
        except ValueError as error:
            self.error(f"--max-time: {error}")

    def options(self, argv: Sequence[str], kind: Callable[..., T]) -> T:
        """What the command line says, as ``kind`` has it; what that refuses is a complaint of the parser."""
        args = vars(self.parse_args(argv))
        try:
            return kind(**args)
        except UserError as error:
            self.error(str(error))

    def error(self, message: str) -> NoReturn:
        """Raise the line instead of printing the usage and leaving."""
        raise UserError(f"{self.prog}: {message}; --help shows an example")


def trusted_run(args: argparse.Namespace) -> tuple[RunDirectory, dict[str, str]]:
    """The directory of a run, and the files of a model or a scheme that may be executed for it, by section."""
    directory = RunDirectory(args.run)
    return directory, directory.trusted(args.trust, args.model, args.scheme)
