import numpy as np
import pytest
from scipy.linalg import LinAlgError

from parallel_et.models.parts.solve import solve_fields, solve_positive


@pytest.mark.parametrize("n, m", [(1, 3), (7, 1), (64, 5), (65, 20), (300, 40)])
def test_solution_of_a_positive_definite_system(n, m):
    rng = np.random.default_rng(n)
    A = rng.normal(size=(n, n + 5))
    A = A @ A.T + np.eye(n)
    B = rng.normal(size=(n, m))
    before = A.copy(), B.copy()
    np.testing.assert_allclose(solve_positive(A, B, 0.0), np.linalg.solve(A, B), rtol=1e-9, atol=1e-11)
    assert (before[0] == A).all()
    assert (before[1] == B).all()


def test_a_small_pivot_is_an_error():
    A = np.diag([1.0, 2.0, 1e-9, 3.0])
    solve_positive(A, np.ones((4, 2)), 1e-10)
    with pytest.raises(LinAlgError):
        solve_positive(A, np.ones((4, 2)), 1e-8)


def test_unused_causes_keep_their_fields_and_the_others_are_solved_for_exactly():
    rng = np.random.default_rng(3)
    s = (rng.random((200, 90)) < 0.2).astype(float)
    s[:, [5, 40]] *= 1e-9
    Y, WT = rng.normal(size=(200, 11)), rng.normal(size=(90, 11))
    ss, ys = s.T @ s, s.T @ Y
    new, solved = solve_fields(WT, ys, ss, 200.0)
    assert np.flatnonzero(~solved).tolist() == [5, 40]
    assert (new[[5, 40]] == WT[[5, 40]]).all()
    np.testing.assert_allclose((ss @ new)[solved], ys[solved], rtol=1e-9, atol=1e-9)
