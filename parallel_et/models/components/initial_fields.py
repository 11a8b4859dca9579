"""Where noise and prior begin when fields begin close to what they are to become."""

from typing import Any

import numpy as np

from parallel_et.core.model import Model
from parallel_et.core.options import number_of
from parallel_et.core.types import Summary

SURE = 0.25
"""Standard deviation of the noise beside the one that it begins with otherwise, which would blur the fields again."""
FAR, LOW = 0.05, 0.1
"""Share of the points that surely have a cause, being farthest in its direction, and which quantile of them is its
field."""
FROM_MOMENTS: dict[str, dict[str, Any]] = {
    "model": {"init": {"W": {"moments": "third"}}},
    "anneal": {"temperature": 1.0, "renew": 12},
}
"""The first job of a model whose fields are then found, and often are not when they begin at random."""


def sure_start(model: Model, probability: float, summary: Summary) -> dict[str, float]:
    """Sigma, where there is one, and pi of fields that the moments have told, with the ``probability`` of a cause."""
    sigma = {"sigma": SURE * number_of(model, "sigma", summary)} if "sigma" in model.params else {}
    return {**sigma, "pi": probability}


def lower_envelopes(fields: np.ndarray, points: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Return fields (D, m) of which the largest counts; arguments are those of ``InitialisedFromDirections``.

    No point lies below the field of an active cause. Some points lie on it, if no other active field is larger.
    """
    count = max(1, round(FAR * len(points)))
    farthest = np.argsort(-along, 0, kind="stable")[:count]
    return np.stack([np.quantile(points[some], LOW, axis=0) for some in farthest.T], 1) if along.size else fields
