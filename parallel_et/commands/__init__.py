"""What the commands do: arguments, and words for people."""

import argparse
from typing import NoReturn

from parallel_et.errors import UserError


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def __init__(self, name: str, does: str, example: str) -> None:
        super().__init__(
            prog=f"python -m parallel_et.{name}",
            description=does,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise the line instead of printing the usage and leaving."""
        raise UserError(f"{self.prog}: {message}; --help shows an example")
