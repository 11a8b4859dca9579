"""The states of a block, listed or from a table, in the form that kernels with loops over candidates require."""

import numpy as np

from parallel_et.core.posterior import Listed, Sparse, Tabled
from parallel_et.kernels import listed_states


def weighted_states(posterior: Tabled | Listed, H: int) -> tuple[np.ndarray, ...]:
    """Return candidates, states over candidates, and sparse weights of states and of singletons."""
    if isinstance(posterior, Listed):
        start, state, weight = posterior.q
        none = Sparse(np.zeros(len(start), np.int64), np.empty(0, np.int32), np.empty(0))
        each = np.arange(len(state), dtype=np.int32)
        return *listed_states.candidates_and_members(posterior.states, start, state, H), start, each, weight, *none
    return posterior.candidates, posterior.table.members, *posterior.q, *posterior.singletons
