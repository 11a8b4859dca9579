import numpy as np
import pytest

from parallel_et.kernels.select import largest, overshoot, square_norms


@pytest.mark.parametrize("count", [1, 3, 11, 12])
@pytest.mark.parametrize("ties", [False, True])
def test_the_largest_scores_win_and_of_equal_ones_the_lower_index(count, ties):
    rng = np.random.default_rng(2)
    scores = rng.integers(0, 4, (60, 12)).astype(float) if ties else rng.normal(size=(60, 12))
    scores[0] = -np.inf
    found = np.empty((60, count), np.int32)
    largest(scores, found)
    expected = [sorted(range(12), key=lambda h, row=row: (-row[h], h))[:count] for row in scores]
    np.testing.assert_array_equal(found, expected)


def test_overshoot_is_the_squared_part_of_a_field_above_the_point():
    rng = np.random.default_rng(3)
    Y, WT = rng.normal(size=(20, 9)), rng.normal(size=(7, 9))
    scores = np.empty((20, 7))
    overshoot(Y, WT, scores)
    np.testing.assert_allclose(scores, -(np.maximum(WT - Y[:, None], 0) ** 2).sum(2), rtol=1e-13)


def test_square_norms():
    Y = np.random.default_rng(4).normal(size=(5, 33))
    norms = np.empty(5)
    square_norms(Y, norms)
    np.testing.assert_allclose(norms, (Y**2).sum(1), rtol=1e-14)
