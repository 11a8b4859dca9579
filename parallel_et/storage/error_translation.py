"""Translation of exceptions of libraries that read files into error messages of one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from parallel_et.control.process import available_bytes, format_bytes
from parallel_et.errors import UserError

MAX_MESSAGE_CHARACTERS = 200
"""Characters of a library's message that are kept."""


@contextmanager
def translate_errors(name: str, what: str, found: str = "what cannot be read") -> Iterator[None]:
    """Translate every exception of this block into a UserError of one line that names the file.

    Libraries have no common exception for damaged files. Numbers that are not finite are accepted here.

    Parameters
    ----------
    name, what : the file, and the expected content
    found : the actual content, if the library raises an exception of another kind
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except UserError as error:
        if str(error).isprintable():
            raise
        raise UserError(replace_unprintable(str(error))) from None  # names in damaged files may be anything
    except FileNotFoundError:  # it existed a moment ago
        raise UserError(f"{name}: expected {what}, found that it no longer exists") from None
    except MemoryError:
        raise UserError(f"{name}: expected {what}, found more than fits into memory") from None
    except Exception as error:
        raise UserError(f"{name}: expected {what}, found {found} ({one_line(error)})") from None


def one_line(error: Exception) -> str:
    """Return the message of an error as one printable line."""
    text = replace_unprintable(" ".join(str(error).split()))
    return f"{text[:MAX_MESSAGE_CHARACTERS]}{'…' * (len(text) > MAX_MESSAGE_CHARACTERS)}" or type(error).__name__


def replace_unprintable(text: str) -> str:
    """Return the text with ``?`` for each character that cannot be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def check_fits_memory(name: str, what: str, size: int) -> None:
    """Refuse arrays of ``size`` bytes if this process has less free memory."""
    if size > (free := available_bytes()):
        raise UserError(
            f"{name}: expected {what} that fits into {format_bytes(free)} of memory, found {format_bytes(size)}"
        )
