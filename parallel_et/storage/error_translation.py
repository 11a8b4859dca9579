"""What comes from outside comes through here: whatever a library says of a file becomes one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from parallel_et.control.process import free_bytes, readable
from parallel_et.errors import UserError

LONGEST = 200
"""Characters of what a library says that are passed on."""


@contextmanager
def gate(name: str, what: str, found: str = "what cannot be read") -> Iterator[None]:
    """Read a file: all that goes wrong in this block is the file's fault, and told in one line.

    The libraries that read files have no common kind of error for those that are damaged. That there are numbers which
    are not finite is for others to judge.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except UserError as error:
        if str(error).isprintable():
            raise
        raise UserError(printable(str(error))) from None  # names in damaged files may be anything
    except FileNotFoundError:  # it was there when it was looked for
        raise UserError(f"{name}: expected {what}, found nothing there any more") from None
    except MemoryError:
        raise UserError(f"{name}: expected {what}, found more than there is memory for") from None
    except Exception as error:
        raise UserError(f"{name}: expected {what}, found {found} ({brief(error)})") from None


def brief(error: Exception) -> str:
    """What an error says, in one line that can be printed."""
    words = printable(" ".join(str(error).split()))
    return f"{words[:LONGEST]}{'…' * (len(words) > LONGEST)}" or type(error).__name__


def printable(words: str) -> str:
    """The same words, without what would not be seen."""
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def check_room(name: str, what: str, size: int) -> None:
    """Refuse what would take more memory than this process can have; ``size`` in bytes."""
    if size > (free := free_bytes()):
        raise UserError(f"{name}: expected {what} that fits into {readable(free)} of memory, found {readable(size)}")
