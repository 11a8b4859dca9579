"""A cause more where the largest counts, learned beside what the others explain while these stay as they are."""

import numpy as np

from parallel_et.core.types import Params
from parallel_et.kernels.counts import LEAST
from parallel_et.models.components.initial_fields import lower_envelopes
from parallel_et.models.components.noises import Gauss, Poisson

STARTS = 32
"""Dimensions, at most, from which a search begins: with the points in which most is left there."""
STEPS = 12
"""Iterations of one cause more."""
FEW = 20
"""Points, at least, that tell how far the others fall in a dimension."""
ALIKE = 0.9
"""Cosine from which on two fields are one."""
WORTH = 10.0
"""Rise of the free energy of all points, in nats, from which on a field is no fit to noise."""


def fields_beside(
    noise: Gauss | Poisson, params: Params, fields: np.ndarray, points: np.ndarray, rest: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Fields (D, m) that explain more of points (n, D) of which ``rest`` (n, D) is left, and their gains, most first.

    The search begins with the ``fields`` (D, k), and with the points that have most left in a dimension. If it ends
    with none the fields are taken, and nothing is known of their gains.
    """
    some = np.linspace(0, len(fields) - 1, min(len(fields), STARTS)).astype(int)
    begin = np.hstack([fields, lower_envelopes(fields, points, rest[:, some])])
    found = [one_more(noise, params, np.maximum(field, 0.0), points, points - rest) for field in begin.T]
    taken, gains = list[np.ndarray](), list[float]()
    for field, gain in sorted(found, key=lambda one: -one[1]):
        unit = field / (np.linalg.norm(field) or 1.0)
        if gain > WORTH and all(unit @ other < ALIKE * np.linalg.norm(other) for other in taken):
            taken.append(field)
            gains.append(gain)
    return (np.stack(taken, 1), np.array(gains)) if taken else (fields, None)


def one_more(
    noise: Gauss | Poisson, params: Params, field: np.ndarray, points: np.ndarray, means: np.ndarray
) -> tuple[np.ndarray, float]:
    """The field (D,) of a cause that is learned beside the ``means`` (n, D) that others explain of points (n, D).

    It counts where it is larger than these. Without the cause the others lie below the means there, as low as the
    points say: they have been learned of points with it and without it alike, which hides a dim cause.

    Returns
    -------
    The field, and by how much the log-likelihood of all points is higher with it.
    """
    pi, fall = float(np.mean(params["pi"])), np.zeros_like(field)

    def log(mean: np.ndarray) -> np.ndarray:
        return noise.log(params, points, np.maximum(mean, LEAST))

    before = log(means)
    for step in range(STEPS + 1):
        above = field > means
        without = np.log1p(-pi) + log(np.where(above, means - fall, means)) - before
        both = np.logaddexp(without, np.log(pi) + log(np.where(above, field, means)) - before)
        if step == STEPS:
            break
        absent = np.exp(without - both)
        field = average(1 - absent, above, points, 1.0)
        fall = np.maximum(average(absent, field > means, means - points, FEW), 0.0)
    return field, float(both.sum())


def average(weights: np.ndarray, where: np.ndarray, values: np.ndarray, least: float) -> np.ndarray:
    """The mean (D,) of values (n, D), by weights (n,), where they count (n, D); zero if less weight is there."""
    total = weights @ where
    return np.where(total > least, weights @ (where * values) / np.maximum(total, least), 0.0)
