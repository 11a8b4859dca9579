from fractions import Fraction

import numpy as np
import pytest

from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import ExactSum, exact_sum
from parallel_et.parallel.shards import Shard

N = 1003


def values():
    rng = np.random.default_rng(3)
    table = rng.normal(size=(N, 4)) * 10.0 ** rng.integers(-9, 1, (N, 4))
    table[:, 3] = np.where(np.arange(N) % 2, 1e-3, -1e-3) + 1e-17  # cancels except for the last bits
    return np.clip(table, -5, 5)


@pytest.mark.mpi
def test_sums_are_exact_and_the_same_bits_on_all_ranks():
    ranks, table = Ranks(), values()
    shard = Shard.of(N, 8, ranks.rank, ranks.size)
    total = ExactSum({"a": (3,), "b": ()})
    total.reset({"a": 5.0, "b": 5.0}, N, 8)
    for block in shard.blocks():
        rows = table[shard.first + block.start : shard.first + block.stop]
        total.add("a", rows[:, :3].sum(0))
        total.add("b", rows[:, 3].sum())
    sums = total.on_all_ranks(ranks)
    blocks = [table[start : start + 8] for start in range(0, N, 8)]
    exact = [float(sum((Fraction(float(x)) for x in [b[:, j].sum() for b in blocks]), Fraction(0))) for j in range(4)]
    np.testing.assert_allclose(sums["a"], exact[:3], rtol=1e-15, atol=1e-28)
    assert float(sums["b"]) == pytest.approx(exact[3], rel=1e-15, abs=1e-28)
    assert set(ranks.comm.allgather(sums["a"].tobytes())) == {sums["a"].tobytes()}


@pytest.mark.mpi
def test_a_bound_for_each_element_keeps_the_digits_of_small_elements():
    ranks, table, size = Ranks(), values()[:, :3], np.array([1e30, 1.0, 1e-30])
    shard = Shard.of(N, 8, ranks.rank, ranks.size)
    total = ExactSum({"a": (2, 3)})
    total.reset({"a": 5 * size}, N, 8)
    for block in shard.blocks():
        block_sum = size * table[shard.first + block.start : shard.first + block.stop].sum(0)
        total.add("a", block_sum)
        total.add("a", block_sum, first=3)
    sums = total.on_all_ranks(ranks)["a"]
    np.testing.assert_allclose(sums, np.tile(size * table.sum(0), (2, 1)), rtol=1e-12)
    total.add("a", [0.0, 0.0, 1e40])
    with pytest.raises(UserError, match="statistic a"):
        total.check()


@pytest.mark.mpi
def test_the_sum_of_evidences_does_not_depend_on_the_owners_of_points():
    ranks = Ranks()
    evidence = np.random.default_rng(5).normal(-1e4, 1e3, N)
    shard = Shard.of(N, 16, ranks.rank, ranks.size)
    found = exact_sum(ranks, evidence[shard.first : shard.last], N)
    backwards = Shard.of(N, 16, ranks.size - 1 - ranks.rank, ranks.size)
    assert exact_sum(ranks, evidence[backwards.first : backwards.last], N) == found
    assert found == pytest.approx(float(sum(map(Fraction, evidence.tolist()))), rel=1e-15)


@pytest.mark.mpi
def test_an_empty_sum_is_zero():
    ranks = Ranks()
    assert exact_sum(ranks, np.empty(0), 0) == 0.0
    assert exact_sum(ranks, np.zeros(3), 3 * ranks.size) == 0.0


def test_sums_of_many_threads_do_not_overflow():
    """Sum low words that are nearly full in each thread."""
    sums = [ExactSum({"a": (1,)}) for _ in range(8)]
    for one in sums:
        one.reset({"a": 1.0}, 1 << 30, 1024)
        _, high, low, _ = one.words("a")
        high[0], low[0] = 5, (1 << 61) - 1
    for one in sums[1:]:
        sums[0].merge(one)
    scale, *_ = sums[0].words("a")
    exact = 8 * (5 + Fraction((1 << 61) - 1, 1 << 40))
    assert float(sums[0].on_root(Ranks())["a"][0]) == pytest.approx(float(exact) / scale, rel=1e-15)


@pytest.mark.parametrize("added", [[1000.0] * 10, [-9.0], [np.inf], [np.nan], [2.0**80, -(2.0**80)]])
def test_a_sum_above_its_bound_is_an_error_that_names_the_statistic(added):
    """Check the error, as the integers would overflow without notice."""
    total = ExactSum({"fine": (), "wild": (2,)})
    total.reset({"fine": 1.0, "wild": 1.0}, 10, 8)
    total.add("fine", 8.0)
    total.check()
    for value in added:
        total.add("wild", [0.0, value])
    with pytest.raises(UserError, match="statistic wild: expected at most 8 of a block of 8 points"):
        total.check()


@pytest.mark.parametrize("N, block", [(1, 16), (15, 16), (17, 16), (1025, 1024), (2047, 1024)])
def test_a_sum_within_its_bound_does_not_overflow(N, block):
    """Let every block, also the short last one, add the maximum of a full block."""
    bound = np.nextafter(8.0, 0)
    total, most = ExactSum({"a": ()}), bound * min(N, block)
    total.reset({"a": bound}, N, block)
    for _ in range(-(-N // block)):
        total.add("a", most)
    total.check()
    assert float(total.on_root(Ranks())["a"]) == pytest.approx(most * -(-N // block))
