"""Where noise and prior begin when fields begin close to what they are to become."""

from typing import Any

from parallel_et.core.contract import Model, Summary
from parallel_et.core.options import number_of

SURE = 0.25
"""Standard deviation of the noise beside the one that it begins with otherwise, which would blur the fields again."""
FROM_MOMENTS: dict[str, dict[str, Any]] = {
    "model": {"init": {"W": {"moments": "third"}}},
    "anneal": {"temperature": 1.0, "renew": 12},
}
"""The first job of a model whose fields are then found, and often are not when they begin at random."""


def sure_start(model: Model, probability: float, summary: Summary) -> dict[str, float]:
    """Sigma, where there is one, and pi of fields that the moments have told, with the ``probability`` of a cause."""
    sigma = {"sigma": SURE * number_of(model, "sigma", summary)} if "sigma" in model.params else {}
    return {**sigma, "pi": probability}
