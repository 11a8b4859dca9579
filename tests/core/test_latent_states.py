from itertools import combinations

import numpy as np
import pytest
from brute import as_binary

from parallel_et.core.latent_states import Latents, Table, places_by_atom, states_of_places


@pytest.mark.parametrize("candidates, gamma", [(c, g) for c in range(1, 8) for g in range(1, c + 1)])
def test_the_table_has_every_state_once_and_is_a_tree(candidates, gamma):
    states = Table.up_to(candidates, gamma)
    rows = [tuple(row[row >= 0].tolist()) for row in states.members]
    assert sorted(rows) == sorted(s for g in range(gamma + 1) for s in combinations(range(candidates), g))
    assert len(rows) == Latents(candidates).states(candidates, gamma)
    children = []
    for index, size, last, first in states.inner:
        assert (states.size[index], rows[index][-1] if size else -1) == (size, last)
        for added in range(last + 1, candidates):
            assert rows[first + added] == (*rows[index], added)
            children.append(first + added)
    assert sorted(children) == list(range(1, len(rows)))
    order = [int(index) for index in states.inner[:, 0]]
    assert order[0] == 0
    assert all(
        order.index(index) < order.index(below)
        for index, _, last, first in states.inner
        for below in range(first + last + 1, first + candidates)
        if below in order
    )
    assert (as_binary(states.members, candidates).sum(1) == states.size).all()


def test_states_are_written_down_as_places_and_read_back():
    states = np.array([[2, 0, 3], [1, -1, -1], [-1, -1, -1]], np.int32)
    table = places_by_atom(states, 4)
    assert table.tolist() == [[2, 0, 1, 3], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert states_of_places(table).tolist() == states.tolist()
