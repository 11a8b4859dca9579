"""What arrays must be like, and the line that says what they are instead."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from parallel_et.core.model import Model, shape_of
from parallel_et.errors import UserError

LARGEST = 1e150
"""Of a parameter: its square is a number."""


class Limits(NamedTuple):
    """What an array must be like: its shape, where ``None`` is any size but 0, and its least and largest value.

    ``any`` lets everything pass, also what is no number or not finite.
    """

    shape: tuple[int | None, ...]
    low: float = -np.inf
    high: float = np.inf
    any: bool = False

    def __str__(self) -> str:
        words = "numbers" if self.any else "finite numbers"
        if self.low > -np.inf:
            words += f" of {self.low:g} or more"
        if self.high < np.inf:
            words += f"{' and' * (self.low > -np.inf)} up to {self.high:g}"
        return words

    def outside(self, values: np.ndarray) -> float | None:
        """A value that is none here, if there is one."""
        for value in (values.min(), values.max()) if values.size and not self.any else ():  # both NaN if one is
            if not (self.low <= value <= self.high and np.isfinite(value)):
                return float(value)
        return None


def limits_of(model: Model) -> dict[str, Limits]:
    """The parameters of a model."""
    return {
        name: Limits(shape_of(model, name), max(param.low, -LARGEST), min(param.high, LARGEST))
        for name, param in model.params.items()
    }


def check_arrays(arrays: Mapping[str, np.ndarray], wanted: Mapping[str, Limits], where: str) -> None:
    """Refuse arrays of which one is missing, has another shape, or values that it must not have."""
    for name, limits in wanted.items():
        if name not in arrays:
            raise UserError(f"{where}/{name}: expected {limits}, found nothing there")
        check_array(f"{where}/{brief(name)}", arrays[name], limits)


def check_array(where: str, found: np.ndarray, limits: Limits) -> None:
    """Refuse an array of another shape, or with values that it must not have."""
    if len(found.shape) != len(limits.shape) or not all(
        n > 0 if size is None else n == size for n, size in zip(found.shape, limits.shape, strict=True)
    ):
        shape = " x ".join("any" if size is None else str(size) for size in limits.shape) or "a single number"
        there = " x ".join(map(str, found.shape)) or "a single number"
        raise UserError(f"{where}: expected the shape {shape}, found {there}")
    if (bad := limits.outside(found)) is not None:
        raise UserError(f"{where}: expected {limits}, found {bad:g}")


def brief(value: object) -> str:
    """For a message: in one line, and not too long."""
    text = "nothing" if value is None else ascii(str(value))[1:-1]
    return text if len(text) <= 60 else f"{text[:57]}…"
