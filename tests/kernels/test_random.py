"""Random numbers by point: the published generator, and the numbers that they depend on."""

import numpy as np
import pytest
from numba import njit

from parallel_et.core.random import Random
from parallel_et.kernels.random import philox

ANSWERS = [
    # counter, key, output: known answers of Random123 for philox4x32-10
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("counter, key, expected", ANSWERS)
def test_the_generator_gives_its_known_answers(counter, key, expected):
    @njit
    def draw(a, b, c, d, key, other):
        return philox(a, b, c, d, key, other)

    assert draw(*map(np.uint64, (*counter, *key))) == expected


def test_numbers_depend_on_seed_iteration_purpose_point_and_place_alone():
    whole = Random(1, 2).uniforms("a", 0, (1000, 5))
    assert ((whole >= 0) & (whole < 1)).all()
    np.testing.assert_array_equal(Random(1, 2).uniforms("a", 300, (50, 5)), whole[300:350])
    np.testing.assert_array_equal(Random(1, 2).uniforms("a", 300, (50, 3)), whole[300:350, :3])
    others = [Random(2, 2).uniforms("a", 0, (1000, 5)), Random(1, 3).uniforms("a", 0, (1000, 5))]
    others.append(Random(1, 2).uniforms("b", 0, (1000, 5)))
    for table in [*others, whole[:, ::-1]]:
        assert abs(np.corrcoef(table[:, [0, 1, 3, 4]].ravel(), whole[:, [0, 1, 3, 4]].ravel())[0, 1]) < 0.06
    assert len(np.unique(whole)) == whole.size
    assert whole.mean() == pytest.approx(0.5, abs=5 * 12**-0.5 / 5000**0.5)
