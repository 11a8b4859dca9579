from itertools import combinations

import pytest
from brute import as_binary

from parallel_et.posterior.states import States, count_states


@pytest.mark.parametrize("candidates, gamma", [(c, g) for c in range(1, 8) for g in range(1, c + 1)])
def test_the_table_has_every_state_once_and_is_a_tree(candidates, gamma):
    states = States.up_to(candidates, gamma)
    rows = [tuple(row[row >= 0].tolist()) for row in states.members]
    assert sorted(rows) == sorted(s for g in range(gamma + 1) for s in combinations(range(candidates), g))
    assert len(rows) == count_states(candidates, gamma)
    path: list[int] = []
    for row, size, last in zip(rows, states.size, states.last, strict=True):
        path = [*path[: max(0, size - 1)], last] if size else []
        assert tuple(path) == row
    assert (as_binary(states.members, candidates).sum(1) == states.size).all()
