"""The linear system of the M-step, as matrix products."""

from typing import TypeAlias

import numpy as np
from scipy.linalg import LinAlgError, eigh
from scipy.linalg.lapack import dpotrf, dtrtri

from parallel_et.core.contract import UNUSED
from parallel_et.core.terms import Deal

SMALL = 64
"""Triangles up to this size are inverted."""
RIDGE, STEPS = 1e-9, 4
"""What is added to the diagonal of singular systems that are large, as a share of the points, and steps to undo it."""
PIECES, NARROW = 12, 64
"""In about how many pieces a work is dealt out, of widths that are multiples of this: products of less are slow."""


def solve_fields(
    WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float, deal: Deal | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Fields (H, D) that solve ss WT = ys; what the moments leave open stays as it is in the old ``WT``.

    By Cholesky, without the causes that are never used. Where the rest is singular too (two causes always together),
    the change of W is solved for by the pseudo-inverse: then only the directions that the points determine are changed.
    Also returned is which rows of the equation hold, (H,) bool. With ``deal`` the dimensions are shared out.
    """
    used = np.diag(ss) > UNUSED * points
    A, B, unused = ss, ys, ~used
    if unused.any():
        A, B = ss.copy(), ys - ss[:, unused] @ WT[unused]
        A[unused], A[:, unused] = 0.0, 0.0
        A[unused, unused] = points
    try:
        new = solve_positive(A, B, UNUSED * points, deal)
        new[unused] = WT[unused]
        return new, used
    except LinAlgError:
        if deal is not None:
            return WT + nearest_solution(ss, ys - ss @ WT, RIDGE * points, deal), np.zeros(len(ss), bool)
        values, vectors = eigh(ss)
        keep = values > UNUSED * points
        change = vectors[:, keep] @ ((vectors[:, keep].T @ (ys - ss @ WT)) / values[keep, None])
        return WT + change, np.zeros(len(ss), bool)


def nearest_solution(A: np.ndarray, B: np.ndarray, ridge: float, deal: Deal) -> np.ndarray:
    """The smallest X (n, m) that solves A X = B as well as can be, for an A (n, n) without negative eigenvalues.

    In steps, each of which solves with a ridge on the diagonal for what is left: what an eigenvalue l leaves after k of
    them is (1 + l / ridge)^-k. An eigenvalue decomposition takes ten times as long.
    """
    X, stiff = np.zeros_like(B), A + ridge * np.eye(len(A))
    for _ in range(STEPS):
        X += solve_positive(stiff, B - A @ X, 0.0, deal)
    return X


def solve_positive(A: np.ndarray, B: np.ndarray, least: float, deal: Deal | None = None) -> np.ndarray:
    """The X that solves A X = B for a positive definite A (n, n) and B (n, m), by Cholesky's factorisation.

    A squared pivot that is not above ``least`` is an error. With ``deal`` the columns of B are solved for in pieces,
    whose widths follow from m alone: so the bits are the same whoever does them.
    """
    L, info = dpotrf(A.T, lower=1, clean=0)
    if info or np.min(np.diag(L)) ** 2 <= least:
        raise LinAlgError("the matrix is singular")
    inverse = inverses(L)
    if deal is None:
        X = B.copy()
        forward(L, inverse, X)
        backward(L, inverse, X)
        return X
    (n, m), parts = B.shape, pieces_of(B.shape[1])

    def solve(piece: int, room: np.ndarray) -> None:
        X = room.reshape(n, -1)
        X[:] = B[:, parts[piece]]
        forward(L, inverse, X)
        backward(L, inverse, X)

    found = deal([n * (part.stop - part.start) for part in parts], solve)
    X = np.empty((n, m))
    for part in parts:
        X[:, part] = found[n * part.start : n * part.stop].reshape(n, -1)
    return X


def pieces_of(size: int) -> list[slice]:
    """About ``PIECES`` pieces of a size, all but the last a multiple of ``NARROW``."""
    width = NARROW * max(1, round(size / (PIECES * NARROW)))
    return [slice(start, min(start + width, size)) for start in range(0, size, width)]


def dealt_gram(WT: np.ndarray, deal: Deal) -> np.ndarray:
    """W^T W (H, H) of fields as rows (H, width): rows below the diagonal, shared out in pieces."""
    H = len(WT)
    parts = pieces_of(H)

    def multiply(piece: int, room: np.ndarray) -> None:
        rows = parts[piece]
        np.matmul(WT[rows], WT[: rows.stop].T, out=room.reshape(-1, rows.stop))

    found = deal([(rows.stop - rows.start) * rows.stop for rows in parts], multiply)
    gram, at = np.empty((H, H)), 0
    for rows in parts:
        size = (rows.stop - rows.start) * rows.stop
        some = found[at : at + size].reshape(-1, rows.stop)
        gram[rows, : rows.stop] = some
        gram[: rows.start, rows] = some[:, : rows.start].T
        at += size
    return gram


Inverses: TypeAlias = "np.ndarray | tuple[Inverses, Inverses]"
"""Of a triangle: its inverse, or those of its two halves."""


def inverses(L: np.ndarray) -> Inverses:
    """The inverses of the small triangles along the diagonal of L, which is lower triangular."""
    if len(L) <= SMALL:
        return np.tril(dtrtri(L, lower=1)[0])
    half = len(L) // 2
    return inverses(L[:half, :half]), inverses(L[half:, half:])


def forward(L: np.ndarray, inverse: Inverses, X: np.ndarray) -> None:
    """Replace X by L^-1 X, L lower triangular: half by half, which is all matrix products.

    The triangular solution of a BLAS library runs at half the speed of its products.
    """
    if isinstance(inverse, np.ndarray):
        X[:] = inverse @ X
        return
    half = len(L) // 2
    forward(L[:half, :half], inverse[0], X[:half])
    X[half:] -= L[half:, :half] @ X[:half]
    forward(L[half:, half:], inverse[1], X[half:])


def backward(L: np.ndarray, inverse: Inverses, X: np.ndarray) -> None:
    """Replace X by L^-T X, L lower triangular."""
    if isinstance(inverse, np.ndarray):
        X[:] = inverse.T @ X
        return
    half = len(L) // 2
    backward(L[half:, half:], inverse[1], X[half:])
    X[:half] -= L[half:, :half].T @ X[half:]
    backward(L[:half, :half], inverse[0], X[:half])
