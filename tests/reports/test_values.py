"""The picture of the values of active causes."""

import numpy as np

from parallel_et.reports import plots
from parallel_et.reports.run_data import value_moments


def test_values_are_those_of_active_causes_and_nan_without_any():
    values = np.array([2.0, 2.0, 5.0])
    sums = [np.array([len(some), some.sum(), (some**2).sum()]) for some in (values, np.empty(0))]
    found = value_moments(*np.transpose(sums))
    np.testing.assert_allclose(found[:, 0], [values.mean(), values.std()])
    assert np.isnan(found[:, 1]).all()


def test_the_picture_has_posterior_and_prior_of_each_cause_in_order():
    found, prior, order = np.array([[1.0, 2.0], [0.1, 0.2]]), np.array([[3.0, 4.0], [0.3, 0.4]]), np.array([1, 0])
    axis = plots.plot_values(found, prior, order).axes[0]
    shown = [bars.lines[0].get_ydata().tolist() for bars in axis.containers]
    assert shown == [[4.0, 3.0], [2.0, 1.0]]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "0"]
