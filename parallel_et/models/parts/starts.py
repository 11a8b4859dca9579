"""Where noise and prior begin when fields begin close to what they are to become."""

from parallel_et.core.contract import Model, Summary
from parallel_et.core.options import number_of

SURE = 0.25
"""Standard deviation of the noise beside the one that it begins with otherwise, which would blur the fields again."""


def sure_start(model: Model, probability: float, summary: Summary) -> dict[str, float]:
    """Sigma and pi of fields that the moments of the data have told, with the ``probability`` of a cause."""
    return {"sigma": SURE * number_of(model, "sigma", summary), "pi": probability}
