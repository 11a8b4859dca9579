"""Initial values of sigma, pi and fields for models whose fields are initialised from third moments."""

from typing import Any

import numpy as np

from parallel_et.core.model import Model
from parallel_et.core.options import initial_number
from parallel_et.core.types import Summary

INITIAL_SIGMA_FRACTION = 0.25
"""Initial sigma as a fraction of its usual initial value, which would blur the fields again."""
EXTREME_FRACTION = 0.05
"""Fraction of the points that are farthest in the direction of a cause, and therefore contain the cause."""
ENVELOPE_QUANTILE = 0.1
"""Quantile of these points that becomes the field."""
FIRST_JOB_WITH_MOMENTS: dict[str, dict[str, Any]] = {
    "model": {"init": {"W": {"moments": "third"}}},
    "anneal": {"temperature": 1.0, "renew": 12},
}
"""Keys of the first job of a model that needs initial fields from third moments to find all fields."""


def initial_sigma_and_pi(model: Model, probability: float, summary: Summary) -> dict[str, float]:
    """Return initial values of pi and, if the model has it, sigma; ``probability`` is that of a cause."""
    sigma = (
        {"sigma": INITIAL_SIGMA_FRACTION * initial_number(model, "sigma", summary)} if "sigma" in model.params else {}
    )
    return {**sigma, "pi": probability}


def lower_envelopes(fields: np.ndarray, points: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Return fields (D, m) for a model with a maximum; see ``InitialisedFromDirections`` for the arguments.

    The field of an active cause is a lower bound of the points.
    Points without a larger active field lie on this bound.
    """
    count = max(1, round(EXTREME_FRACTION * len(points)))
    farthest = np.argsort(-along, 0, kind="stable")[:count]
    return (
        np.stack([np.quantile(points[some], ENVELOPE_QUANTILE, axis=0) for some in farthest.T], 1)
        if along.size
        else fields
    )
