"""The linear system of the M-step, as matrix products."""

from collections.abc import Sequence

import numpy as np
from scipy.linalg import LinAlgError, eigh
from scipy.linalg.lapack import dpotrf

from parallel_et.core.contract import UNUSED
from parallel_et.core.terms import Deal, alone
from parallel_et.kernels.rows import PIECE, aligned

BAND = 2 * PIECE
"""Rows of a triangle that are found at a time."""
RIDGE, STEPS = 1e-9, 4
"""What is added to the diagonal of singular systems that are large, as a share of the points, and steps to undo it."""
PIECES, LANES = 16, 4
"""In how many pieces a product is dealt out, of widths that are multiples of this: of more pieces products are slow."""


def solve_fields(
    WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float, deal: Deal | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Fields (H, D) that solve ss WT = ys; what the moments leave open stays as it is in the old ``WT``.

    By Cholesky, without the causes that are never used. Where the rest is singular too (two causes always together),
    the change of W is solved for by the pseudo-inverse: then only the directions that the points determine are changed.
    Also returned is which rows of the equation hold, (H,) bool. With ``deal`` the dimensions are shared out.
    """
    used = np.diag(ss) > UNUSED * points
    unused = np.flatnonzero(~used)
    if not used.any():
        return WT, used
    try:
        U = cholesky(ss, UNUSED * points, deal or alone, unused)
        new = solve_with(U, ys, deal or alone, (ss[:, unused], WT[unused]))
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
    X, stiff = np.zeros_like(B), cholesky(A + ridge * np.eye(len(A)), 0.0, deal)
    for _ in range(STEPS):
        X += solve_with(stiff, B - A @ X, deal)
    return X


def cholesky(A: np.ndarray, least: float, deal: Deal = alone, without: Sequence[int] | np.ndarray = ()) -> np.ndarray:
    """The upper triangle U with A = U^T U of a positive definite A (n, n); what is below its diagonal is anything.

    Rows and columns that it is to be ``without`` are taken for those of a diagonal matrix. So are those
    by which it is larger than A, as the kernels want it. A squared pivot that is not above ``least`` is an error. Some
    rows at a time: all ranks factorise the square on the diagonal, and the rest is dealt.
    """
    from parallel_et.kernels import triangles  # linear models import it first: only their jobs load it

    n, N = len(A), -(-len(A) // PIECE) * PIECE
    U = aligned((N, N))
    U[:n, :n], U[:n, n:], U[n:] = A, 0.0, 0.0
    U[range(n, N), range(n, N)] = max(1.0, 2 * least)
    if len(without):
        U[without], U[:, without] = 0.0, 0.0
        U[without, without] = np.max(np.diag(A))
    before = 0
    for first in range(0, N, BAND):
        last = min(first + BAND, N)
        for column in range(first, last, PIECE):
            triangles.subtract(U, U, column, first, last, before, first)
        U[first:last, first:last] = factor(U[first:last, first:last], least)
        if last < N:
            find_right(U, first, last, deal)
        before = first
    return U


def find_right(U: np.ndarray, first: int, last: int, deal: Deal) -> None:
    """Find the rows [first, last) of a triangle right of their square on the diagonal.

    From the next square, which the ranks would else do alike, the product of the rows above ``first`` is subtracted.
    """
    from parallel_et.kernels import triangles

    end = min(last + BAND, len(U))
    right = [(first, last, column) for column in range(last, len(U), PIECE)]
    places = right + [(last, end, column) for column in range(last, end, PIECE)]

    def work(piece: int, room: np.ndarray) -> None:
        top, bottom, column = places[piece]
        if piece < len(right):
            triangles.forward(U, U, column, top, bottom)
        else:
            triangles.subtract(U, U, column, top, bottom, 0, first)
        room.reshape(-1, PIECE)[:] = U[top:bottom, column : column + PIECE]

    found, at = deal([(bottom - top) * PIECE for top, bottom, _ in places], work), 0
    for top, bottom, column in places:
        size = (bottom - top) * PIECE
        U[top:bottom, column : column + PIECE] = found[at : at + size].reshape(-1, PIECE)
        at += size


def factor(A: np.ndarray, least: float) -> np.ndarray:
    """The triangle U of a small positive definite A (n, n), as ``cholesky`` has it."""
    L, info = dpotrf(A.T, lower=1)
    if info or np.min(np.diag(L)) ** 2 <= least:
        raise LinAlgError("the matrix is singular")
    return L.T


def solve_with(
    U: np.ndarray, B: np.ndarray, deal: Deal = alone, known: tuple[np.ndarray, np.ndarray] | None = None
) -> np.ndarray:
    """The X that solves U^T U X = B, (n, m), for a triangle of ``cholesky``; the columns are shared out.

    From B is subtracted the product of what is ``known``, (n, k) and (k, m), if there is any.
    """
    from parallel_et.kernels import triangles  # linear models import it first: only their jobs load it

    (n, m), N = B.shape, len(U)
    parts = [slice(start, min(start + PIECE, m)) for start in range(0, m, PIECE)]

    def work(piece: int, room: np.ndarray) -> None:
        X, part = room.reshape(N, PIECE), parts[piece]
        X[:] = 0.0
        X[:n, : part.stop - part.start] = B[:, part]
        if known and known[1].size:
            X[:n, : part.stop - part.start] -= known[0] @ known[1][:, part]
        triangles.forward(U, X, 0, 0, N)
        triangles.backward(U, X, 0)

    found = deal([N * PIECE] * len(parts), work).reshape(-1, N, PIECE)
    X = aligned((n, m))  # as the kernels want fields, which then need not be copied
    for some, part in zip(found, parts, strict=True):
        X[:, part] = some[:n, : part.stop - part.start]
    return X


def pieces_of(size: int) -> list[slice]:
    """``PIECES`` pieces of a size or less, all but the last of one width, a multiple of ``LANES``."""
    width = LANES * -(-size // (PIECES * LANES))
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
