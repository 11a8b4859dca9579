from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks, mistake

pytestmark = pytest.mark.mpi
NOWHERE = "nowhere: expected a file or folder that can be used, found No such file or directory"


def test_parameters_of_the_root_reach_every_rank():
    ranks = Ranks()
    mine = {"W": np.full((3, 2), float(ranks.rank)), "sigma": np.array(2.0 + ranks.rank), "pi": np.array(0.1)}
    shared = ranks.share(mine)
    np.testing.assert_array_equal(shared["W"], np.zeros((3, 2)))
    assert float(shared["sigma"]) == 2.0
    assert shared["sigma"].shape == ()


def test_a_mistake_on_any_one_rank_is_everybodys_with_its_text():
    ranks = Ranks()

    def checked():
        with ranks.together():
            if ranks.rank == ranks.size - 1:
                raise UserError(f"row 7 of rank {ranks.rank} is bad")

    with pytest.raises(UserError, match=f"row 7 of rank {ranks.size - 1} is bad"):
        checked()


def test_no_mistake_passes():
    with Ranks().together():
        pass


def test_what_the_root_makes_is_everybodys_and_so_is_its_mistake():
    ranks = Ranks()
    assert ranks.from_root(lambda: ranks.rank) == 0

    def fail():
        raise UserError("only the root says this")

    with pytest.raises(UserError, match="only the root"):
        ranks.from_root(fail)


def test_what_the_root_makes_alone_is_everybodys_and_so_is_its_mistake():
    ranks = Ranks()
    assert ranks.on_root_alone(lambda root: (root.size, ranks.rank)) == (1, 0)

    def fail(root):
        root.from_root(lambda: Path("nowhere").stat())

    with pytest.raises(FileNotFoundError) as caught:
        ranks.on_root_alone(fail)
    assert mistake(caught.value, ranks) == NOWHERE


def test_what_is_wrong_for_some_ranks_is_not_taken_for_everybodys():
    ranks = Ranks()
    with pytest.raises(FileNotFoundError) as caught:
        Ranks(MPI.COMM_SELF).from_root(lambda: Path("nowhere").stat())
    assert mistake(caught.value, ranks) == (NOWHERE if ranks.size == 1 else "")


def test_counts_before_and_sums():
    ranks = Ranks()
    assert ranks.count_before(2) == 2 * ranks.rank
    total = np.array([ranks.rank, 1], np.int64)
    ranks.sum(total)
    assert total.tolist() == [ranks.size * (ranks.size - 1) // 2, ranks.size]
    assert ranks.max(float(ranks.rank)) == ranks.size - 1
