"""The ground of all sections of the job file: strict types, no unknown keys."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag
from pydantic_core import PydanticCustomError

CHOICE = "="
"""What the tag of one of several possible tables begins with; it shows in no message."""


class Section(BaseModel):
    """A table of the job file; a subclass declares its keys with types, ranges and defaults."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def either(other: type[Section], marked: type[Section], key: str) -> Any:
    """A table of kind ``marked`` if it has that key or none of the other's; mistakes are then those of one kind."""
    tags = {table: f"{CHOICE}{table.__name__}" for table in (other, marked)}

    def tag(value: Any) -> str:
        if isinstance(value, dict):
            is_marked = key in value or not any(name in other.model_fields for name in value)
        else:
            is_marked = isinstance(value, marked)
        return tags[marked] if is_marked else tags[other]

    return Annotated[Annotated[other, Tag(tags[other])] | Annotated[marked, Tag(tags[marked])], Discriminator(tag)]


def is_number(value: Any) -> bool:
    """Whether a value of a job file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _numbers(value: Any) -> Any:
    if not all(map(is_number, value if isinstance(value, list) and value else [value])):
        raise PydanticCustomError("expected", "a number or a list of numbers")
    return value


Numbers = Annotated[Any, BeforeValidator(_numbers)]
"""A number or a list of numbers."""


UNITS = {"s": 1, "sec": 1, "min": 60, "h": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400}
CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
DURATION = 'a time such as "10 min", "1.5 h" or "3:50:00"'


def duration(text: str) -> float:
    """Seconds of a time such as ``10 min``, ``3:50:00`` or ``1-12:00:00``; ValueError if it is none."""
    if clock := CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(86400 * days + 3600 * hours + 60 * minutes + seconds)
    number, _, unit = text.strip().partition(" ")
    if unit.strip() not in UNITS or not 0 <= float(number) < float("inf"):
        raise ValueError(f"expected {DURATION}, found {text}")
    return float(number) * UNITS[unit.strip()]


def _interval(value: Any) -> Any:
    try:
        good = duration(value) > 0 if isinstance(value, str) else type(value) is int and value > 0
    except ValueError:
        good = False
    if not good:
        raise PydanticCustomError("expected", f"{DURATION}, or a number of iterations")
    return value


Interval = Annotated[Any, BeforeValidator(_interval)]
"""A time, or a number of iterations."""
