"""Kept states of each point, and the search for better ones (TV Alg. 1): proposals of several kinds, and who enters.

States are lists of active atoms, padded with -1; where their order does not count they rise, so that equal states are
equal lists. A list that begins with ``VACANT`` is none. What is drawn depends on a key, the point and the number of
the proposal alone.
"""

from math import exp

import numpy as np

from parallel_et.kernels import VACANT, kernel, part
from parallel_et.kernels.random import GOLDEN, HALF, WORD, mixed

EXPLORE = 0.1
"""Share of the prior in the probabilities from which states of the kind ``marginals`` are drawn."""
TRIES = 64
"""Draws for the atoms of a blind state, some of which are there already."""


@part
def words_of(key, point, number, more):
    """Four random words of 32 bits for a proposal of a point."""
    z = mixed(key + np.uint64(point) * GOLDEN) + np.uint64((number << 32) + 2 * more) * GOLDEN
    one, other = mixed(z), mixed(z + GOLDEN)
    return one & WORD, one >> HALF, other & WORD, other >> HALF


@part
def below(word, count):
    """A whole number below ``count`` from 32 random bits."""
    return np.int64((word * np.uint64(count)) >> HALF)


@part
def size_of(states, at, g):
    """Active atoms of the state whose g places begin at an index."""
    size = 0
    while size < g and states[at + size] >= 0:
        size += 1
    return size


@part
def number_of(states, at, S, g):
    """How many of S places for states, from an index on, are taken; these are the first."""
    count = 0
    while count < S and states[at + count * g] != VACANT:
        count += 1
    return count


@part
def parent_of(logs, at, count, one, other):
    """The better of two of ``count`` kept states, each drawn by a random word; their joints begin at an index."""
    i, j = below(one, count), below(other, count)
    return i if logs[at + i] >= logs[at + j] else j


@part
def take_out(states, at, size, place):
    """Take one atom out of a state."""
    for i in range(at + place, at + size - 1):
        states[i] = states[i + 1]
    states[at + size - 1] = -1
    return size - 1


@part
def put_in(states, at, size, atom, ordered, word):
    """Put an atom into a state: where it belongs, or where a random word says if the order counts."""
    place = below(word, size + 1) if ordered else size
    while not ordered and place > 0 and states[at + place - 1] > atom:
        place -= 1
    for i in range(at + size, at + place, -1):
        states[i] = states[i - 1]
    states[at + place] = atom
    return size + 1


@part
def place_of(states, at, size, owner, atom):
    """Where a state has an atom of the same owner; -1 if it has none."""
    place = -1
    for i in range(size):
        if owner[states[at + i]] == owner[atom]:
            place = i
    return place


@part
def copy_to(out, at, states, other, g):
    """Copy a state from one index to another, and return how many atoms it has."""
    size = 0
    for i in range(g):
        atom = states[other + i]
        out[at + i] = atom
        size += atom >= 0
    return size


@part
def clear(states, at, g):
    """Make a state empty."""
    for i in range(at, at + g):
        states[i] = -1


@kernel("void(int32[:,::1], int32[:,::1], int64[::1], int64, int32[::1], int32[:,:,::1])")
def construct(candidates, members, start, stride, owner, out):
    """States of a table over each point's candidates, from one on and then by strides.

    candidates (n, H'), members (K, g'), start (n,), owner (atoms,), out (n, P, g).
    """
    N, P, g = out.shape
    K, size = members.shape
    flat = out.reshape(-1)
    for n in range(N):
        index = start[n]
        for k in range(P):
            at = (n * P + k) * g
            clear(flat, at, g)
            for i in range(min(size, g)):
                if members[index, i] < 0:
                    break
                atom = candidates[n, members[index, i]]
                if place_of(flat, at, i, owner, atom) >= 0:
                    flat[at] = VACANT
                    break
                flat[at + i] = atom
            index = (index + stride) % K


@kernel("void(uint64, int64, int32[::1], int64, int64, boolean, int32[:,:,::1])")
def blind(key, first, owner, least, most, ordered, out):
    """States at random: their size uniform in [least, most], their atoms uniform; out (n, P, g)."""
    N, P, g = out.shape
    flat = out.reshape(-1)
    for n in range(N):
        for k in range(P):
            at = (n * P + k) * g
            clear(flat, at, g)
            word, other, _, _ = words_of(key, first + n, k, 0)
            wanted, size, tries = least + below(word, most - least + 1), 0, 0
            while size < wanted and tries < TRIES:
                tries += 1
                word, other, _, _ = words_of(key, first + n, k, tries)
                atom = np.int32(below(word, len(owner)))
                if place_of(flat, at, size, owner, atom) < 0:
                    size = put_in(flat, at, size, atom, ordered, other)
            if size < least:
                flat[at] = VACANT


@kernel("void(uint64, int64, int32[:,:,::1], float64[:,::1], int32[::1], boolean, int32[:,::1], int32[:,:,::1])")
def near(key, first, states, logs, owner, ordered, neighbours, out):
    """Children of kept states in which one atom is exchanged for one of its neighbours, (atoms, G).

    states (n, S, g) and logs (n, S): the kept ones and their joints; owner (atoms,); out (n, P, g).
    """
    N, P, g = out.shape
    S, G = logs.shape[1], neighbours.shape[1]
    kept, joints, flat = states.reshape(-1), logs.reshape(-1), out.reshape(-1)
    for n in range(N):
        here = n * S * g
        count = number_of(kept, here, S, g)
        for k in range(P):
            at = (n * P + k) * g
            a, b, c, d = words_of(key, first + n, k, 0)
            size = copy_to(flat, at, kept, here + parent_of(joints, n * S, count, a, b) * g, g)
            if size == 0 or G == 0:  # nothing to exchange, or nothing to exchange it for
                flat[at] = VACANT
                continue
            place = below(d, size)
            atom = neighbours[flat[at + place], below(c, G)]
            size = take_out(flat, at, size, place)
            if place_of(flat, at, size, owner, atom) < 0:
                put_in(flat, at, size, atom, ordered, d)
            else:
                flat[at] = VACANT


@kernel("void(uint64, int64, int32[:,:,::1], float64[:,::1], int32[::1], int64, int64, boolean, int32[:,:,::1])")
def flip(key, first, states, logs, owner, least, most, ordered, out):
    """Children of kept states with one atom less, more, or another; the arguments of ``near``.

    Half of them lose one of their atoms; the others get one at random, in exchange for another if there is no room for
    it.
    """
    N, P, g = out.shape
    S = logs.shape[1]
    kept, joints, flat = states.reshape(-1), logs.reshape(-1), out.reshape(-1)
    for n in range(N):
        here = n * S * g
        count = number_of(kept, here, S, g)
        for k in range(P):
            at = (n * P + k) * g
            a, b, c, d = words_of(key, first + n, k, 0)
            size = copy_to(flat, at, kept, here + parent_of(joints, n * S, count, a, b) * g, g)
            if size > least and d & np.uint64(1):
                take_out(flat, at, size, below(d, size))
                continue
            atom = np.int32(below(c, len(owner)))
            clash = place_of(flat, at, size, owner, atom)
            if clash >= 0 and flat[at + clash] == atom:
                flat[at] = VACANT
                continue
            if clash >= 0 or size == most:
                size = take_out(flat, at, size, clash if clash >= 0 else below(d, size))
            put_in(flat, at, size, atom, ordered, d)


@kernel("void(uint64, int64, int32[:,:,::1], float64[:,::1], int32[::1], int64, int64, boolean, int32[:,:,::1])")
def toggle(key, first, states, logs, owner, least, most, ordered, out):
    """Children of the best kept states, each with one atom less or more: all atoms in turn; the arguments of ``near``.

    The first proposals are those of the best state, then those of the second, and so on. Where there is no room for one
    more, it comes in exchange for one at random.
    """
    N, P, g = out.shape
    S, atoms = logs.shape[1], len(owner)
    kept, joints, flat = states.reshape(-1), logs.reshape(-1), out.reshape(-1)
    order = np.empty(S, np.int64)
    for n in range(N):
        here = n * S * g
        count = number_of(kept, here, S, g)
        parents = min(count, -(-P // atoms))
        for i in range(parents):  # the best ones, in falling order
            best = -1
            for s in range(count):
                taken = False
                for j in range(i):
                    taken = taken or order[j] == s
                if not taken and (best < 0 or joints[n * S + s] > joints[n * S + best]):
                    best = s
            order[i] = best
        offset = below(words_of(key, first + n, 0, 0)[0], atoms)
        for k in range(P):
            at = (n * P + k) * g
            if k // atoms >= parents:
                clear(flat, at, g)
                flat[at] = VACANT
                continue
            size = copy_to(flat, at, kept, here + order[k // atoms] * g, g)
            atom = np.int32((offset + k) % atoms)
            clash = place_of(flat, at, size, owner, atom)
            if clash >= 0 and flat[at + clash] == atom:
                if size > least:
                    take_out(flat, at, size, clash)
                else:
                    flat[at] = VACANT
                continue
            _, _, c, d = words_of(key, first + n, k, 1)
            if clash >= 0 or size == most:
                size = take_out(flat, at, size, clash if clash >= 0 else below(c, size))
            put_in(flat, at, size, atom, ordered, d)


@kernel("void(uint64, int64, int32[:,:,::1], float64[:,::1], int32[::1], int64, int64, boolean, int32[:,:,::1])")
def cross(key, first, states, logs, owner, least, most, ordered, out):
    """Children of two kept states: atoms before a cut of the one, after it of the other; the arguments of ``near``."""
    N, P, g = out.shape
    S = logs.shape[1]
    kept, joints, flat = states.reshape(-1), logs.reshape(-1), out.reshape(-1)
    for n in range(N):
        here = n * S * g
        count = number_of(kept, here, S, g)
        for k in range(P):
            at = (n * P + k) * g
            a, b, c, d = words_of(key, first + n, k, 0)
            one = here + parent_of(joints, n * S, count, a, b) * g
            a, b, _, _ = words_of(key, first + n, k, 1)
            other = here + parent_of(joints, n * S, count, a, b) * g
            clear(flat, at, g)
            cut, size = below(c, len(owner)), 0
            before, after = size_of(kept, one, g), size_of(kept, other, g)
            if ordered:
                before, cut = below(c, before + 1), below(d, after + 1)
            for i in range(before):
                atom = kept[one + i]
                if ordered or atom < cut:
                    flat[at + size] = atom
                    size += 1
            for i in range(after):
                atom = kept[other + i]
                late = i >= cut if ordered else atom >= cut
                if late and size < most and place_of(flat, at, size, owner, atom) < 0:
                    flat[at + size] = atom
                    size += 1
            if size < least:
                flat[at] = VACANT


@kernel(
    "void(uint64, int64, int32[:,:,::1], float64[:,::1], float64, int32[::1], int64, int64, boolean, int32[:,:,::1])"
)
def marginals(key, first, states, logs, beta, owner, least, most, ordered, out):
    """States whose atoms are drawn each by itself, by the posterior means under the kept states, mixed with the prior.

    out (n, P, g): states drawn from the prior, become the proposals. The rest as for ``near``.
    """
    N, P, g = out.shape
    S = logs.shape[1]
    kept, joints, flat = states.reshape(-1), logs.reshape(-1), out.reshape(-1)
    mean, touched = np.zeros(len(owner)), np.empty(S * g, np.int32)
    inside, drawn = np.zeros(len(owner), np.bool_), np.empty(g, np.int32)
    for n in range(N):
        here = n * S * g
        taken_places = number_of(kept, here, S, g)
        peak, sum_q, count = joints[n * S], 0.0, 0
        for s in range(taken_places):
            peak = max(peak, joints[n * S + s])
        for s in range(taken_places):
            q = exp(beta * (joints[n * S + s] - peak))
            sum_q += q
            for i in range(size_of(kept, here + s * g, g)):
                atom = kept[here + s * g + i]
                if not inside[atom]:
                    inside[atom] = True
                    touched[count] = atom
                    count += 1
                mean[atom] += q
        for k in range(P):
            at = (n * P + k) * g
            before = copy_to(drawn, 0, flat, at, g)
            clear(flat, at, g)
            size = 0
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
                if taken and size < most and place_of(flat, at, size, owner, atom) < 0:
                    size = put_in(flat, at, size, atom, ordered, b)
            if size < least:
                copy_to(flat, at, drawn, 0, g)
        for i in range(count):
            inside[touched[i]] = False
            mean[touched[i]] = 0.0


@part
def mark_of(states, at, g):
    """A number that tells states apart, but for a chance of 2^-64."""
    mark = GOLDEN
    for i in range(at, at + g):
        mark = (mark ^ np.uint64(states[i] + 3)) * GOLDEN
        mark ^= mark >> np.uint64(29)
    return mark


@kernel("void(int32[:,:,::1], uint64[:,::1])")
def mark(states, marks):
    """The marks (n, S) of kept states (n, S, g)."""
    N, S, g = states.shape
    kept = states.reshape(-1)
    for n in range(N):
        for s in range(S):
            marks[n, s] = mark_of(kept, (n * S + s) * g, g)


@part
def worst_of(logs, at, count):
    """Where the smallest of ``count`` joints from an index on is, of equal ones the first."""
    worst = 0
    for s in range(1, count):
        if logs[at + s] < logs[at + worst]:
            worst = s
    return worst


@kernel("void(int32[:,:,::1], float64[:,::1], uint64[:,::1], int32[:,:,::1], float64[:,::1])")
def enter(states, logs, marks, proposed, values):
    """Let the proposed states that are better than the worst of the kept ones take their places, or vacant ones.

    states (n, S, g), logs and marks (n, S): the kept ones and their joints, changed in place; proposed (n, P, g) and
    values (n, P). A state is never kept twice; of equal joints the older state stays.
    """
    N, S, g = states.shape
    P = proposed.shape[1]
    kept, joints, new = states.reshape(-1), logs.reshape(-1), proposed.reshape(-1)
    for n in range(N):
        here = n * S
        count = number_of(kept, here * g, S, g)
        worst = worst_of(joints, here, count)
        limit = joints[here + worst] if count == S else -np.inf
        for k in range(P):
            at = (n * P + k) * g
            if new[at] == VACANT or not values[n, k] > limit:
                continue
            sign, same = mark_of(new, at, g), 0
            for s in range(count):
                same += marks[n, s] == sign
            if same:
                continue
            place = worst if count == S else count
            copy_to(kept, (here + place) * g, new, at, g)
            joints[here + place], marks[n, place] = values[n, k], sign
            count = min(count + 1, S)
            worst = worst_of(joints, here, count)
            limit = joints[here + worst] if count == S else -np.inf
