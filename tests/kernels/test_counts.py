"""Poisson noise: factorials, and the bound for the preselection of causes."""

from itertools import combinations

import numpy as np
import pytest
from scipy.special import gammaln, xlogy

from parallel_et.kernels.counts import log_factorials
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.components.fields import overshoot_of_counts, rows_of

RNG = np.random.default_rng(3)
TABLES = {
    "counts": RNG.poisson(4.0, (20, 16)).astype(float),
    "values between them": RNG.gamma(1.0, 5.0, (20, 16)),
    "any magnitude": 10 ** RNG.uniform(-9, 100, (20, 16)),
    "around the bound of the series": np.linspace(14.9, 15.1, 160).reshape(20, 8),
    "zeros": np.zeros((3, 8)),
}


@pytest.mark.parametrize("kind", TABLES)
def test_factorials_equal_those_of_scipy(kind):
    Y, found = TABLES[kind], np.empty(len(TABLES[kind]))
    log_factorials(Y, found)
    np.testing.assert_allclose(found, gammaln(Y + 1).sum(1), rtol=2e-15, atol=1e-14 * Y.shape[1])


def test_no_state_has_a_larger_likelihood_than_the_bound_of_its_causes():
    W = RNG.gamma(1.0, 4.0, (11, 5)) * (RNG.random((11, 5)) < 0.7)
    Y = RNG.poisson(4.0, (9, 11)).astype(float)
    Y[:, 0] *= 0.37
    fields = np.maximum(W, 1e-300)
    scores = overshoot_of_counts(pad_rows(Y), rows_of({"W": fields}), rows_of({"W": np.log(fields)}))
    for n, y in enumerate(Y):
        best = np.maximum(y[:, None], fields)
        np.testing.assert_allclose(scores[n], (xlogy(y[:, None], best) - best).sum(0), rtol=1e-12)
        for count in (1, 2, 3, 5):
            for state in map(list, combinations(range(5), count)):
                for mean in (fields[:, state].max(1), fields[:, state].sum(1)):
                    assert (xlogy(y, mean) - mean).sum() <= scores[n, state].min() + 1e-9
