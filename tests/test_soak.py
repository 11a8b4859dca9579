"""The soak at small size; ``make soak`` runs the large one."""

import os

from soak import soak


def test_a_run_killed_many_times_on_many_numbers_of_ranks_ends_with_the_same_bits(tmp_path):
    assert soak(tmp_path, iterations=60, kills=4, seed=int.from_bytes(os.urandom(4), "little"))
