"""Limits of double precision: from where on products are too coarse, and below which noise there is only rounding."""

import numpy as np

from parallel_et.core.types import Summary

FAR = 2.0**26
"""Largest magnitude of the part of a log joint that all states of a point share, such as |y|^2 / (2 sigma^2), for
which log joints are computed from products W^T y and W^T W. Their rounding error is then at most about 1e-8."""
SHARP = 2.0**-20
"""Least share of the sum of |y|^2 for which a squared error is computed as a difference of such sums."""
RESIDUAL = 2.0**-48
"""Rounding error of a residual y - W s, relative to the largest magnitude of the data."""


def far(base: np.ndarray) -> np.ndarray:
    """Indices of the points whose log joints have to be computed from residuals, from the shared part ``base`` (n,)."""
    return np.flatnonzero(~(np.abs(base) <= FAR))


def residual_floor(summary: Summary) -> float:
    """Return the standard deviation below which residuals of these data are rounding errors."""
    return RESIDUAL * summary.largest
