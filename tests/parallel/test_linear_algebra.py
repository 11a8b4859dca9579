import numpy as np
import pytest
from scipy.linalg import LinAlgError

from parallel_et.core.types import Settings
from parallel_et.kernels import linear
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.components.moments import Moments
from parallel_et.parallel import linear_algebra
from parallel_et.parallel.linear_algebra import LinearAlgebra, Tables, solve_with
from parallel_et.parallel.work_sharing import Serial, serial

SETTINGS = Settings(0, 1.0, 0.0, 0, {}, {}, 1)


def cholesky(A, least, work_sharing=serial):
    return linear_algebra.cholesky(Tables(A, A).upper, np.diag(A), least, work_sharing)


def solve_fields(WT, ys, ss, points, large=False):
    """Solve for the fields with both layouts of the sums, and check that they have the same bits."""
    strips = np.concatenate([ys[:, dims].reshape(-1) for dims in linear.strips(ys.shape[1])])
    moments = Moments(strips, ss[np.tril_indices(len(ss))], *ys.shape)
    np.testing.assert_array_equal(moments.ys, ys)
    np.testing.assert_array_equal(moments.ss, ss)
    np.testing.assert_array_equal(moments.rows(np.array([3, 0])), ss[[3, 0]])
    expected = 2 * float((WT * ys).sum()) - float((WT * (ss @ WT)).sum())
    assert moments.explained(WT, np.zeros(len(ss), bool), SETTINGS) == pytest.approx(expected)
    found, same = (LinearAlgebra(large=large).solve(WT, sums, points) for sums in (moments, Tables(ys, ss)))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, same, strict=True))
    return found


class Backwards(Serial):
    """Work sharing that does the pieces in reverse order."""

    def __init__(self):
        self.piece_counts = []

    def map_pieces(self, sizes, work, out):
        assert [out(k).size for k in range(len(sizes))] == list(sizes)
        for k in reversed(range(len(sizes))):
            work(k)
        self.piece_counts.append(len(sizes))

    def map_range(self, count, work):
        for first in reversed(range(0, count, 7)):
            work(first, min(first + 7, count))


@pytest.mark.parametrize("n, m", [(1, 3), (7, 1), (64, 5), (65, 20), (300, 40)])
def test_solution_of_a_positive_definite_system(n, m):
    rng = np.random.default_rng(n)
    A = rng.normal(size=(n, n + 5))
    A = A @ A.T + np.eye(n)
    B = rng.normal(size=(n, m))
    before = A.copy(), B.copy()
    found = solve_with(cholesky(A, 0.0), Tables(B, A).columns, np.empty(B.shape))
    np.testing.assert_allclose(found, np.linalg.solve(A, B), rtol=1e-9, atol=1e-11)
    assert (before[0] == A).all()
    assert (before[1] == B).all()


@pytest.mark.parametrize("n, m", [(5, 3), (65, 70), (600, 1000)])
def test_the_solution_does_not_depend_on_the_order_of_pieces(n, m):
    rng = np.random.default_rng(n)
    A = rng.normal(size=(n, n + 5))
    A, B = A @ A.T + np.eye(n), rng.normal(size=(n, m))
    U = cholesky(A, 0.0)
    np.testing.assert_allclose(np.triu(U)[:n, :n].T, np.linalg.cholesky(A), rtol=1e-10, atol=1e-11)
    found = solve_with(U, Tables(B, A).columns, np.empty(B.shape))
    np.testing.assert_allclose(found, np.linalg.solve(A, B), rtol=1e-9, atol=1e-11)
    backwards = Backwards()
    again = solve_with(cholesky(A, 0.0, backwards), Tables(B, A).columns, np.empty(B.shape), backwards)
    assert again.tobytes() == found.tobytes()
    W = pad_rows(rng.normal(size=(n, m)))
    gram = LinearAlgebra(large=True).gram(W)
    np.testing.assert_allclose(gram, W @ W.T, rtol=1e-12, atol=1e-10)
    assert (gram == gram.T).all()
    assert LinearAlgebra(backwards, large=True).gram(W).tobytes() == gram.tobytes()
    assert max(backwards.piece_counts) == {5: 1, 65: 45, 600: 55}[n]


def test_a_large_singular_system_changes_only_directions_that_the_points_determine():
    rng = np.random.default_rng(5)
    s = (rng.random((150, 60)) < 0.2).astype(float)
    s[:, 7] = s[:, 8]  # always together
    Y, WT = rng.normal(size=(150, 11)), rng.normal(size=(60, 11))
    ss, ys = s.T @ s, s.T @ Y
    expected, _ = solve_fields(WT, ys, ss, 150.0)
    found, solved = solve_fields(WT, ys, ss, 150.0, large=True)
    assert not solved.any()
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)


def test_a_small_pivot_is_an_error():
    A = np.diag([1.0, 2.0, 1e-9, 3.0])
    np.testing.assert_allclose(np.triu(cholesky(A, 1e-10))[:4, :4], np.sqrt(A))
    with pytest.raises(LinAlgError):
        cholesky(A, 1e-8)


def test_unused_causes_keep_their_fields_and_the_other_fields_are_exact():
    rng = np.random.default_rng(3)
    s = (rng.random((200, 90)) < 0.2).astype(float)
    s[:, [5, 40]] *= 1e-9
    Y, WT = rng.normal(size=(200, 11)), rng.normal(size=(90, 11))
    ss, ys = s.T @ s, s.T @ Y
    new, solved = solve_fields(WT, ys, ss, 200.0)
    assert np.flatnonzero(~solved).tolist() == [5, 40]
    assert (new[[5, 40]] == WT[[5, 40]]).all()
    np.testing.assert_allclose((ss @ new)[solved], ys[solved], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("large", [False, True])
def test_without_used_causes_all_fields_stay(large):
    rng, points = np.random.default_rng(6), 1e4
    ss, ys, WT = 1e-13 * points * np.eye(30), rng.normal(size=(30, 11)), rng.normal(size=(30, 11))
    found, used = solve_fields(WT, ys, ss, points, large)
    np.testing.assert_array_equal(found, WT)
    assert not used.any()


def test_a_system_of_very_many_points_does_not_count_as_singular():
    rng, points = np.random.default_rng(6), 1e13
    ss, ys = points * np.eye(30), points * rng.normal(size=(30, 11))
    found, used = solve_fields(np.zeros((30, 11)), ys, ss, points, large=True)
    np.testing.assert_allclose(found, ys / points, rtol=1e-12)
    assert used.all()
