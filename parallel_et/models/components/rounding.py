"""Limits of double precision: when products of points and fields lose digits, and when noise is rounding error."""

import numpy as np

from parallel_et.core.types import Summary

MAX_BASE_NATS = 2.0**26
"""Largest magnitude of the term that all states of a point share, such as |y|^2 / (2 sigma^2), in nats. Up to it, log
joints are computed from products W^T y and W^T W, with a rounding error of about 1e-8."""
MIN_ERROR_FRACTION = 2.0**-20
"""Smallest squared error, as a fraction of the sum of |y|^2, that is computed as a difference of such sums."""
RESIDUAL_ROUNDING = 2.0**-48
"""Rounding error of a residual y - W s, relative to the largest magnitude of the data."""


def imprecise_points(base: np.ndarray) -> np.ndarray:
    """Return the indices of points whose log joints need residuals; ``base`` (n,) is the term that states share."""
    return np.flatnonzero(~(np.abs(base) <= MAX_BASE_NATS))


def residual_floor(summary: Summary) -> float:
    """Return the standard deviation below which residuals of these data are rounding errors."""
    return RESIDUAL_ROUNDING * summary.largest
