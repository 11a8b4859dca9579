import pytest

from parallel_et.parallel.shard import Shard, block_size


@pytest.mark.parametrize("points", [1, 2, 15, 16, 17, 100, 513, 4097, 100_003])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64, 1000])
def test_every_point_has_one_owner_and_blocks_never_depend_on_the_ranks(points, ranks):
    size = block_size(points, 26)
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


@pytest.mark.parametrize("states", [1, 26, 386, 1 << 20])
def test_a_block_is_a_multiple_of_the_lanes_and_its_states_fit_in_memory(states):
    size = block_size(10**6, states)
    assert size % 16 == 0
    assert size == 16 or size * states <= 1 << 25
