"""Limits of the shapes and values of arrays in files, and their check."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from parallel_et.core.model import Model, shape_of
from parallel_et.errors import UserError

MAX_PARAMETER = 1e150
"""Largest magnitude of a parameter: its square is finite."""


class Limits(NamedTuple):
    """The limits of an array.

    Attributes
    ----------
    shape : lengths of the axes; None for any length but 0
    low, high : smallest and largest value
    any : whether all values are allowed, also NaN and infinity
    """

    shape: tuple[int | None, ...]
    low: float = -np.inf
    high: float = np.inf
    any: bool = False

    def __str__(self) -> str:
        text = "numbers" if self.any else "finite numbers"
        if self.low > -np.inf:
            text += f" of {self.low:g} or more"
        if self.high < np.inf:
            text += f"{' and' * (self.low > -np.inf)} up to {self.high:g}"
        return text

    def find_violation(self, values: np.ndarray) -> float | None:
        """Return a value outside the limits; None if there is none."""
        for value in (values.min(), values.max()) if values.size and not self.any else ():  # both NaN if one is
            if not (self.low <= value <= self.high and np.isfinite(value)):
                return float(value)
        return None


def limits_of(model: Model) -> dict[str, Limits]:
    """Return the limits of the parameters of a model by name."""
    return {
        name: Limits(shape_of(model, name), max(param.low, -MAX_PARAMETER), min(param.high, MAX_PARAMETER))
        for name, param in model.params.items()
    }


def check_arrays(arrays: Mapping[str, np.ndarray], wanted: Mapping[str, Limits], where: str) -> None:
    """Raise a UserError if an array is missing, has another shape, or has values outside its limits."""
    for name, limits in wanted.items():
        if name not in arrays:
            raise UserError(f"{where}/{name}: expected {limits}, found nothing there")
        check_array(f"{where}/{shorten(name)}", arrays[name], limits)


def check_array(where: str, found: np.ndarray, limits: Limits) -> None:
    """Raise a UserError if an array has another shape, or values outside its limits."""
    if len(found.shape) != len(limits.shape) or not all(
        n > 0 if size is None else n == size for n, size in zip(found.shape, limits.shape, strict=True)
    ):
        shape = " x ".join("any" if size is None else str(size) for size in limits.shape) or "a single number"
        there = " x ".join(map(str, found.shape)) or "a single number"
        raise UserError(f"{where}: expected the shape {shape}, found {there}")
    if (bad := limits.find_violation(found)) is not None:
        raise UserError(f"{where}: expected {limits}, found {bad:g}")


def shorten(value: object) -> str:
    """Return a value for a message, in one line of at most 60 characters."""
    text = "nothing" if value is None else ascii(str(value))[1:-1]
    return text if len(text) <= 60 else f"{text[:57]}…"
