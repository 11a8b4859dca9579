import pytest

from parallel_et.parallel.shards import Shard, block_size, merge_blocks


@pytest.mark.parametrize("points", [1, 2, 15, 16, 17, 100, 513, 4097, 100_003])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64, 1000])
def test_every_point_has_one_owner_and_blocks_never_depend_on_the_ranks(points, ranks):
    size = block_size(points, 100.0, 400)
    starts, owned = set(), 0
    for rank in range(ranks):
        shard = Shard.of(points, size, rank, ranks)
        assert shard.first == owned
        owned = shard.last
        starts |= {shard.first + block.start for block in shard.blocks()}
        assert sum(block.stop - block.start for block in shard.blocks()) == len(shard)
    assert owned == points
    assert starts == set(range(0, points, size))


def test_shards_differ_by_one_block_at_most():
    lengths = [len(Shard.of(100_003, 512, rank, 64)) for rank in range(64)]
    assert max(lengths) - min(lengths) <= 2 * 512


@pytest.mark.parametrize("nanoseconds", [1.0, 80.0, 3e3, 1e5, 1e9])
@pytest.mark.parametrize("points", [1, 500, 10**6])
def test_blocks_outweigh_their_overhead_and_several_ranks_have_work(nanoseconds, points):
    size = block_size(points, nanoseconds, 50_000)
    assert size % 16 == 0
    assert 16 <= size <= 1024
    assert size == 16 or size <= max(16, points / 4 + 16)
    assert size in (16, 1024) or points < 10**6 or 0.9 < size * nanoseconds / 2.6e6 < 1.3


@pytest.mark.parametrize("points", [1, 500, 4000, 20_000, 10**6])
def test_row_independent_blocks_are_smaller_and_their_number_is_a_power_of_two(points):
    size = block_size(points, 2e4, 800_000, row_independent=True)
    assert size <= max(16, block_size(points, 2e4, 800_000))
    assert size == {1: 16, 500: 128, 4000: 256, 20_000: 320, 10**6: 256}[points]


def test_adjacent_blocks_are_merged_up_to_a_limit():
    blocks = [slice(0, 16), slice(16, 32), slice(32, 48), slice(64, 80), slice(80, 85)]
    assert list(merge_blocks(blocks, 40)) == [slice(0, 32), slice(32, 48), slice(64, 85)]
    assert list(merge_blocks(blocks, 0)) == blocks
    assert list(merge_blocks([], 40)) == []
