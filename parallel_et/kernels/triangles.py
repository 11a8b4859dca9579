"""Triangular systems with an upper triangle U; each column is bit-identical whatever its neighbours are.

Matrices are (n, width) in C order, and n is a multiple of ``TILE``.
A tile has ``TILE`` rows and ``PIECE_COLUMNS`` columns, and its sums stay in registers.
Nothing is packed, so the cost is proportional to the number of columns.
"""

import numpy as np

from parallel_et.kernels import device_function, kernel, scratch
from parallel_et.kernels.rows import PIECE_COLUMNS
from parallel_et.kernels.simd import LANES, fill, fma, load, store

TILE = 8
VECTORS = PIECE_COLUMNS // LANES


@device_function
def add_products(sums, weight, row):
    """Add the vectors of a row times a number to their sums."""
    weights = fill(weight)
    return fma(weights, row[0], sums[0]), fma(weights, row[1], sums[1]), fma(weights, row[2], sums[2])


@device_function
def load_row(X, at):
    """Load the vectors of a row of a piece, from a flat index on."""
    return load(X, at), load(X, at + LANES), load(X, at + 2 * LANES)


@device_function
def subtract_row(X, at, sums):
    """Subtract sums from a row of a piece."""
    for v in range(VECTORS):
        store(X, at + v * LANES, load(X, at + v * LANES) - sums[v])


@device_function
def products_above(U, X, column, i, begin, end):
    """Return the product of the columns i, ... of U, for a tile, with the rows [begin, end) of a piece of X."""
    zero = fill(0.0)
    a = b = c = d = e = f = g = h = (zero, zero, zero)
    for k in range(begin, end):
        row = load_row(X, k * X.shape[1] + column)
        a, b = add_products(a, U[k, i], row), add_products(b, U[k, i + 1], row)
        c, d = add_products(c, U[k, i + 2], row), add_products(d, U[k, i + 3], row)
        e, f = add_products(e, U[k, i + 4], row), add_products(f, U[k, i + 5], row)
        g, h = add_products(g, U[k, i + 6], row), add_products(h, U[k, i + 7], row)
    return a, b, c, d, e, f, g, h


@device_function
def subtract_above(U, X, column, i, begin, end):
    """Subtract from the tile of rows i, ... the product of its columns of U with the rows [begin, end) of the piece."""
    for r, sums in enumerate(products_above(U, X, column, i, begin, end)):
        subtract_row(X, (i + r) * X.shape[1] + column, sums)


@device_function
def subtract_below(U, X, column, i):
    """Subtract from the tile of rows i, ... the product of its rows of U with the rows of the piece below it."""
    zero = fill(0.0)
    a = b = c = d = e = f = g = h = (zero, zero, zero)
    V = U[i : i + TILE]
    for place in range(i + TILE, U.shape[0]):
        row, k = load_row(X, place * X.shape[1] + column), np.uint64(place)  # not negative: three times as fast
        a, b = add_products(a, V[0, k], row), add_products(b, V[1, k], row)
        c, d = add_products(c, V[2, k], row), add_products(d, V[3, k], row)
        e, f = add_products(e, V[4, k], row), add_products(f, V[5, k], row)
        g, h = add_products(g, V[6, k], row), add_products(h, V[7, k], row)
    for r, sums in enumerate((a, b, c, d, e, f, g, h)):
        subtract_row(X, (i + r) * X.shape[1] + column, sums)


@device_function
def finish_row(X, at, sums, pivot):
    """Subtract sums from a row of a piece and divide it by a pivot."""
    inverse = fill(1.0 / pivot)
    for v in range(VECTORS):
        store(X, at + v * LANES, (load(X, at + v * LANES) - sums[v]) * inverse)


@kernel("void(float64[:,::1], float64[:,::1], int64, int64, int64, int64, int64)")
def subtract_products(U, X, column, first, last, begin, end):
    """Subtract from rows [first, last) of a piece of X the product of those columns of U with the rows [begin, end).

    U, X : (n, n) and (n, width); the piece starts at ``column``

    Costs (last - first) (end - begin) operations per column.
    """
    for i in range(first, last, TILE):
        subtract_above(U, X, column, i, begin, end)


@kernel("void(float64[:,::1], float64[:,::1], int64, int64, int64)")
def solve_forward(U, X, column, first, last):
    """Replace the rows [first, last) of a piece of X by those of U^-T X; the rows above are solved already.

    U, X : (n, n) and (n, width); the piece starts at ``column``

    Costs last^2 / 2 operations per column if first = 0.
    """
    zero = fill(0.0)
    for i in range(first, last, TILE):
        subtract_above(U, X, column, i, 0, i)
        for r in range(i, i + TILE):
            sums = (zero, zero, zero)
            for k in range(i, r):
                sums = add_products(sums, U[k, r], load_row(X, k * X.shape[1] + column))
            finish_row(X, r * X.shape[1] + column, sums, U[r, r])


@kernel("void(float64[:,::1], float64[:,::1], int64)")
def solve_backward(U, X, column):
    """Replace a piece of X by that of U^-1 X.

    U, X : (n, n) and (n, width); the piece starts at ``column``

    Costs n^2 / 2 operations per column.
    """
    zero = fill(0.0)
    for i in range(U.shape[0] - TILE, -1, -TILE):
        subtract_below(U, X, column, i)
        for r in range(i + TILE - 1, i - 1, -1):
            sums = (zero, zero, zero)
            for k in range(r + 1, i + TILE):
                sums = add_products(sums, U[r, k], load_row(X, k * X.shape[1] + column))
            finish_row(X, r * X.shape[1] + column, sums, U[r, r])


@kernel("boolean(float64[:,::1], float64[:,::1], int64, int64, int64, float64)")
def factor_square(U, square, before, first, last, least):
    """Compute the Cholesky factor of the square [first, last) on the diagonal of U, or return False.

    square : the matrix in its first rows and columns, less the products of all rows of U above ``before``
    least : a squared pivot has to be above this

    Costs m^2 (m / 6 + (first - before) / 2) operations for m = last - first.
    """
    n, width, zero = last - first, U.shape[1], fill(0.0)
    A = scratch(n * n).reshape(n, n)
    for i in range(n):
        for j in range(0, n, LANES):
            store(A, i * n + j, load(square, i * square.shape[1] + j))
    for i in range(0, n, TILE):
        begin = i // PIECE_COLUMNS * PIECE_COLUMNS
        for column in range(begin, n, PIECE_COLUMNS):
            for r, sums in enumerate(products_above(U, U, first + column, first + i, before, first)):
                subtract_row(A, (i + r) * n + column, sums)
            subtract_above(A, A, column, i, 0, i)
        for r in range(i, i + TILE):
            pivot = A[r, r]
            for k in range(i, r):
                pivot -= A[k, r] * A[k, r]
            if not pivot > least:
                return False
            for column in range(begin, n, PIECE_COLUMNS):
                sums = (zero, zero, zero)
                for k in range(i, r):
                    sums = add_products(sums, A[k, r], load_row(A, k * n + column))
                finish_row(A, r * n + column, sums, np.sqrt(pivot))
    for i in range(n):
        for j in range(i // LANES * LANES, n, LANES):
            store(U, (first + i) * width + first + j, load(A, i * n + j))
    return True
