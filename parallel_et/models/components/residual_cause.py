"""A search for missing causes of models with a maximum: one new cause is learned while the others stay fixed."""

import numpy as np

from parallel_et.core.types import Params
from parallel_et.kernels.counts import LEAST_MEAN
from parallel_et.models.components.initial_fields import lower_envelopes
from parallel_et.models.components.noises import Gauss, Poisson

MAX_STARTS = 32
"""Largest number of dimensions whose residuals give initial fields of a search."""
EM_ITERATIONS = 12
"""Number of EM iterations for the new cause."""
MIN_ABSENT_POINTS = 20
"""Smallest number of points without the cause for an estimate of the means without the cause."""
SAME_FIELD_COSINE = 0.9
"""Smallest cosine of two fields that count as the same field."""
MIN_GAIN_NATS = 10.0
"""Smallest gain of the free energy of all points, in nats, for which a field is kept."""


def fields_of_residual(
    noise: Gauss | Poisson, params: Params, fields: np.ndarray, points: np.ndarray, rest: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return fields (D, m) for the residuals of points, and their gains in nats (m,), best first.

    The search starts from ``fields`` (D, k), and from the points with the largest residuals in some dimensions.
    If no field gains enough, it returns ``fields`` and None.

    Parameters
    ----------
    points : (n, D)
    rest : (n, D) residuals of the points
    """
    some = np.linspace(0, len(fields) - 1, min(len(fields), MAX_STARTS)).astype(int)
    begin = np.hstack([fields, lower_envelopes(fields, points, rest[:, some])])
    found = [learn_residual_cause(noise, params, np.maximum(field, 0.0), points, points - rest) for field in begin.T]
    taken, gains = list[np.ndarray](), list[float]()
    for field, gain in sorted(found, key=lambda one: -one[1]):
        unit = field / (np.linalg.norm(field) or 1.0)
        if gain > MIN_GAIN_NATS and all(unit @ other < SAME_FIELD_COSINE * np.linalg.norm(other) for other in taken):
            taken.append(field)
            gains.append(gain)
    return (np.stack(taken, 1), np.array(gains)) if taken else (fields, None)


def learn_residual_cause(
    noise: Gauss | Poisson, params: Params, field: np.ndarray, points: np.ndarray, means: np.ndarray
) -> tuple[np.ndarray, float]:
    """Learn the field of one new cause while the means of the other causes stay fixed.

    The field sets the mean of a value where it is larger than the other means.
    The other means were learned from points with and without the cause, which hides a dim cause.
    In points without the cause they are therefore lowered, by an amount that is learned too.

    Parameters
    ----------
    field : (D,) initial field
    points : (n, D)
    means : (n, D) means of the points without the cause

    Returns
    -------
    The field (D,), and the gain of the log likelihood of all points in nats.
    """
    pi, fall = float(np.mean(params["pi"])), np.zeros_like(field)

    def log(mean: np.ndarray) -> np.ndarray:
        return noise.log(params, points, np.maximum(mean, LEAST_MEAN))

    before = log(means)
    for step in range(EM_ITERATIONS + 1):
        above = field > means
        without = np.log1p(-pi) + log(np.where(above, means - fall, means)) - before
        both = np.logaddexp(without, np.log(pi) + log(np.where(above, field, means)) - before)
        if step == EM_ITERATIONS:
            break
        absent = np.exp(without - both)
        field = weighted_mean(1 - absent, above, points, 1.0)
        fall = np.maximum(weighted_mean(absent, field > means, means - points, MIN_ABSENT_POINTS), 0.0)
    return field, float(both.sum())


def weighted_mean(weights: np.ndarray, where: np.ndarray, values: np.ndarray, least: float) -> np.ndarray:
    """Return the weighted mean (D,) of values (n, D) at ``where`` (n, D); 0 for a total weight up to ``least``."""
    total = weights @ where
    return np.where(total > least, weights @ (where * values) / np.maximum(total, least), 0.0)
