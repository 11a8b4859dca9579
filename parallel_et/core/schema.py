"""The base class of all sections of the job file, with strict types and no unknown keys, and types of keys."""

import re
from typing import Annotated, Any, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

CHOICE = "="
"""First character of the tag of a choice between tables. Messages omit the tag."""
MAX_MAGNITUDE = 1e50
"""Largest magnitude of a number: products of a few numbers are finite."""
MAX_COUNT = 10**12
"""Largest number of points, iterations, and so on."""
MAX_TEXT_CHARACTERS = 4096
"""Largest number of characters of a text."""
MAX_DURATION_SECONDS = 1e9
"""Longest duration, about 30 years."""
SHOWN_CHARACTERS = 60
"""Largest number of characters of a value, or of a key, in a message."""


class Section(BaseModel):
    """A table of the job file. A subclass declares its keys with types, ranges and defaults.

    In all tables a number has a magnitude of at most ``MAX_MAGNITUDE``, and a text can be printed in one line.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _sensible(cls, value: Any) -> Any:
        if isinstance(value, int | float) and MAX_MAGNITUDE < abs(value) < float("inf"):
            raise PydanticCustomError("expected", f"a number of magnitude {MAX_MAGNITUDE:g} at most")
        if isinstance(value, str) and not (len(value) <= MAX_TEXT_CHARACTERS and value.isprintable()):
            limit = f"a text of at most {MAX_TEXT_CHARACTERS} characters that can be printed"
            raise PydanticCustomError("expected", limit)
        return 0.0 if isinstance(value, float) and value == 0 else value  # -0.0 prints as a negative number


def format_value(value: object) -> str:
    """Return a value of a job file for a message: short, with printable characters only."""
    if value is None:
        return "none"
    try:
        text = f'"{value}"' if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or lists in lists
        text = f"{type(value).__name__} …"
    text = {"True": "true", "False": "false"}.get(text, text)
    return printable(text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "…")


def printable(text: str) -> str:
    """Return the text with escape sequences for characters that cannot be printed."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def number_or(*tables: type[Section]) -> Any:
    """Return the type of a number or one of several tables. The keys of a table determine which table is validated."""
    tags = {table: f"{CHOICE}{table.__name__}" for table in tables}
    number = f"{CHOICE}number"

    def likeness(value: dict[str, Any], table: type[Section]) -> tuple[bool, int]:
        keys = table.model_fields
        marked = any(key in value for key, field in keys.items() if field.is_required())
        return marked, sum(key in keys for key in value)

    def tag(value: Any) -> str | None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return number
        if isinstance(value, dict):
            nearest = max(tables, key=lambda table: likeness(value, table))
            return tags[nearest] if any(key in nearest.model_fields for key in value) else None
        return next((tags[table] for table in tables if isinstance(value, table)), None)

    kinds: Any = [Annotated[table, Tag(name)] for table, name in tags.items()]
    size = Annotated[float, Field(ge=-MAX_MAGNITUDE, le=MAX_MAGNITUDE), Tag(number)]
    return Annotated[Union[(size, *kinds)], Discriminator(tag)]


def is_number(value: Any) -> bool:
    """Return whether a value of a job file is a number of allowed magnitude."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_MAGNITUDE


NUMBERS = "a number or a list of numbers"


def _numbers(value: Any) -> Any:
    if not all(map(is_number, value if isinstance(value, list) and value else [value])):
        raise PydanticCustomError("expected", NUMBERS)
    return value


Numbers = Annotated[Any, BeforeValidator(_numbers), NUMBERS]
"""Type of a number or a list of numbers. The reference of the job file prints the text as the type."""


UNITS = {"s": 1, "sec": 1, "min": 60, "h": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400}
AMOUNT = re.compile(r"(\d{1,9}(?:\.\d+)?) ?([a-z]+)", re.ASCII)
CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", re.ASCII)
DURATION = 'a time such as "10 min", "1.5 h" or "3:50:00"'
INTERVAL = f"{DURATION}, or a number of iterations"


def duration(text: str) -> float:
    """Convert a time such as ``10 min``, ``3:50:00`` or ``1-12:00:00`` to seconds.

    Raises
    ------
    ValueError : the text is not a time, or the time is too long
    """
    if clock := CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        long = float(86400 * days + 3600 * hours + 60 * minutes + seconds)
    else:
        found = AMOUNT.fullmatch(text.strip())
        long = float(found[1]) * UNITS[found[2]] if found is not None and found[2] in UNITS else float("inf")
    if long > MAX_DURATION_SECONDS:
        raise ValueError(f"expected {DURATION}, found {format_value(text)}")
    return long


def _interval(value: Any) -> Any:
    try:
        good = duration(value) > 0 if isinstance(value, str) else type(value) is int and 0 < value <= MAX_COUNT
    except ValueError:
        good = False
    if not good:
        raise PydanticCustomError("expected", INTERVAL)
    return value


Interval = Annotated[Any, BeforeValidator(_interval), INTERVAL]
"""Type of a time or a number of iterations."""


SIZE_WORDS = 'a size such as "8 GiB" or "500 MB", or a number of bytes'
SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?) ?(?:([kKMGT])(i?))?B", re.ASCII)


def in_bytes(size: str | float) -> int:
    """Convert a size such as ``8 GiB``, or a number of bytes, to bytes.

    Raises
    ------
    ValueError : the text is not a size
    """
    if not isinstance(size, str):
        return int(size)
    found = SIZE.fullmatch(size)
    if found is None:
        raise ValueError(f"expected a size, found {size}")
    number, letter, binary = found.groups(default=" ")
    return int(float(number) * (1024 if binary == "i" else 1000) ** " KMGT".index(letter.upper()))


def _size(value: Any) -> Any:
    try:
        good = (isinstance(value, str) or is_number(value)) and in_bytes(value) > 0
    except ValueError:
        good = False
    if not good:
        raise PydanticCustomError("expected", SIZE_WORDS)
    return value


Size = Annotated[Any, BeforeValidator(_size), SIZE_WORDS]
"""Type of a size in memory."""
