"""Listed states as those of a table over candidates."""

import numpy as np

from parallel_et.kernels import kernel, part


@part
def of_width(table, width):
    """A table with so many columns: the first of its own, or more that are zero."""
    other = np.zeros((len(table), width), np.int32)
    for n in range(len(table)):
        for i in range(min(width, table.shape[1])):
            other[n, i] = table[n, i]
    return other


@kernel("Tuple((int32[:,::1], int32[:,::1]))(int32[:,:,::1], int64[::1], int32[::1], int64)")
def over_candidates(states, start, state, H):
    """Listed states that matter as those of a table over candidates, which are the causes that they have.

    states (n, K, g); start (n + 1,), state: those that matter, row by row. Returns candidates (n, H'), as many as the
    point with most has, and members (m, g), one row for each that matters, padded with -1.
    """
    N, _, most = states.shape
    members, place = np.full((len(state), most), -1, np.int32), np.full(H, -1, np.int32)
    candidates, width = np.zeros((N, min(H, 16)), np.int32), 1
    for n in range(N):
        count = 0
        for k in range(start[n], start[n + 1]):
            for i in range(most):
                h = states[n, state[k], i]
                if h < 0:
                    break
                if place[h] < 0:
                    if count == candidates.shape[1]:
                        candidates = of_width(candidates, min(H, 2 * count))
                    candidates[n, count], place[h] = h, count
                    count += 1
                members[k, i] = place[h]
        for i in range(count):
            place[candidates[n, i]] = -1
        width = max(width, count)
    return of_width(candidates, width), members
