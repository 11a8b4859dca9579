"""Objects anywhere: what is drawn of their places."""

import numpy as np

from parallel_et.papers.anywhere import Places, drawn


def test_what_is_not_found_stands_at_one_place_in_the_picture():
    places = Places(2, 2, np.array([0, 1, -1]), np.array([0, 7, -1]), 0.1, np.zeros(3), 1.0)
    bars, _ = drawn([places, places]).axes
    lasts = [max(bar.get_x() + bar.get_width() / 2 for bar in kind) for kind in bars.containers]
    np.testing.assert_allclose(lasts, [9 - 0.2, 9 + 0.2])
