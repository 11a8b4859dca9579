"""Kept states of each point, and the search for better ones (TV Alg. 1): proposals of several kinds, and who enters.

States are lists of active atoms, padded with -1; where their order does not count they rise, so that equal states are
equal lists. A list that begins with ``VACANT`` is none. What is drawn depends on a key, the point and the number of
the proposal alone.
"""

from math import exp, log

import numpy as np

from parallel_et.kernels import VACANT, kernel, part
from parallel_et.kernels.random import HALF, WORD, philox

EXPLORE = 0.1
"""Share of the prior in the probabilities from which states of the kind ``marginals`` are drawn."""
TRIES = 64
"""Draws for the atoms of a blind state, some of which are there already."""
PRIME = np.uint64(0x9E3779B97F4A7C15)


@part
def words_of(key, point, number, more):
    """Four random words of 32 bits for a proposal of a point."""
    index = np.uint64(point)
    return philox(np.uint64(number), np.uint64(more), index & WORD, index >> HALF, key & WORD, key >> HALF)


@part
def below(word, count):
    """A whole number below ``count`` from 32 random bits."""
    return np.int64((word * np.uint64(count)) >> HALF)


@part
def size_of(state):
    """Active atoms of a state."""
    size = 0
    while size < len(state) and state[size] >= 0:
        size += 1
    return size


@part
def number_of(states):
    """How many of the places for states (S, g) are taken; these are the first."""
    count = 0
    while count < len(states) and states[count, 0] != VACANT:
        count += 1
    return count


@part
def parent_of(logs, count, one, other):
    """The better of two of the ``count`` kept states, each drawn by a random word."""
    i, j = below(one, count), below(other, count)
    return i if logs[i] >= logs[j] else j


@part
def take_out(state, size, place):
    """Take one atom out of a state."""
    for i in range(place, size - 1):
        state[i] = state[i + 1]
    state[size - 1] = -1
    return size - 1


@part
def put_in(state, size, atom, ordered, word):
    """Put an atom into a state: where it belongs, or where a random word says if the order counts."""
    place = below(word, size + 1) if ordered else size
    while not ordered and place > 0 and state[place - 1] > atom:
        place -= 1
    for i in range(size, place, -1):
        state[i] = state[i - 1]
    state[place] = atom
    return size + 1


@part
def place_of(state, size, owner, atom):
    """Where a state has an atom of the same owner; -1 if it has none."""
    for i in range(size):
        if owner[state[i]] == owner[atom]:
            return i
    return -1


@part
def copy_to(out, state):
    """Copy a state, and return how many atoms it has."""
    for i in range(len(out)):
        out[i] = state[i]
    return size_of(state)


@kernel("void(int32[:,::1], int32[:,::1], int64[::1], int64, int32[::1], int32[:,:,::1])")
def construct(candidates, members, start, stride, owner, out):
    """States of a table over each point's candidates, from one on and then by strides.

    candidates (n, H'), members (K, g'), start (n,), owner (atoms,), out (n, P, g).
    """
    N, P, most = out.shape
    K, size = members.shape
    for n in range(N):
        index = start[n]
        for k in range(P):
            state = out[n, k]
            state[:] = -1
            for i in range(min(size, most)):
                if members[index, i] < 0:
                    break
                atom = candidates[n, members[index, i]]
                if place_of(state, i, owner, atom) >= 0:
                    state[0] = VACANT
                    break
                state[i] = atom
            index = (index + stride) % K


@kernel("void(uint64, int64, int32[::1], int64, int64, boolean, int32[:,:,::1])")
def blind(key, first, owner, least, most, ordered, out):
    """States at random: their size uniform in [least, most], their atoms uniform; out (n, P, g)."""
    N, P, _ = out.shape
    for n in range(N):
        for k in range(P):
            state = out[n, k]
            state[:] = -1
            word, other, _, _ = words_of(key, first + n, k, 0)
            wanted, size, tries = least + below(word, most - least + 1), 0, 0
            while size < wanted and tries < TRIES:
                tries += 1
                word, other, _, _ = words_of(key, first + n, k, tries)
                atom = np.int32(below(word, len(owner)))
                if place_of(state, size, owner, atom) < 0:
                    size = put_in(state, size, atom, ordered, other)
            if size < least:
                state[0] = VACANT


@kernel(
    "void(uint64, int64, int32[:,:,::1], float64[:,::1], int32[::1], int64, int64, boolean, int32[:,::1], "
    "int32[:,:,::1])"
)
def flip(key, first, states, logs, owner, least, most, ordered, near, out):
    """Children of kept states with one atom less, more, or another.

    Half of them lose one of their atoms; the others get one at random, in exchange for another if there is no room for
    it, or, where ``near`` (atoms, G) or (atoms, 0) lists some for each atom, one of these in exchange for that atom.
    states (n, S, g) and logs (n, S): the kept ones and their joints; owner (atoms,); out (n, P, g).
    """
    N, P, _ = out.shape
    G = near.shape[1]
    for n in range(N):
        count = number_of(states[n])
        for k in range(P):
            state = out[n, k]
            a, b, c, d = words_of(key, first + n, k, 0)
            size = copy_to(state, states[n, parent_of(logs[n], count, a, b)])
            if G > 0 and size > 0:
                place = below(d, size)
                atom = near[state[place], below(c, G)]
                size = take_out(state, size, place)
                if place_of(state, size, owner, atom) < 0:
                    put_in(state, size, atom, ordered, d)
                else:
                    state[0] = VACANT
                continue
            if size > least and d & np.uint64(1):
                take_out(state, size, below(d, size))
                continue
            atom = np.int32(below(c, len(owner)))
            clash = place_of(state, size, owner, atom)
            if clash >= 0 and state[clash] == atom:
                state[0] = VACANT
                continue
            if clash >= 0 or size == most:
                size = take_out(state, size, clash if clash >= 0 else below(d, size))
            put_in(state, size, atom, ordered, d)


@kernel("void(uint64, int64, int32[:,:,::1], float64[:,::1], int32[::1], int64, int64, boolean, int32[:,:,::1])")
def cross(key, first, states, logs, owner, least, most, ordered, out):
    """Children of two kept states: atoms before a cut of the one, after it of the other; as ``flip`` for the rest."""
    N, P, _ = out.shape
    for n in range(N):
        count = number_of(states[n])
        for k in range(P):
            state = out[n, k]
            a, b, c, d = words_of(key, first + n, k, 0)
            one = states[n, parent_of(logs[n], count, a, b)]
            a, b, _, _ = words_of(key, first + n, k, 1)
            other = states[n, parent_of(logs[n], count, a, b)]
            state[:] = -1
            cut, size = below(c, len(owner)), 0
            before, after = size_of(one), size_of(other)
            if ordered:
                before, cut = below(c, before + 1), below(d, after + 1)
            for i in range(before):
                if ordered or one[i] < cut:
                    state[size] = one[i]
                    size += 1
            for i in range(after):
                atom = other[i]
                late = i >= cut if ordered else atom >= cut
                if late and size < most and place_of(state, size, owner, atom) < 0:
                    state[size] = atom
                    size += 1
            if size < least:
                state[0] = VACANT


@kernel(
    "void(uint64, int64, int32[:,:,::1], float64[:,::1], float64, int32[::1], int64, int64, boolean, int32[:,:,::1])"
)
def marginals(key, first, states, logs, beta, owner, least, most, ordered, out):
    """States whose atoms are drawn each by itself, by the posterior means under the kept states, mixed with the prior.

    out (n, P, g): states drawn from the prior, become the proposals. The rest as for ``flip``.
    """
    N, P, _ = out.shape
    S = states.shape[1]
    mean, touched = np.zeros(len(owner)), np.empty(S * states.shape[2], np.int32)
    inside = np.zeros(len(owner), np.bool_)
    drawn = np.empty(states.shape[2], np.int32)
    for n in range(N):
        kept = number_of(states[n])
        peak, sum_q, count = logs[n, 0], 0.0, 0
        for s in range(kept):
            peak = max(peak, logs[n, s])
        for s in range(kept):
            q = exp(beta * (logs[n, s] - peak))
            sum_q += q
            for i in range(size_of(states[n, s])):
                atom = states[n, s, i]
                if not inside[atom]:
                    inside[atom] = True
                    touched[count] = atom
                    count += 1
                mean[atom] += q
        for k in range(P):
            before = copy_to(drawn, out[n, k])
            state = out[n, k]
            state[:] = -1
            size, a, b = 0, np.uint64(0), np.uint64(0)
            for i in range(count + before):
                a, b, _, _ = words_of(key, first + n, k, i)
                u, atom = a * 2.0**-32, touched[i] if i < count else drawn[i - count]
                if i < count:
                    taken = u < (1 - EXPLORE) * mean[atom] / sum_q
                    if u >= 1 - EXPLORE:
                        for j in range(before):
                            taken = taken or drawn[j] == atom
                else:
                    taken = u < EXPLORE and not inside[atom]
                if taken and size < most and place_of(state, size, owner, atom) < 0:
                    size = put_in(state, size, atom, ordered, b)
            if size < least:
                copy_to(state, drawn)
        for i in range(count):
            inside[touched[i]] = False
            mean[touched[i]] = 0.0


@part
def mark_of(state):
    """A number that tells states apart, but for a chance of 2^-64."""
    mark = PRIME
    for i in range(size_of(state)):
        mark = (mark ^ np.uint64(state[i] + 1)) * PRIME
        mark ^= mark >> np.uint64(29)
    return mark


@kernel("void(int32[:,:,::1], uint64[:,::1])")
def mark(states, marks):
    """The marks (n, S) of kept states (n, S, g), as far as places are taken."""
    for n in range(len(states)):
        for k in range(number_of(states[n])):
            marks[n, k] = mark_of(states[n, k])


@kernel("void(int32[:,:,::1], float64[:,::1], uint64[:,::1], int32[:,:,::1], float64[:,::1])")
def enter(states, logs, marks, proposed, values):
    """Let the proposed states that are better than the worst of the kept ones take their places, or vacant ones.

    states (n, S, g), logs and marks (n, S): the kept ones and their joints, changed in place; proposed (n, P, g) and
    values (n, P). A state is never kept twice; of equal joints the older state stays.
    """
    N, S, _ = states.shape
    P = proposed.shape[1]
    for n in range(N):
        count, worst = number_of(states[n]), 0
        for s in range(1, count):
            if logs[n, s] < logs[n, worst]:
                worst = s
        for k in range(P):
            if proposed[n, k, 0] == VACANT or not values[n, k] > (logs[n, worst] if count == S else -np.inf):
                continue
            new, same = mark_of(proposed[n, k]), 0
            for s in range(count):
                same += marks[n, s] == new
            if same:
                continue
            place = worst if count == S else count
            copy_to(states[n, place], proposed[n, k])
            logs[n, place], marks[n, place] = values[n, k], new
            count = min(count + 1, S)
            worst = 0
            for s in range(1, count):
                if logs[n, s] < logs[n, worst]:
                    worst = s


@kernel("void(int32[:,:,::1], float64[:,::1], float64, float64[::1], float64[:,::1])")
def weigh(states, logs, beta, evidence, weights):
    """evidence[n] = log sum_s p^beta over the kept states (n, S, g), from their joints; weights (n, S) ~ p^beta."""
    N, S = logs.shape
    for n in range(N):
        count = number_of(states[n])
        peak, total = logs[n, 0], 0.0
        for s in range(count):
            peak = max(peak, logs[n, s])
        for s in range(count):
            weights[n, s] = exp(beta * (logs[n, s] - peak))
            total += weights[n, s]
        evidence[n] = beta * peak + log(total)
        for s in range(count):
            weights[n, s] /= total
        for s in range(count, S):
            weights[n, s] = 0.0
