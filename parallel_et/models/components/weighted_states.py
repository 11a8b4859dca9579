"""States of a block as the kernels take them that go by candidates, whether they are listed or of a table."""

import numpy as np

from parallel_et.core.posterior import Listed, Sparse, Tabled
from parallel_et.kernels import listed_states


def weighted(posterior: Tabled | Listed, H: int) -> tuple[np.ndarray, ...]:
    """The states of a block and their weights, as the kernels take them."""
    if isinstance(posterior, Listed):
        start, state, weight = posterior.q
        none = Sparse(np.zeros(len(start), np.int64), np.empty(0, np.int32), np.empty(0))
        each = np.arange(len(state), dtype=np.int32)
        return *listed_states.over_candidates(posterior.states, start, state, H), start, each, weight, *none
    return posterior.candidates, posterior.table.members, *posterior.q, *posterior.alone
