import numpy as np
import pytest

from parallel_et.kernels.math import exp, log


def test_exp_is_exact_to_rounding():
    x = np.concatenate([-np.geomspace(1e-18, 708, 20_000), np.linspace(0, 700, 5_000), [0.0, -0.0]])
    np.testing.assert_allclose([exp(v) for v in x], np.exp(x), rtol=4.5e-16)


def test_exp_of_what_cannot_matter_is_zero():
    assert [exp(v) for v in (-709.0, -1e300, -np.inf)] == [0.0, 0.0, 0.0]


def test_log_is_exact_to_rounding():
    x = np.concatenate([np.geomspace(1e-300, 1e300, 20_000), np.linspace(0.5, 2.0, 20_001)])
    np.testing.assert_allclose([log(v) for v in x], np.log(x), rtol=3e-16, atol=3e-16)
    assert log(1.0) == 0.0


@pytest.mark.parametrize("function", [exp, log])
def test_both_are_increasing(function):
    x = np.linspace(0.1, 3.0, 20_000)
    assert (np.diff([function(v) for v in x]) >= 0).all()
