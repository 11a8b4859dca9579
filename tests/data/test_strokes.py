"""Patches of strokes: each shows its part of the image, with its own noise."""

import numpy as np
import pytest

from parallel_et.data.strokes import Strokes, StrokesOptions
from parallel_et.errors import UserError
from parallel_et.job.job import check_job


def strokes(**keys):
    return Strokes(StrokesOptions(**{"points": 961, "image": 40, "strokes": 12, **keys}), 3, None)


def test_patches_are_cut_from_the_image_and_count_the_strokes_that_are_seen():
    source = strokes()
    grey, who = source.image
    clean, counts = source.clean(0, 961), source.counts(0, 961)
    assert 0 < (grey > 0).mean() < 1
    assert grey.max() <= 255
    for number in range(0, 961, 60):
        row, column = divmod(number, 31)
        here = slice(row, row + 9), slice(column, column + 9)
        np.testing.assert_array_equal(clean[number].reshape(9, 9), grey[here])
        assert counts[number] == len(set(who[here].ravel()) - {0})
    for number in set(who.ravel()) - {0}:
        assert len(set(grey[who == number])) == 1


def test_noise_is_that_of_the_patch_wherever_it_is_read_from():
    source = strokes()
    whole = source.read(0, 961)[:, :81]
    np.testing.assert_array_equal(source.read(250, 300)[:, :81], whole[250:300])
    noise = whole - source.clean(0, 961)
    assert noise.std() == pytest.approx(25.0, rel=0.02)
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.4
    few = strokes(points=100)
    np.testing.assert_array_equal(few.clean(0, 100), source.clean(0, 961)[np.arange(100) * 961 // 100])


def test_more_patches_than_places_are_refused():
    table = {"model": {"name": "mca", "causes": 2}, "data": {"source": "strokes", "points": 99, "image": 12, "size": 9}}
    with pytest.raises(UserError, match=r"data\.points: expected at most 9, the number of positions, found 99"):
        check_job({**table, "inference": {"scheme": "exact"}})
