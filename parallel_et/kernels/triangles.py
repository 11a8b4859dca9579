"""Solutions with an upper triangle U: every column has the same bits whatever stands beside it.

Matrices are (n, width) in C's order, n a multiple of ``TILE``. What a tile of so many rows and ``PIECE`` columns takes
from the rows above or below it is added up in registers, and nothing is packed: so a few columns cost no more than
their share of many.
"""

import numpy as np

from parallel_et.kernels import kernel, part, scratch
from parallel_et.kernels.rows import PIECE
from parallel_et.kernels.simd import LANES, fill, fma, load, store

TILE, VECTORS = 8, PIECE // LANES


@part
def grow(sums, weight, row):
    """Add the vectors of a row times a number to their sums."""
    weights = fill(weight)
    return fma(weights, row[0], sums[0]), fma(weights, row[1], sums[1]), fma(weights, row[2], sums[2])


@part
def row_at(X, at):
    """The vectors of a row of a piece, from a flat index on."""
    return load(X, at), load(X, at + LANES), load(X, at + 2 * LANES)


@part
def take(X, at, sums):
    """Subtract sums from a row of a piece."""
    for v in range(VECTORS):
        store(X, at + v * LANES, load(X, at + v * LANES) - sums[v])


@part
def products_above(U, X, column, i, begin, end):
    """For a tile, rows i, ..., the products of those columns of U with the rows [begin, end) of a piece of X."""
    zero = fill(0.0)
    a = b = c = d = e = f = g = h = (zero, zero, zero)
    for k in range(begin, end):
        row = row_at(X, k * X.shape[1] + column)
        a, b = grow(a, U[k, i], row), grow(b, U[k, i + 1], row)
        c, d = grow(c, U[k, i + 2], row), grow(d, U[k, i + 3], row)
        e, f = grow(e, U[k, i + 4], row), grow(f, U[k, i + 5], row)
        g, h = grow(g, U[k, i + 6], row), grow(h, U[k, i + 7], row)
    return a, b, c, d, e, f, g, h


@part
def take_above(U, X, column, i, begin, end):
    """Of a piece of X, subtract from a tile, rows i, ..., the product of those columns of U with rows [begin, end)."""
    for r, sums in enumerate(products_above(U, X, column, i, begin, end)):
        take(X, (i + r) * X.shape[1] + column, sums)


@part
def take_below(U, X, column, i):
    """Of a piece of X, subtract from a tile, rows i, ..., the product of the same rows of U with the rows below."""
    zero = fill(0.0)
    a = b = c = d = e = f = g = h = (zero, zero, zero)
    V = U[i : i + TILE]
    for place in range(i + TILE, U.shape[0]):
        row, k = row_at(X, place * X.shape[1] + column), np.uint64(place)  # not from the end: three times as fast
        a, b = grow(a, V[0, k], row), grow(b, V[1, k], row)
        c, d = grow(c, V[2, k], row), grow(d, V[3, k], row)
        e, f = grow(e, V[4, k], row), grow(f, V[5, k], row)
        g, h = grow(g, V[6, k], row), grow(h, V[7, k], row)
    for r, sums in enumerate((a, b, c, d, e, f, g, h)):
        take(X, (i + r) * X.shape[1] + column, sums)


@part
def finish(X, at, sums, pivot):
    """Subtract sums from a row of a piece and divide it by a pivot."""
    share = fill(1.0 / pivot)
    for v in range(VECTORS):
        store(X, at + v * LANES, (load(X, at + v * LANES) - sums[v]) * share)


@kernel("void(float64[:,::1], float64[:,::1], int64, int64, int64, int64, int64)")
def subtract(U, X, column, first, last, begin, end):
    """Subtract from rows [first, last) of a piece of X the product of those columns of U with the rows [begin, end)."""
    for i in range(first, last, TILE):
        take_above(U, X, column, i, begin, end)


@kernel("void(float64[:,::1], float64[:,::1], int64, int64, int64)")
def forward(U, X, column, first, last):
    """Replace the rows [first, last) of a piece of X by those of U^-T X; the rows above have been before."""
    zero = fill(0.0)
    for i in range(first, last, TILE):
        take_above(U, X, column, i, 0, i)
        for r in range(i, i + TILE):
            sums = (zero, zero, zero)
            for k in range(i, r):
                sums = grow(sums, U[k, r], row_at(X, k * X.shape[1] + column))
            finish(X, r * X.shape[1] + column, sums, U[r, r])


@kernel("void(float64[:,::1], float64[:,::1], int64)")
def backward(U, X, column):
    """Replace a piece of X by that of U^-1 X."""
    zero = fill(0.0)
    for i in range(U.shape[0] - TILE, -1, -TILE):
        take_below(U, X, column, i)
        for r in range(i + TILE - 1, i - 1, -1):
            sums = (zero, zero, zero)
            for k in range(r + 1, i + TILE):
                sums = grow(sums, U[r, k], row_at(X, k * X.shape[1] + column))
            finish(X, r * X.shape[1] + column, sums, U[r, r])


@kernel("boolean(float64[:,::1], float64[:,::1], int64, int64, int64, float64)")
def factor(U, square, before, first, last, least):
    """Write the triangle of the square [first, last) on the diagonal of U; False if a squared pivot is not above least.

    ``square`` is what is there, in the first rows and columns, less the products of all rows of U above ``before``.
    """
    n, width, zero = last - first, U.shape[1], fill(0.0)
    A = scratch(n * n).reshape(n, n)
    for i in range(n):
        for j in range(0, n, LANES):
            store(A, i * n + j, load(square, i * square.shape[1] + j))
    for i in range(0, n, TILE):
        begin = i // PIECE * PIECE
        for column in range(begin, n, PIECE):
            for r, sums in enumerate(products_above(U, U, first + column, first + i, before, first)):
                take(A, (i + r) * n + column, sums)
            take_above(A, A, column, i, 0, i)
        for r in range(i, i + TILE):
            pivot = A[r, r]
            for k in range(i, r):
                pivot -= A[k, r] * A[k, r]
            if not pivot > least:
                return False
            for column in range(begin, n, PIECE):
                sums = (zero, zero, zero)
                for k in range(i, r):
                    sums = grow(sums, A[k, r], row_at(A, k * n + column))
                finish(A, r * n + column, sums, np.sqrt(pivot))
    for i in range(n):
        for j in range(i // LANES * LANES, n, LANES):
            store(U, (first + i) * width + first + j, load(A, i * n + j))
    return True
