"""Poisson noise as a key of the job: keys and data that contradict it are refused in one line."""

import numpy as np
import pytest
from problems import job_table, problem_of

from parallel_et import fit
from parallel_et.errors import UserError
from parallel_et.models.components.noises import Poisson

EXACT = {"scheme": "exact"}


@pytest.mark.parametrize("name", ["mca poisson", "nmf poisson"])
@pytest.mark.parametrize(
    "keys, line",
    [
        ({"sigma": 2.0}, 'model.sigma: expected none with noise = "poisson", found 2.0'),
        ({"init": {"sigma": 2.0}}, 'model.init.sigma: expected none with noise = "poisson", found 2.0'),
        ({"learn": ["W", "sigma"]}, 'model.learn: expected no sigma with noise = "poisson", found W, sigma'),
        ({}, "data: expected counts for Poisson noise, found 8.3% negative values"),
    ],
)
def test_keys_and_data_without_poisson_noise_are_refused(name, keys, line):
    Y = np.ones((4, 3))
    Y[1, 2] = -1e-9
    with pytest.raises(UserError) as error:
        problem_of(job_table({"name": name, "causes": 2, **keys}, EXACT), Y)
    assert str(error.value) == line


@pytest.mark.parametrize("name", ["mca poisson", "nmf poisson"])
def test_bars_without_noise_and_points_of_zeros_are_taken_as_they_are(name):
    rng = np.random.default_rng(1)
    fields = 9.5 * np.repeat(np.eye(3), 2, axis=1)
    Y = np.vstack([(rng.random((80, 3)) < 0.4) @ fields, np.zeros((2, 6))])
    result = fit(
        job_table({"name": name, "causes": 3}, EXACT, {"iterations": 40, "temperature": [[0, 3.0], [0.5, 1.0]]}), Y
    )
    assert set(result.params) == {"W", "pi"}
    assert np.isfinite(result.history["free_energy"]).all()
    found = result.params["W"].T
    np.testing.assert_allclose(found[np.argsort(found.argmax(1) // 2)], fields, atol=1e-6)


def test_counts_are_drawn_around_means_of_any_size():
    mean = np.array([0.0, 3.0, 1e15, 1e40, 1e90])
    drawn = Poisson().draw({}, np.random.default_rng(1), mean)
    np.testing.assert_array_equal(drawn[:3], np.random.default_rng(1).poisson(np.minimum(mean, 2.0**53))[:3])
    assert (np.abs(drawn - mean) <= 6 * np.sqrt(mean) + 1e-15 * mean).all()
