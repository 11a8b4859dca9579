import numpy as np
import pytest

from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard
from parallel_et.parallel.top_k import mark_largest, ordered_bits


def marked_by_sorting(values, count):
    mark = np.zeros(len(values), bool)
    mark[sorted(range(len(values)), key=lambda n: (-values[n], n))[: max(0, count)]] = True
    return mark


VALUES = {
    "spread over all magnitudes": lambda rng: rng.normal(size=97) * 10.0 ** rng.integers(-300, 300, 97),
    "mostly ties": lambda rng: rng.integers(-3, 3, 97).astype(float),
    "all equal": lambda rng: np.full(97, -12.5),
    "neighbouring doubles": lambda rng: np.nextafter(-60.0, 0.0) * (1 + rng.integers(0, 5, 97) * 2.0**-52),
    "both zeros and infinities": lambda rng: rng.choice([0.0, -0.0, np.inf, -np.inf, 1e-310], 97),
    "fewer points than ranks": lambda rng: rng.normal(size=2),
    "no points": lambda rng: np.empty(0),
}


@pytest.mark.mpi
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("fraction", [-0.1, 0.0, 0.01, 0.5, 0.99, 1.0, 1.5])
def test_the_largest_are_those_that_sorting_finds(name, fraction):
    ranks = Ranks()
    values = VALUES[name](np.random.default_rng(7))
    count = round(fraction * len(values))
    shard = Shard.of(len(values), 5, ranks.rank, ranks.size)
    own_rows = slice(shard.first, shard.last)
    np.testing.assert_array_equal(
        mark_largest(ranks, values[own_rows], count), marked_by_sorting(values, count)[own_rows]
    )


def test_bits_keep_the_order_of_doubles():
    values = np.array([-np.inf, -1e300, -1.0, -1e-320, 0.0, 5e-324, 1.0, np.nextafter(1.0, 2.0), np.inf])
    assert (np.diff(ordered_bits(values).astype(object)) > 0).all()
    assert ordered_bits(np.array([-0.0]))[0] == ordered_bits(np.array([0.0]))[0]
