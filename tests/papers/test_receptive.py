"""Classification of noisy Gabor wavelets and blobs."""

import numpy as np
import pytest

from parallel_et.papers.receptive import FieldCounts, blob, classify_field, count_kinds, gabor

PLACE = np.moveaxis(np.indices((12, 12)), 0, -1).astype(float)


@pytest.mark.parametrize("seed", range(3))
def test_wavelets_and_blobs_are_classified(seed):
    rng = np.random.default_rng(seed)
    centre, angle = rng.uniform(4, 8, 2), rng.uniform(0, np.pi)
    wave = gabor(PLACE, np.array([*centre, np.log(2.0), np.log(3.0), angle, np.log(5.0), rng.uniform(0, 6)]))
    round_one = blob(PLACE, np.array([*centre, np.log(1.3), 0.0, 0.7]))
    for field, kind in ((wave, "gabor"), (-round_one, "globular")):
        noisy = field + 0.05 * np.abs(field).max() * rng.standard_normal(field.shape)
        assert classify_field(3 * noisy) == kind
    assert classify_field(rng.standard_normal((12, 12))) == "neither"
    assert classify_field(np.zeros((12, 12))) == "neither"
    fields = np.stack([wave, round_one, -wave, rng.standard_normal((12, 12)), wave, -round_one])
    assert count_kinds(fields) == FieldCounts(3, 2, 1)
    assert FieldCounts(3, 2, 1).summary() == "of 6 fields 3 Gabor, 2 globular, 1 neither"
