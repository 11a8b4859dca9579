import numpy as np
import pytest

from parallel_et.kernels.rows import pad_rows
from parallel_et.kernels.select import (
    gram_of_candidates,
    largest,
    largest_by_joint,
    largest_projections,
    overshoot,
    pick,
    products,
    square_norms,
    unit_rows,
)
from parallel_et.models.linca import SINGLE_PRECISION_ROUNDING


def best_by_sorting(scores, count):
    return [sorted(sorted(range(scores.shape[1]), key=lambda h, row=row: (-row[h], h))[:count]) for row in scores]


@pytest.mark.parametrize("H, count", [(12, 1), (12, 3), (12, 11), (12, 12), (200, 8), (203, 20), (1000, 3), (1000, 40)])
@pytest.mark.parametrize("ties", [False, True])
def test_the_largest_scores_win_and_of_equal_ones_the_lower_index(H, count, ties):
    rng = np.random.default_rng(2)
    scores = rng.integers(0, 4, (60, H)).astype(float) if ties else rng.normal(size=(60, H))
    scores[0] = -np.inf
    found = np.empty((60, count), np.int32)
    largest(scores, found)
    np.testing.assert_array_equal(found, best_by_sorting(scores, count))


@pytest.mark.parametrize("H, count", [(12, 1), (12, 5), (12, 12), (203, 20), (1000, 3), (1000, 40)])
def test_of_equal_scores_the_larger_single_cause_joint_wins_and_then_the_lower_index(H, count):
    rng = np.random.default_rng(8)
    scores = rng.integers(-3, 1, (60, H)).astype(float)
    Y, factors, bias = rng.normal(size=(60, 8)), rng.normal(size=(H, 8)), rng.normal(size=H)
    factors[H // 2 :], bias[H // 2 :] = factors[0], bias[0]  # equal in both
    found = np.empty((60, count), np.int32)
    largest_by_joint(scores, Y, factors, 0.7, bias, found)
    joint = 0.7 * Y @ factors.T + bias
    joint[:, H // 2 :] = joint[:, :1]
    order = [np.lexsort([np.arange(H), -joint[n], -scores[n]]) for n in range(60)]
    np.testing.assert_array_equal(found, np.sort([one[:count] for one in order], 1))


@pytest.mark.parametrize("H, count", [(10, 5), (40, 8), (333, 10)])
@pytest.mark.parametrize("near", [0.0, 1e-9, 1e-6, 1e-3])
def test_selection_in_single_precision_is_that_in_double(H, count, near):
    """Rank fields that differ by less than the rounding of single precision, and equal fields by their index."""
    rng = np.random.default_rng(5)
    D = 48
    WT = np.repeat(rng.normal(size=(-(-H // 5), D)), 5, axis=0)[:H]
    WT *= 10.0 ** rng.integers(-30, 30, (H, 1))
    WT *= 1 + near * rng.normal(size=WT.shape)
    Y = rng.normal(size=(70, D)) * 10.0 ** rng.integers(-60, 60, (70, 1))
    Y[3] = 0.0
    WT[4] = 0.0
    length = np.linalg.norm(WT, axis=1)
    length[4] = 1.0
    norms, units = np.empty(70), np.empty(Y.shape, np.float32)
    unit_rows(Y, norms, units)
    np.testing.assert_allclose(norms, (Y**2).sum(1), rtol=1e-14)
    cosines = units @ (WT / length[:, None]).astype(np.float32).T
    found = np.empty((70, count), np.int32)
    largest_projections(cosines, 2.02 * (D + 4) * SINGLE_PRECISION_ROUNDING, norms, Y, WT, 1 / length, found)
    inner = np.empty((70, H))
    products(Y, WT, np.tile(np.arange(H, dtype=np.int32), (70, 1)), inner)
    np.testing.assert_array_equal(found, best_by_sorting(inner * (1 / length), count))


def test_products_with_candidates_only():
    rng = np.random.default_rng(6)
    Y, WT = rng.normal(size=(30, 72)), rng.normal(size=(20, 72))
    candidates = rng.permuted(np.tile(np.arange(20, dtype=np.int32), (30, 1)), axis=1)[:, :7].copy()
    found, same = np.empty((2, 30, 7))
    products(Y, WT, candidates, found)
    pick(Y @ WT.T, candidates, same)
    np.testing.assert_allclose(found, same, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("count", [1, 2, 4, 7, 12])
def test_products_of_pairs_of_candidates(count):
    rng = np.random.default_rng(7)
    WT = pad_rows(rng.normal(size=(20, 300)))  # in three strips
    candidates = np.sort(rng.permuted(np.tile(np.arange(20, dtype=np.int32), (30, 1)), axis=1)[:, :count], 1)
    found = np.empty((30, count * (count - 1) // 2))
    gram_of_candidates(WT, candidates, found)
    places = [(j, i) for j in range(count) for i in range(j)]
    expected = [[WT[point[j]] @ WT[point[i]] for j, i in places] for point in candidates]
    np.testing.assert_allclose(found, np.reshape(expected, found.shape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("N, H", [(20, 7), (1, 1), (5, 4), (8, 130)])
def test_overshoot_is_the_squared_part_of_a_field_above_the_point(N, H):
    rng = np.random.default_rng(3)
    Y, WT = rng.normal(size=(N, 9)), rng.normal(size=(H, 9))
    scores = np.empty((N, H))
    overshoot(pad_rows(Y), pad_rows(WT), scores)
    np.testing.assert_allclose(scores, -(np.maximum(WT - Y[:, None], 0) ** 2).sum(2), rtol=1e-13)


def test_square_norms():
    Y = np.random.default_rng(4).normal(size=(5, 33))
    norms = np.empty(5)
    square_norms(pad_rows(Y), norms)
    np.testing.assert_allclose(norms, (Y**2).sum(1), rtol=1e-14)
