"""Conversion of listed states to states over candidates."""

import numpy as np

from parallel_et.kernels import device_function, kernel


@device_function
def copy_with_width(table, width):
    """Return a copy of a table with this many columns, cut or padded with zeros."""
    other = np.zeros((len(table), width), np.int32)
    for n in range(len(table)):
        for i in range(min(width, table.shape[1])):
            other[n, i] = table[n, i]
    return other


@kernel("Tuple((int32[:,::1], int32[:,::1]))(int32[:,:,::1], int64[::1], int32[::1], int64)")
def candidates_and_members(states, start, state, H):
    """Return listed states as a table over candidates: the candidates of a point are the causes of its states.

    states : (n, K, g) listed states
    start, state : (n + 1,), (m,) states with non-negligible weight, row by row

    Returns candidates (n, H') and members (m, g). H' is the largest number of causes of a point, and members has a row
    for each state, padded with -1. Costs a few operations an active cause.
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
                        candidates = copy_with_width(candidates, min(H, 2 * count))
                    candidates[n, count], place[h] = h, count
                    count += 1
                members[k, i] = place[h]
        for i in range(count):
            place[candidates[n, i]] = -1
        width = max(width, count)
    return copy_with_width(candidates, width), members
