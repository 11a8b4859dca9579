"""The linear system of the M-step, as matrix products."""

import numpy as np
from scipy.linalg import LinAlgError, eigh
from scipy.linalg.lapack import dpotrf, dtrtri

from parallel_et.core.contract import UNUSED

SMALL = 64
"""Triangles up to this size are inverted."""


def solve_fields(WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float) -> tuple[np.ndarray, np.ndarray]:
    """Fields (H, D) that solve ss WT = ys; what the moments leave open stays as it is in the old ``WT``.

    By Cholesky, without the causes that are never used. Where the rest is singular too (two causes always together),
    the change of W is solved for by the pseudo-inverse: then only the directions that the points determine are changed.
    Also returned is which rows of the equation hold, (H,) bool.
    """
    used = np.diag(ss) > UNUSED * points
    A, B, unused = ss, ys, ~used
    if unused.any():
        A, B = ss.copy(), ys - ss[:, unused] @ WT[unused]
        A[unused], A[:, unused] = 0.0, 0.0
        A[unused, unused] = points
    try:
        new = solve_positive(A, B, UNUSED * points)
        new[unused] = WT[unused]
        return new, used
    except LinAlgError:
        values, vectors = eigh(ss)
        keep = values > UNUSED * points
        change = vectors[:, keep] @ ((vectors[:, keep].T @ (ys - ss @ WT)) / values[keep, None])
        return WT + change, np.zeros(len(ss), bool)


def solve_positive(A: np.ndarray, B: np.ndarray, least: float) -> np.ndarray:
    """The X that solves A X = B for a positive definite A (n, n) and B (n, m), by Cholesky's factorisation.

    A squared pivot that is not above ``least`` is an error.
    """
    L, info = dpotrf(A.T, lower=1, clean=0)
    if info or np.min(np.diag(L)) ** 2 <= least:
        raise LinAlgError("the matrix is singular")
    X = B.copy()
    forward(L, X)
    backward(L, X)
    return X


def forward(L: np.ndarray, X: np.ndarray) -> None:
    """Replace X by L^-1 X, L lower triangular: half by half, which is all matrix products.

    The triangular solution of a BLAS library runs at half the speed of its products.
    """
    if len(L) <= SMALL:
        X[:] = np.tril(dtrtri(L, lower=1)[0]) @ X
        return
    half = len(L) // 2
    forward(L[:half, :half], X[:half])
    X[half:] -= L[half:, :half] @ X[:half]
    forward(L[half:, half:], X[half:])


def backward(L: np.ndarray, X: np.ndarray) -> None:
    """Replace X by L^-T X, L lower triangular."""
    if len(L) <= SMALL:
        X[:] = np.tril(dtrtri(L, lower=1)[0]).T @ X
        return
    half = len(L) // 2
    backward(L[half:, half:], X[half:])
    X[:half] -= L[half:, :half].T @ X[half:]
    backward(L[:half, :half], X[:half])
