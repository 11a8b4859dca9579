"""What a job says that does not fit its data, in one line each: told before the first iteration."""

from collections.abc import Iterator

import numpy as np

from parallel_et.core.contract import Params
from parallel_et.core.problem import Problem

NOISE = (0.01, 20.0)
"""Where sigma begins, in units of the spread of the data: below and above it does not fit."""
FIELDS = (1 / 30, 30.0)
"""The root mean square of the fields at the beginning, in units of that of the data."""
SHARED, SHARED_BELOW_ZERO = 3.0, 1.0
"""What all points share, in units of their spread, above which it is too much: for fields that cannot be negative, and
for those that can, which explain points on both sides of zero."""
HALF = 0.5


def notes(problem: Problem, params: Params, name: str) -> Iterator[str]:
    """All that does not fit, for a model of that name with the parameters that it begins with."""
    data, model = problem.summary, problem.model
    if data.points < data.dims:
        yield (
            f"note: {data.points} points are fewer than the {data.dims} dimensions; points are along the first axis, "
            "is the table transposed?"
        )
    if data.spread == 0:
        yield "note: all points are the same"
        return
    if data.constant:
        yield f"note: {of(data.constant, data.dims)} have the same value, not zero, in all points"
    if data.empty > HALF * data.dims:
        yield f"note: {of(data.empty, data.dims)} are zero in all points"
    signed = "W" not in model.params or model.params["W"].low < 0
    if not signed and data.negative > HALF:
        yield f"warning: {data.negative:.0%} of the data is negative, the fields of {name} cannot be"
    if "sigma" not in model.params:  # nothing else has the unit of the data for sure
        return
    most = SHARED_BELOW_ZERO if signed else SHARED
    if data.offset > most * data.spread:
        way = "data.centre = true subtracts it" if signed else "subtract it, or a part of it, as causes are to add it"
        yield (
            f"note: what all points share, {data.offset:.3g}, is more than {f'{most:g} times ' if most > 1 else ''}"
            f"their spread of {data.spread:.3g}; {way}"
        )
    sigma = float(params["sigma"])
    if not NOISE[0] * data.spread <= sigma <= NOISE[1] * data.spread:
        yield f"note: sigma is {sigma:.3g}, the data have a spread of {data.spread:.3g}; left out, it begins with that"
    size = float(np.sqrt((model.pictures(params) ** 2).mean()))
    if not FIELDS[0] * data.rms <= size <= FIELDS[1] * data.rms:
        yield (
            f"note: W begins with values of about {size:.3g}, the data have some of about {data.rms:.3g}; without "
            "model.init it begins at their scale"
        )


def of(count: int, dims: int) -> str:
    """Some of the dimensions."""
    return f"{count} of the {dims} dimensions"
