"""Linear algebra of models on one rank or all ranks: products of fields, and the linear system of the M-step."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.linalg import LinAlgError

from parallel_et.kernels.rows import LANES, PIECE_COLUMNS, aligned, pad_rows, padded
from parallel_et.parallel.work_sharing import WorkSharing, serial

MIN_USED_FRACTION = 1e-12
"""Sums of squares below this fraction of the points count as zero."""
BAND_ROWS = 3 * PIECE_COLUMNS
"""Rows of a triangle that are factored at a time."""
RIDGE = 1e-9
"""Ridge on the diagonal of large singular systems, as a fraction of the points."""
RIDGE_STEPS = 4
"""Steps of refinement that undo the ridge."""
SOLUTION = "solution"
"""Name of the shared array of a solution."""
GRAM_TILES = 10
"""Tiles along each side of a distributed Gram matrix. More tiles make the products slow."""


class Sums(Protocol):
    """The sums of a linear M-step in any layout: ys = sum of <s> y^T, and ss = sum of <s s^T>."""

    @property
    def active(self) -> np.ndarray:
        """The diagonal of ss, (H,)."""

    @property
    def ys(self) -> np.ndarray:
        """The table ys (H, D)."""

    @property
    def ss(self) -> np.ndarray:
        """The table ss (H, H)."""

    def columns(self, dims: slice, out: np.ndarray) -> None:
        """Write columns of ys to ``out`` (H, n)."""

    def rows(self, causes: np.ndarray) -> np.ndarray:
        """Return rows of ss, (k, H)."""

    def upper(self, out: np.ndarray, first: int, last: int) -> None:
        """Write the rows [first, last) of ss, from the diagonal on, into a larger matrix."""


class Tables(NamedTuple):
    """The ``Sums`` as dense tables."""

    ys: np.ndarray
    ss: np.ndarray

    @property
    def active(self) -> np.ndarray:
        return np.diag(self.ss)

    def columns(self, dims: slice, out: np.ndarray) -> None:
        out[:] = self.ys[:, dims]

    def rows(self, causes: np.ndarray) -> np.ndarray:
        return self.ss[causes]

    def upper(self, out: np.ndarray, first: int, last: int) -> None:
        out[first:last, : len(self.ss)] = self.ss[first:last]


class LinearAlgebra:
    """Linear algebra for the fields of a model.

    If the problem is ``large``, all ranks call the methods together and share the work. The algorithms then compute
    pieces, so results depend on ``large`` in their last bits. They never depend on the number of ranks.
    """

    def __init__(self, work_sharing: WorkSharing = serial, large: bool = False) -> None:
        self.large = large
        self._work_sharing = work_sharing if large else serial

    def rows(self, fields: np.ndarray) -> np.ndarray:
        """Return fields (D, H) as rows (H, width), padded for the kernels, in shared memory."""
        table, work_sharing = fields.T, self._work_sharing
        H, D = table.shape
        if work_sharing.size == 1 and table.flags.c_contiguous and padded(D) == D:
            return pad_rows(table)
        rows = work_sharing.shared_array("fields", (H, padded(D)))

        def copy(first: int, last: int) -> None:
            rows[first:last, :D] = table[first:last]
            rows[first:last, D:] = 0.0

        work_sharing.map_range(H, copy)
        return rows

    def gram(self, WT: np.ndarray) -> np.ndarray:
        """Return the Gram matrix W^T W (H, H) of fields as rows (H, width)."""
        return gram_in_pieces(WT, self._work_sharing) if self.large else WT @ WT.T

    def square_norms(self, WT: np.ndarray) -> np.ndarray:
        """Return the squared norms (H,) of rows (H, width)."""
        from parallel_et.kernels import select  # only some models need it

        found = self._work_sharing.shared_array("squares of fields", (len(WT),))
        self._work_sharing.map_range(
            len(WT), lambda first, last: select.square_norms(WT[first:last], found[first:last])
        )
        return found

    def unit_rows(self, WT: np.ndarray) -> np.ndarray:
        """Return rows (H, width) of norm 1 in single precision."""
        from parallel_et.kernels import select  # only some models need it

        units, squares = self._work_sharing.shared_array("units", WT.shape, np.float32), np.empty(len(WT))

        def normalise(first: int, last: int) -> None:
            select.unit_rows(WT[first:last], squares[first:last], units[first:last])

        self._work_sharing.map_range(len(WT), normalise)
        return units

    def sum_of(self, count: int, work: Callable[[int], float]) -> float:
        """Return the sum of ``work(k)`` for k < ``count``."""
        found = self._work_sharing.shared_array("terms", (count,))

        def compute(k: int) -> None:
            found[k] = work(k)

        self._work_sharing.map_pieces([1] * count, compute, lambda k: found[k : k + 1])
        return float(found.sum())

    def solve_fields(self, WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float) -> np.ndarray:
        """Return the fields (H, D) that solve ss WT = ys, for ys (H, D) and ss (H, H) summed over ``points``."""
        return self.solve(WT, Tables(ys, ss), points)[0]

    def solve(self, WT: np.ndarray, sums: Sums, points: float) -> tuple[np.ndarray, np.ndarray]:
        """Solve ss WT = ys for the fields; directions that the sums do not determine stay as in the old ``WT``.

        Unused causes are left out, and the other fields follow by Cholesky factorisation. If the matrix is singular, as
        with two causes that are always active together, the pseudo-inverse gives the change of the fields.

        Returns
        -------
        fields (H, D), and the rows of the equation that hold (H,) bool
        """
        work_sharing, least = self._work_sharing, MIN_USED_FRACTION * points
        used = sums.active > least
        unused = np.flatnonzero(~used)
        if not used.any():
            return WT, used
        try:
            U = cholesky(sums.upper, sums.active, least, work_sharing, unused)
            known = (sums.rows(unused).T, WT[unused]) if len(unused) else None
            out = work_sharing.shared_array(SOLUTION, WT.shape)
            new = work_sharing.private_copy(SOLUTION, solve_with(U, sums.columns, out, work_sharing, known))
            new[unused] = WT[unused]
            return new, used
        except LinAlgError:
            residual = sums.ys - sums.ss @ WT
            solved = np.zeros(len(used), bool)
            if self.large:
                return WT + least_squares_solution(sums.ss, residual, RIDGE * points, work_sharing), solved
            from scipy.linalg import eigh  # takes memory, and is rarely needed

            values, vectors = eigh(sums.ss)
            keep = values > least
            change = vectors[:, keep] @ ((vectors[:, keep].T @ residual) / values[keep, None])
            return WT + change, solved


def least_squares_solution(A: np.ndarray, B: np.ndarray, ridge: float, work_sharing: WorkSharing) -> np.ndarray:
    """Return the least-squares solution X (n, m) of A X = B with the smallest norm, for a positive semidefinite A.

    Each step solves for the residual with a ridge on the diagonal. After k steps, the residual along an eigenvector of
    eigenvalue l is (1 + l / ridge)^-k. An eigenvalue decomposition takes ten times as long.
    """
    X = np.zeros_like(B)
    with_ridge = Tables(B, A + ridge * np.eye(len(A)))
    U = cholesky(with_ridge.upper, with_ridge.active, 0.0, work_sharing)
    out = work_sharing.shared_array(SOLUTION, B.shape)
    for _ in range(RIDGE_STEPS):
        X += solve_with(U, Tables(B - A @ X, A).columns, out, work_sharing)
        work_sharing.map_range(0, lambda first, last: None)  # wait until all ranks have read ``out``
    return X


def cholesky(
    upper: Callable[[np.ndarray, int, int], None],
    diagonal: np.ndarray,
    least: float,
    work_sharing: WorkSharing = serial,
    without: Sequence[int] | np.ndarray = (),
) -> np.ndarray:
    """Return the upper triangle U with A = U^T U of a positive definite A (n, n), padded to whole pieces.

    Elements below the diagonal are undefined. All ranks factor the square on the diagonal of a band, with
    bit-identical results, and divide the rest of the band among them.

    Parameters
    ----------
    upper : writes the rows [first, last) of A, from the diagonal on, into a larger matrix
    diagonal : (n,) the diagonal of A
    least : squared pivots must be above it; otherwise the matrix is singular
    without : rows and columns that are replaced by those of a diagonal matrix, like the padding
    """
    from parallel_et.kernels import triangles  # only linear models load it

    n, N = len(diagonal), -(-len(diagonal) // PIECE_COLUMNS) * PIECE_COLUMNS
    U = work_sharing.shared_array("triangle", (N, N))
    squares = work_sharing.shared_array("squares", (2, BAND_ROWS, BAND_ROWS))
    padding, missing = np.arange(n, N), np.asarray(without, int)

    def initialise(first: int, last: int) -> None:
        U[first:last, n:] = 0.0
        upper(U, first, min(last, n))
        U[first:last, missing] = 0.0
        for rows, pivot in ((missing, np.max(diagonal)), (padding, max(1.0, 2 * least))):
            diagonal_rows = rows[(first <= rows) & (rows < last)]
            U[diagonal_rows] = 0.0
            U[diagonal_rows, diagonal_rows] = pivot
        top = slice(first, min(last, BAND_ROWS))
        squares[0, top, :N] = U[top, :BAND_ROWS]

    work_sharing.map_range(N, initialise)
    for number, first in enumerate(range(0, N, BAND_ROWS)):
        last, before = min(first + BAND_ROWS, N), max(0, first - BAND_ROWS)
        if not triangles.factor_square(U, squares[number % 2], before, first, last, least):
            raise LinAlgError("the matrix is singular")
        if last < N:
            factor_right(U, first, last, squares[(number + 1) % 2], work_sharing)
    return U


def factor_right(U: np.ndarray, first: int, last: int, square: np.ndarray, work_sharing: WorkSharing) -> None:
    """Compute the rows [first, last) of a triangle, right of their square on the diagonal.

    Also compute the next ``square`` less the product of the rows above ``first``, so that no rank has to repeat it.
    """
    from parallel_et.kernels import triangles

    end = min(last + BAND_ROWS, len(U))
    right, scratch = range(last, len(U), PIECE_COLUMNS), aligned((len(U), PIECE_COLUMNS))
    sizes = [(last - first) * PIECE_COLUMNS] * len(right)
    sizes += [(end - last) * PIECE_COLUMNS] * ((end - last) // PIECE_COLUMNS)

    def out(piece: int) -> np.ndarray:
        column = right[piece % len(right)]
        if piece < len(right):
            return U[first:last, column : column + PIECE_COLUMNS]
        return square[: end - last, column - last : column - last + PIECE_COLUMNS]

    def work(piece: int) -> None:
        column = right[piece % len(right)]
        if piece < len(right):
            triangles.solve_forward(U, U, column, first, last)
        else:
            scratch[:end] = U[:end, column : column + PIECE_COLUMNS]
            triangles.subtract_products(U, scratch, 0, last, end, 0, first)
            out(piece)[:] = scratch[last:end]

    work_sharing.map_pieces(sizes, work, out)


def solve_with(
    U: np.ndarray,
    columns: Callable[[slice, np.ndarray], None],
    out: np.ndarray,
    work_sharing: WorkSharing = serial,
    known: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """Solve U^T U X = B - K for X, in pieces of columns, and return ``out``.

    Parameters
    ----------
    U : triangle of ``cholesky``
    columns : writes columns of B (n, m)
    out : (n, m) shared array for X
    known : factors (n, k) and (k, m) of K, if any
    """
    from parallel_et.kernels import triangles  # only linear models load it

    (n, m), N = out.shape, len(U)
    pieces = [slice(start, min(start + PIECE_COLUMNS, m)) for start in range(0, m, PIECE_COLUMNS)]
    X = aligned((N, PIECE_COLUMNS))

    def work(k: int) -> None:
        piece = pieces[k]
        width = piece.stop - piece.start
        columns(piece, X[:n, :width])
        X[n:], X[:, width:] = 0.0, 0.0
        if known:
            X[:n, :width] -= known[0] @ known[1][:, piece]
        triangles.solve_forward(U, X, 0, 0, N)
        triangles.solve_backward(U, X, 0)
        out[:, piece] = X[:n, :width]

    work_sharing.map_pieces([n * (piece.stop - piece.start) for piece in pieces], work, lambda k: out[:, pieces[k]])
    return out


def gram_in_pieces(WT: np.ndarray, work_sharing: WorkSharing) -> np.ndarray:
    """Return the Gram matrix W^T W (H, H) of fields as rows (H, width). Ranks share tiles on and below the diagonal."""
    H = len(WT)
    width = LANES * -(-H // (GRAM_TILES * LANES))
    bands = [slice(start, min(start + width, H)) for start in range(0, H, width)]
    tiles = [(rows, columns) for number, rows in enumerate(bands) for columns in bands[: number + 1]]
    gram = work_sharing.shared_array("gram", (H, H))

    def multiply(k: int) -> None:
        rows, columns = tiles[k]
        np.matmul(WT[rows], WT[columns].T, out=gram[rows, columns])

    def mirror(first: int, last: int) -> None:
        for rows, columns in tiles[first:last]:
            gram[columns, rows] = gram[rows, columns].T

    work_sharing.map_pieces([gram[tile].size for tile in tiles], multiply, lambda k: gram[tiles[k]])
    work_sharing.map_range(len(tiles), mirror)
    return gram
