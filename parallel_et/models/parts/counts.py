"""What models of counts compute of many points at once, beside the joint of their states."""

import numpy as np

from parallel_et.kernels import counts

LEAST = counts.LEAST
"""Least mean of a count: no point is impossible."""


def bounds_of_counts(Y: np.ndarray, WT: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Log of the selection function of ET eq. 28 for Poisson noise, up to what is y's alone; (n, H).

    Y (n, width), fields of at least ``LEAST`` as rows (H, width) and their logarithms.
    """
    scores = np.empty((len(Y), len(WT)))
    counts.overshoot(Y, WT, logs, scores)
    return scores


def log_factorials(Y: np.ndarray) -> np.ndarray:
    """Sum of log(y!) of each row, (n,)."""
    found = np.empty(len(Y))
    counts.log_factorials(Y, found)
    return found
