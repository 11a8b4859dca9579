from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks, shared_error_message

pytestmark = pytest.mark.mpi
NOWHERE = "nowhere: expected a file or folder that can be used, found No such file or directory"


def test_parameters_of_the_root_are_broadcast():
    ranks = Ranks()
    own = {"W": np.full((3, 2), float(ranks.rank)), "sigma": np.array(2.0 + ranks.rank), "pi": np.array(0.1)}
    shared = ranks.broadcast(own)
    np.testing.assert_array_equal(shared["W"], np.zeros((3, 2)))
    assert float(shared["sigma"]) == 2.0
    assert shared["sigma"].shape == ()


def test_an_error_on_one_rank_is_raised_on_all_ranks():
    ranks = Ranks()

    def check():
        with ranks.synchronise_errors():
            if ranks.rank == ranks.size - 1:
                raise UserError(f"row 7 of rank {ranks.rank} is bad")

    with pytest.raises(UserError, match=f"row 7 of rank {ranks.size - 1} is bad"):
        check()


def test_a_block_without_an_error_passes():
    with Ranks().synchronise_errors():
        pass


def test_the_value_or_error_of_the_root_reaches_all_ranks():
    ranks = Ranks()
    assert ranks.from_root(lambda: ranks.rank) == 0

    def fail():
        raise UserError("only the root raises this")

    with pytest.raises(UserError, match="only the root"):
        ranks.from_root(fail)


def test_the_value_or_error_of_a_run_on_the_root_reaches_all_ranks():
    ranks = Ranks()
    assert ranks.run_on_root(lambda root: (root.size, ranks.rank)) == (1, 0)

    def fail(root):
        root.from_root(lambda: Path("nowhere").stat())

    with pytest.raises(FileNotFoundError) as caught:
        ranks.run_on_root(fail)
    assert shared_error_message(caught.value, ranks) == NOWHERE


def test_a_system_error_of_one_rank_does_not_count_as_an_error_of_all():
    ranks = Ranks()
    with pytest.raises(FileNotFoundError) as caught:
        Ranks(MPI.COMM_SELF).from_root(lambda: Path("nowhere").stat())
    assert shared_error_message(caught.value, ranks) == (NOWHERE if ranks.size == 1 else "")


def test_sums_maxima_and_counts_before():
    ranks = Ranks()
    assert ranks.count_before(2) == 2 * ranks.rank
    total = np.array([ranks.rank, 1], np.int64)
    ranks.sum(total)
    assert total.tolist() == [ranks.size * (ranks.size - 1) // 2, ranks.size]
    assert ranks.max(float(ranks.rank)) == ranks.size - 1
