"""The soak at small size; ``make soak`` runs the large one."""

import os

from soak import soak


def test_runs_disturbed_in_many_ways_on_many_numbers_of_ranks_end_with_the_same_bits(tmp_path):
    """Five of the ten ways, others each time."""
    assert soak(tmp_path, iterations=60, kills=5, outputs=1, seed=int.from_bytes(os.urandom(4), "little"))
