"""Linear algebra of models, done by one rank or shared by all: products of fields, and the system of the M-step."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.linalg import LinAlgError

from parallel_et.kernels.rows import LANES, PIECE, aligned, pad_rows, padded
from parallel_et.parallel.work_sharing import Deal, alone

UNUSED = 1e-12
"""Share of the points below which a sum of squares counts as zero."""
BAND = 3 * PIECE
"""Rows of a triangle that are found at a time."""
RIDGE, STEPS = 1e-9, 4
"""What is added to the diagonal of singular systems that are large, as a share of the points, and steps to undo it."""
SOLUTION = "solution"
"""The room of it."""
SQUARES = 10
"""Squares along the diagonal of a product that is dealt out: of more of them products are slow."""


class Sums(Protocol):
    """The sums of a linear M-step: ys, of <s> y^T, and ss, of <s s^T>, as tables or otherwise."""

    @property
    def active(self) -> np.ndarray:
        """The diagonal of ss, (H,)."""

    @property
    def ys(self) -> np.ndarray:
        """As a table (H, D)."""

    @property
    def ss(self) -> np.ndarray:
        """As a table (H, H)."""

    def columns(self, part: slice, out: np.ndarray) -> None:
        """Write some columns of ys, (H, n)."""

    def rows(self, some: np.ndarray) -> np.ndarray:
        """Some rows of ss, (k, H)."""

    def upper(self, room: np.ndarray, first: int, last: int) -> None:
        """Write the rows [first, last) of ss, from its diagonal on, into a larger matrix."""


class Tables(NamedTuple):
    """``Sums`` as tables."""

    ys: np.ndarray
    ss: np.ndarray

    @property
    def active(self) -> np.ndarray:
        return np.diag(self.ss)

    def columns(self, part: slice, out: np.ndarray) -> None:
        out[:] = self.ys[:, part]

    def rows(self, some: np.ndarray) -> np.ndarray:
        return self.ss[some]

    def upper(self, room: np.ndarray, first: int, last: int) -> None:
        room[first:last, : len(self.ss)] = self.ss[first:last]


class LinearAlgebra:
    """Linear algebra for the fields of a model.

    A ``large`` problem is solved in pieces, which the ranks share, by algorithms for pieces. The result depends on
    ``large``, which follows from the job, and never on the number of ranks. All ranks call the methods together.
    """

    def __init__(self, deal: Deal = alone, large: bool = False) -> None:
        self.large = large
        self._deal = deal if large else alone

    def rows(self, fields: np.ndarray) -> np.ndarray:
        """Return fields (D, H) as rows (H, width), padded for the kernels; ranks share the memory."""
        table, deal = fields.T, self._deal
        H, D = table.shape
        if deal.size == 1 and table.flags.c_contiguous and padded(D) == D:
            return pad_rows(table)
        room = deal.room("fields", (H, padded(D)))

        def copy(first: int, last: int) -> None:
            room[first:last, :D], room[first:last, D:] = table[first:last], 0.0

        deal.here(H, copy)
        return room

    def gram(self, WT: np.ndarray) -> np.ndarray:
        """Return W^T W (H, H) of fields as rows (H, width)."""
        return gram_in_pieces(WT, self._deal) if self.large else WT @ WT.T

    def square_norms(self, WT: np.ndarray) -> np.ndarray:
        """Return the squared lengths of rows (H, width), (H,)."""
        from parallel_et.kernels import select  # jobs of other models do not load it

        found = self._deal.room("squares of fields", (len(WT),))
        self._deal.here(len(WT), lambda first, last: select.square_norms(WT[first:last], found[first:last]))
        return found

    def unit_rows(self, WT: np.ndarray) -> np.ndarray:
        """Return rows (H, width) at length 1 in single precision."""
        from parallel_et.kernels import select  # jobs of other models do not load it

        units, squares = self._deal.room("units", WT.shape, np.float32), np.empty(len(WT))

        def shorten(first: int, last: int) -> None:
            select.unit_rows(WT[first:last], squares[first:last], units[first:last])

        self._deal.here(len(WT), shorten)
        return units

    def sum_of(self, count: int, work: Callable[[int], float]) -> float:
        """Return the sum of work(k) for k < ``count``."""
        found = self._deal.room("terms", (count,))

        def one(k: int) -> None:
            found[k] = work(k)

        self._deal([1] * count, one, lambda k: found[k : k + 1])
        return float(found.sum())

    def solve_fields(self, WT: np.ndarray, ys: np.ndarray, ss: np.ndarray, points: float) -> np.ndarray:
        """Return the fields (H, D) that solve ss WT = ys, sums over so many points, (H, H) and (H, D)."""
        return self.solve(WT, Tables(ys, ss), points)[0]

    def solve(self, WT: np.ndarray, sums: Sums, points: float) -> tuple[np.ndarray, np.ndarray]:
        """Return fields (H, D) that solve ss WT = ys, and the rows of the equation that hold, (H,) bool.

        Directions that the sums leave open stay as they are in the old ``WT``. The system is solved by Cholesky without
        the causes that are never used. If it is singular too (two causes always together), the change of W is solved
        for by the pseudo-inverse: then only the directions that the points determine are changed.
        """
        used, deal = sums.active > UNUSED * points, self._deal
        unused = np.flatnonzero(~used)
        if not used.any():
            return WT, used
        try:
            U = cholesky(sums.upper, sums.active, UNUSED * points, deal, unused)
            known = (sums.rows(unused).T, WT[unused]) if len(unused) else None
            room = deal.room(SOLUTION, WT.shape)
            new = deal.own(SOLUTION, solve_with(U, sums.columns, room, deal, known))
            new[unused] = WT[unused]
            return new, used
        except LinAlgError:
            rest = sums.ys - sums.ss @ WT
            if self.large:
                return WT + nearest_solution(sums.ss, rest, RIDGE * points, deal), np.zeros(len(used), bool)
            from scipy.linalg import eigh  # takes memory, and few jobs come here

            values, vectors = eigh(sums.ss)
            keep = values > UNUSED * points
            change = vectors[:, keep] @ ((vectors[:, keep].T @ rest) / values[keep, None])
            return WT + change, np.zeros(len(used), bool)


def nearest_solution(A: np.ndarray, B: np.ndarray, ridge: float, deal: Deal) -> np.ndarray:
    """The smallest X (n, m) that solves A X = B as well as can be, for an A (n, n) without negative eigenvalues.

    In steps, each of which solves with a ridge on the diagonal for what is left: what an eigenvalue l leaves after k of
    them is (1 + l / ridge)^-k. An eigenvalue decomposition takes ten times as long.
    """
    X, stiff = np.zeros_like(B), Tables(B, A + ridge * np.eye(len(A)))
    U, found = cholesky(stiff.upper, stiff.active, 0.0, deal), deal.room(SOLUTION, B.shape)
    for _ in range(STEPS):
        X += solve_with(U, Tables(B - A @ X, A).columns, found, deal)
        deal.here(0, lambda first, last: None)  # all have read it
    return X


def cholesky(
    upper: Callable[[np.ndarray, int, int], None],
    diagonal: np.ndarray,
    least: float,
    deal: Deal = alone,
    without: Sequence[int] | np.ndarray = (),
) -> np.ndarray:
    """The upper triangle U with A = U^T U of a positive definite A (n, n), in a room; below its diagonal is anything.

    A is given by its ``diagonal`` (n,) and by what writes rows [first, last) of it, from the diagonal on, into a room.
    Rows and columns that it is to be ``without`` are taken for those of a diagonal matrix. So are those
    by which it is larger than A, as the kernels want it. A squared pivot that is not above ``least`` is an error. Some
    rows at a time: all ranks factorise the square on the diagonal, to the same bits, and the rest is dealt.
    """
    from parallel_et.kernels import triangles  # linear models import it first: only their jobs load it

    n, N = len(diagonal), -(-len(diagonal) // PIECE) * PIECE
    U, squares = deal.room("triangle", (N, N)), deal.room("squares", (2, BAND, BAND))
    added, missing = np.arange(n, N), np.asarray(without, int)

    def begin(first: int, last: int) -> None:
        U[first:last, n:] = 0.0
        upper(U, first, min(last, n))
        U[first:last, missing] = 0.0
        for rows, pivot in ((missing, np.max(diagonal)), (added, max(1.0, 2 * least))):
            some = rows[(first <= rows) & (rows < last)]
            U[some] = 0.0
            U[some, some] = pivot
        top = slice(first, min(last, BAND))
        squares[0, top, :N] = U[top, :BAND]

    deal.here(N, begin)
    for number, first in enumerate(range(0, N, BAND)):
        last, before = min(first + BAND, N), max(0, first - BAND)
        if not triangles.factor(U, squares[number % 2], before, first, last, least):
            raise LinAlgError("the matrix is singular")
        if last < N:
            find_right(U, first, last, squares[(number + 1) % 2], deal)
    return U


def find_right(U: np.ndarray, first: int, last: int, square: np.ndarray, deal: Deal) -> None:
    """Find the rows [first, last) of a triangle right of their square on the diagonal.

    From the next ``square``, which the ranks would else do alike, the product of the rows above ``first`` is taken.
    """
    from parallel_et.kernels import triangles

    end = min(last + BAND, len(U))
    right, scratch = range(last, len(U), PIECE), aligned((len(U), PIECE))
    sizes = [(last - first) * PIECE] * len(right) + [(end - last) * PIECE] * ((end - last) // PIECE)

    def out(piece: int) -> np.ndarray:
        column = right[piece % len(right)]
        if piece < len(right):
            return U[first:last, column : column + PIECE]
        return square[: end - last, column - last : column - last + PIECE]

    def work(piece: int) -> None:
        column = right[piece % len(right)]
        if piece < len(right):
            triangles.forward(U, U, column, first, last)
        else:
            scratch[:end] = U[:end, column : column + PIECE]
            triangles.subtract(U, scratch, 0, last, end, 0, first)
            out(piece)[:] = scratch[last:end]

    deal(sizes, work, out)


def solve_with(
    U: np.ndarray,
    columns: Callable[[slice, np.ndarray], None],
    found: np.ndarray,
    deal: Deal = alone,
    known: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """The X that solves U^T U X = B, for a triangle of ``cholesky``, in a room (n, m); its columns are shared out.

    Those of B are written by ``columns``. From B is subtracted the product of what is ``known``, (n, k) and (k, m), if
    there is any.
    """
    from parallel_et.kernels import triangles  # linear models import it first: only their jobs load it

    (n, m), N = found.shape, len(U)
    parts = [slice(start, min(start + PIECE, m)) for start in range(0, m, PIECE)]
    X = aligned((N, PIECE))

    def work(piece: int) -> None:
        part = parts[piece]
        width = part.stop - part.start
        columns(part, X[:n, :width])
        X[n:], X[:, width:] = 0.0, 0.0
        if known:
            X[:n, :width] -= known[0] @ known[1][:, part]
        triangles.forward(U, X, 0, 0, N)
        triangles.backward(U, X, 0)
        found[:, part] = X[:n, :width]

    deal([n * (part.stop - part.start) for part in parts], work, lambda k: found[:, parts[k]])
    return found


def gram_in_pieces(WT: np.ndarray, deal: Deal) -> np.ndarray:
    """W^T W (H, H) of fields as rows (H, width), in a room: squares on and below the diagonal are shared out."""
    H = len(WT)
    width = LANES * -(-H // (SQUARES * LANES))
    parts = [slice(start, min(start + width, H)) for start in range(0, H, width)]
    places = [(rows, columns) for number, rows in enumerate(parts) for columns in parts[: number + 1]]
    gram = deal.room("gram", (H, H))

    def multiply(k: int) -> None:
        rows, columns = places[k]
        np.matmul(WT[rows], WT[columns].T, out=gram[rows, columns])

    def mirror(first: int, last: int) -> None:
        for rows, columns in places[first:last]:
            gram[columns, rows] = gram[rows, columns].T

    deal([gram[place].size for place in places], multiply, lambda k: gram[places[k]])
    deal.here(len(places), mirror)
    return gram
