"""The soft maximum of the M-step where powers of W underflow, and its hard limit."""

import numpy as np
import pytest
from brute import as_binary, responsibilities

from parallel_et.core.latent_states import Table
from parallel_et.kernels.responsibilities import weighted_sums
from parallel_et.kernels.truncated import significant
from parallel_et.models.components.maximal import power_curve, power_softness


@pytest.mark.parametrize("along", [False, True])
@pytest.mark.parametrize("rho", [1.001, 1.05, 2.0, 21.0, 23.9, 24.0, 101.0, 1001.0, np.inf])
def test_shares_equal_brute_force_also_for_tiny_zero_and_equal_fields(rho, along):
    rng = np.random.default_rng(6)
    WT = rng.gamma(1.0, 3.0, (4, 8))
    WT[:, 0] = 0.0
    WT[:2, 1] = 0.0
    WT[:, 2] = 5.0
    WT[:3, 3] = [1e-9, 2e-9, 1e-10]
    states = Table.up_to(4, 3)
    q = rng.dirichlet(np.ones(len(states)), 1)
    Y = rng.normal(3, 2, (1, 8))
    numerator, denominator, alone, active = np.zeros((4, 8)), np.zeros((4, 8)), np.zeros(4), np.zeros(4)
    weighted_sums(
        Y,
        *power_softness(WT, rho, 3),
        3,
        np.arange(4, dtype=np.int32)[None],
        states.members,
        states.inner if along else np.empty((0, 4), np.int32),
        *significant(q),
        np.ones(1, bool),
        numerator,
        denominator,
        alone,
        active,
        np.empty(0),
    )
    A = sum(q[0, k] * responsibilities(WT.T, s, rho) for k, s in enumerate(as_binary(states.members, 4)) if s.any())
    np.testing.assert_allclose((denominator + alone[:, None]).T, A, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(numerator.T, A * Y.T, rtol=1e-11, atol=1e-13)
    members = as_binary(states.members, 4)
    np.testing.assert_allclose(active, q[0] @ members, rtol=1e-12)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 10, 20, 200])
@pytest.mark.parametrize("rho", [1.0, 1.01, 8 / 7, 2.0, 23.0])
def test_the_power_of_a_sum_of_powers_is_exact_to_1e_12(rho, most):
    bound, inverse, factor, second, second_inverse, second_factor, slope, offset, *c = power_curve(
        (rho - 1) / rho, most
    )
    u = left = np.linspace(1, max(2, most), 1001)
    result = np.where(left > bound, factor, 1.0)
    left = np.where(left > bound, left * inverse, left)
    result = result * np.where(left > second, second_factor, 1.0)
    left = np.where(left > second, left * second_inverse, left)
    np.testing.assert_allclose(result * np.polyval(c[::-1], slope * left + offset), u ** -((rho - 1) / rho), rtol=1e-12)
