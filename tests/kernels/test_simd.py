from fractions import Fraction

import numba
import numpy as np
import pytest

from parallel_et.kernels import simd
from parallel_et.kernels.simd import LANES, exp, load, log, store


@numba.njit
def all_exp(x, out):
    for i in range(0, len(x), LANES):
        store(out, i, exp(load(x, i)))


@numba.njit
def all_log(x, out):
    for i in range(0, len(x), LANES):
        store(out, i, log(load(x, i)))


@numba.njit
def fixed_point(x, unit, high, low):
    for i in range(0, len(x), LANES):
        simd.add_fixed(high, low, i, load(x, i), simd.fill(unit))


@numba.njit
def lists(x, limit, lanes, found):
    count = 0
    for i in range(0, len(x), lanes):
        count += simd.append_at_least(load(x, i), limit, i, found, count)
    return count


@numba.njit
def reductions(x):
    vector = load(x, 0)
    return simd.total(vector), simd.highest(vector), simd.count_at_least(vector, x[3])


def applied(function, x):
    out = np.empty_like(x)
    function(x, out)
    return out


def test_exp_is_exact_to_rounding():
    x = np.concatenate([-np.geomspace(1e-18, 708, 20_000), np.linspace(0, 700, 5_006), [0.0, -0.0]])
    np.testing.assert_allclose(applied(all_exp, x), np.exp(x), rtol=4.5e-16)


def test_exp_of_very_negative_numbers_is_almost_zero():
    x = np.array([-708.0, -709.0, -1e4, -1e300, -np.inf, -np.inf, -720.0, -800.0])
    assert (applied(all_exp, x) < 1e-307).all()


def test_log_is_exact_to_rounding():
    x = np.concatenate([np.geomspace(1e-300, 1e300, 20_000), np.linspace(0.5, 2.0, 20_007), [1.0]])
    found = applied(all_log, x)
    np.testing.assert_allclose(found, np.log(x), rtol=3e-16, atol=3e-16)
    assert found[-1] == 0.0


@pytest.mark.parametrize("function", [all_exp, all_log])
def test_both_are_increasing(function):
    x = np.linspace(0.1, 3.0, 20_000)
    assert (np.diff(applied(function, x)) >= -4e-16).all()


def test_the_two_words_are_more_precise_than_a_double():
    rng = np.random.default_rng(1)
    x = rng.normal(size=64) * 10.0 ** rng.integers(-9, 15, 64)
    high, low = np.zeros((2, 64), np.int64)
    fixed_point(x, 2.0**40, high, low)
    fixed_point(-x / 3, 2.0**40, high, low)
    exact = [float(Fraction(int(h)) + Fraction(int(v), 2**40)) for h, v in zip(high, low, strict=True)]
    np.testing.assert_allclose(exact, x - x / 3, rtol=1e-15, atol=2.0**-40)


@pytest.mark.parametrize("kind, lanes", [(np.float64, LANES), (np.float32, 2 * LANES)])
def test_a_list_has_the_lanes_that_are_at_least_a_limit_in_order(kind, lanes):
    x = np.random.default_rng(2).normal(size=10 * lanes).astype(kind)
    x[7] = x[20] = 0.25
    found = np.empty(len(x) + lanes, np.int32)
    count = lists(x, kind(0.25), lanes, found)
    np.testing.assert_array_equal(found[:count], np.flatnonzero(x >= kind(0.25)))


def test_reductions_of_a_vector():
    x = np.array([3.0, -1.0, 8.0, 2.0, 2.0, 0.0, -7.0, 1.5])
    assert reductions(x) == (8.5, 8.0, 4)
