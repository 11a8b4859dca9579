"""Stored states of each point, and the search for better states (TV Alg. 1): proposals, and their insertion.

A state is a list of active atoms, padded with -1. If the order does not count it is ascending, so equal states are
equal lists. A list that begins with ``VACANT`` is not a state.
Random numbers depend only on a key, the point and the number of the proposal.
"""

from math import exp

import numpy as np

from parallel_et.kernels import VACANT, device_function, kernel
from parallel_et.kernels.random import GOLDEN, HALF, WORD, mix

PRIOR_FRACTION = 0.1
"""Fraction of the prior in the probabilities from which ``propose_marginals`` draws states."""
MAX_DRAWS = 64
"""Largest number of draws for the atoms of a blind state, as some draws repeat an atom."""


@device_function
def random_words(key, point, number, more):
    """Return four random words of 32 bits for a proposal of a point."""
    z = mix(key + np.uint64(point) * GOLDEN) + np.uint64((number << 32) + 2 * more) * GOLDEN
    one, other = mix(z), mix(z + GOLDEN)
    return one & WORD, one >> HALF, other & WORD, other >> HALF


@device_function
def random_index(word, count):
    """Return an integer below ``count`` from 32 random bits."""
    return np.int64((word * np.uint64(count)) >> HALF)


@device_function
def state_size(states, at, g):
    """Return the number of active atoms of the state whose g places begin at an index."""
    size = 0
    while size < g and states[at + size] >= 0:
        size += 1
    return size


@device_function
def count_states(states, at, S, g):
    """Return how many of the S places from an index on contain a state; the states come first."""
    count = 0
    while count < S and states[at + count * g] != VACANT:
        count += 1
    return count


@device_function
def draw_parent(logs, at, count, one, other):
    """Return the better of two stored states, each drawn by a random word; their joints begin at an index."""
    i, j = random_index(one, count), random_index(other, count)
    return i if logs[at + i] >= logs[at + j] else j


@device_function
def remove_atom(states, at, size, place):
    """Remove the atom at a place of a state; return the new size."""
    for i in range(at + place, at + size - 1):
        states[i] = states[i + 1]
    states[at + size - 1] = -1
    return size - 1


@device_function
def insert_atom(states, at, size, atom, ordered, word):
    """Insert an atom into a state, in ascending order or, if ordered, at a random place; return the new size."""
    place = random_index(word, size + 1) if ordered else size
    while not ordered and place > 0 and states[at + place - 1] > atom:
        place -= 1
    for i in range(at + size, at + place, -1):
        states[i] = states[i - 1]
    states[at + place] = atom
    return size + 1


@device_function
def index_of_owner(states, at, size, owner, atom):
    """Return the place of an atom with the same owner in a state, or -1."""
    place = -1
    for i in range(size):
        if owner[states[at + i]] == owner[atom]:
            place = i
    return place


@device_function
def copy_state(out, at, states, other, g):
    """Copy a state from one index to another; return its number of atoms."""
    size = 0
    for i in range(g):
        atom = states[other + i]
        out[at + i] = atom
        size += atom >= 0
    return size


@device_function
def clear_state(states, at, g):
    """Make a state empty."""
    for i in range(at, at + g):
        states[i] = -1


@kernel("void(int32[:,::1], int32[:,::1], int64[::1], int64, int32[::1], int32[:,:,::1])")
def propose_from_table(candidates, members, start, stride, owner, out):
    """Propose states of a table over each point's candidates: every ``stride``-th from ``start`` on.

    candidates, members, start : (n, H'), (K, g') and (n,)
    owner : (atoms,) owner of each atom; a state has at most one atom of each
    out : (n, P, g)

    Costs |s|^2 operations per proposal.
    """
    N, P, g = out.shape
    K, size = members.shape
    flat = out.reshape(-1)
    for n in range(N):
        index = start[n]
        for k in range(P):
            at = (n * P + k) * g
            clear_state(flat, at, g)
            for i in range(min(size, g)):
                if members[index, i] < 0:
                    break
                atom = candidates[n, members[index, i]]
                if index_of_owner(flat, at, i, owner, atom) >= 0:
                    flat[at] = VACANT
                    break
                flat[at + i] = atom
            index = (index + stride) % K


@kernel("void(uint64, int64, int32[::1], int64, int64, boolean, int32[:,:,::1])")
def propose_blind(key, first, owner, least, most, ordered, out):
    """Propose random states: the size is uniform in [least, most], and the atoms are uniform; out (n, P, g).

    Costs |s| random draws per proposal.
    """
    N, P, g = out.shape
    flat = out.reshape(-1)
    for n in range(N):
        for k in range(P):
            at = (n * P + k) * g
            clear_state(flat, at, g)
            word, other, _, _ = random_words(key, first + n, k, 0)
            wanted, size, tries = least + random_index(word, most - least + 1), 0, 0
            while size < wanted and tries < MAX_DRAWS:
                tries += 1
                word, other, _, _ = random_words(key, first + n, k, tries)
                atom = np.int32(random_index(word, len(owner)))
                if index_of_owner(flat, at, size, owner, atom) < 0:
                    size = insert_atom(flat, at, size, atom, ordered, other)
            if size < least:
                flat[at] = VACANT


@kernel("void(uint64, int64, int32[:,:,::1], float64[:,::1], int32[::1], boolean, int32[:,::1], int32[:,:,::1])")
def propose_near(key, first, states, logs, owner, ordered, neighbours, out):
    """Propose children of stored states in which one atom is replaced by one of its neighbours.

    key, first : key of the random numbers, and number of the first point
    states, logs : (n, S, g) stored states and (n, S) their log joints
    owner, neighbours : (atoms,) and (atoms, G)
    ordered : whether the order of atoms counts
    out : (n, P, g)

    Costs g operations and one random block per proposal.
    """
    N, P, g = out.shape
    S, G = logs.shape[1], neighbours.shape[1]
    kept, joints, flat = states.reshape(-1), logs.reshape(-1), out.reshape(-1)
    for n in range(N):
        here = n * S * g
        count = count_states(kept, here, S, g)
        for k in range(P):
            at = (n * P + k) * g
            a, b, c, d = random_words(key, first + n, k, 0)
            size = copy_state(flat, at, kept, here + draw_parent(joints, n * S, count, a, b) * g, g)
            if size == 0 or G == 0:
                flat[at] = VACANT
                continue
            place = random_index(d, size)
            atom = neighbours[flat[at + place], random_index(c, G)]
            size = remove_atom(flat, at, size, place)
            if index_of_owner(flat, at, size, owner, atom) < 0:
                insert_atom(flat, at, size, atom, ordered, d)
            else:
                flat[at] = VACANT


@kernel("void(uint64, int64, int32[:,:,::1], float64[:,::1], int32[::1], int64, int64, boolean, int32[:,:,::1])")
def propose_flip(key, first, states, logs, owner, least, most, ordered, out):
    """Propose children of stored states with one atom removed, added or replaced; arguments as for ``propose_near``.

    Half of the children lose an atom. The others gain a random atom, which replaces one if the state is full.
    Costs g operations and one random block per proposal.
    """
    N, P, g = out.shape
    S = logs.shape[1]
    kept, joints, flat = states.reshape(-1), logs.reshape(-1), out.reshape(-1)
    for n in range(N):
        here = n * S * g
        count = count_states(kept, here, S, g)
        for k in range(P):
            at = (n * P + k) * g
            a, b, c, d = random_words(key, first + n, k, 0)
            size = copy_state(flat, at, kept, here + draw_parent(joints, n * S, count, a, b) * g, g)
            if size > least and d & np.uint64(1):
                remove_atom(flat, at, size, random_index(d, size))
                continue
            atom = np.int32(random_index(c, len(owner)))
            clash = index_of_owner(flat, at, size, owner, atom)
            if clash >= 0 and flat[at + clash] == atom:
                flat[at] = VACANT
                continue
            if clash >= 0 or size == most:
                size = remove_atom(flat, at, size, clash if clash >= 0 else random_index(d, size))
            insert_atom(flat, at, size, atom, ordered, d)


@kernel("void(uint64, int64, int32[:,:,::1], float64[:,::1], int32[::1], int64, int64, boolean, int32[:,:,::1])")
def propose_toggle(key, first, states, logs, owner, least, most, ordered, out):
    """Propose children of the best stored states, with each atom in turn removed or added; as for ``propose_near``.

    The first proposals are of the best state, the next of the second best, and so on.
    If a state is full, the added atom replaces a random atom.
    Costs g operations per proposal, and S to find each parent.
    """
    N, P, g = out.shape
    S, atoms = logs.shape[1], len(owner)
    kept, joints, flat = states.reshape(-1), logs.reshape(-1), out.reshape(-1)
    order = np.empty(S, np.int64)
    for n in range(N):
        here = n * S * g
        count = count_states(kept, here, S, g)
        parents = min(count, -(-P // atoms))
        for i in range(parents):  # the best states, in descending order
            best = -1
            for s in range(count):
                taken = False
                for j in range(i):
                    taken = taken or order[j] == s
                if not taken and (best < 0 or joints[n * S + s] > joints[n * S + best]):
                    best = s
            order[i] = best
        offset = random_index(random_words(key, first + n, 0, 0)[0], atoms)
        for k in range(P):
            at = (n * P + k) * g
            if k // atoms >= parents:
                clear_state(flat, at, g)
                flat[at] = VACANT
                continue
            size = copy_state(flat, at, kept, here + order[k // atoms] * g, g)
            atom = np.int32((offset + k) % atoms)
            clash = index_of_owner(flat, at, size, owner, atom)
            if clash >= 0 and flat[at + clash] == atom:
                if size > least:
                    remove_atom(flat, at, size, clash)
                else:
                    flat[at] = VACANT
                continue
            _, _, c, d = random_words(key, first + n, k, 1)
            if clash >= 0 or size == most:
                size = remove_atom(flat, at, size, clash if clash >= 0 else random_index(c, size))
            insert_atom(flat, at, size, atom, ordered, d)


@kernel("void(uint64, int64, int32[:,:,::1], float64[:,::1], int32[::1], int64, int64, boolean, int32[:,:,::1])")
def propose_cross(key, first, states, logs, owner, least, most, ordered, out):
    """Propose children of two stored states: atoms before a cut of one, after it of the other; as for ``propose_near``.

    Costs g^2 operations and two random blocks per proposal.
    """
    N, P, g = out.shape
    S = logs.shape[1]
    kept, joints, flat = states.reshape(-1), logs.reshape(-1), out.reshape(-1)
    for n in range(N):
        here = n * S * g
        count = count_states(kept, here, S, g)
        for k in range(P):
            at = (n * P + k) * g
            a, b, c, d = random_words(key, first + n, k, 0)
            one = here + draw_parent(joints, n * S, count, a, b) * g
            a, b, _, _ = random_words(key, first + n, k, 1)
            other = here + draw_parent(joints, n * S, count, a, b) * g
            clear_state(flat, at, g)
            cut, size = random_index(c, len(owner)), 0
            before, after = state_size(kept, one, g), state_size(kept, other, g)
            if ordered:
                before, cut = random_index(c, before + 1), random_index(d, after + 1)
            for i in range(before):
                atom = kept[one + i]
                if ordered or atom < cut:
                    flat[at + size] = atom
                    size += 1
            for i in range(after):
                atom = kept[other + i]
                late = i >= cut if ordered else atom >= cut
                if late and size < most and index_of_owner(flat, at, size, owner, atom) < 0:
                    flat[at + size] = atom
                    size += 1
            if size < least:
                flat[at] = VACANT


@kernel(
    "void(uint64, int64, int32[:,:,::1], float64[:,::1], float64, int32[::1], int64, int64, boolean, int32[:,:,::1])"
)
def propose_marginals(key, first, states, logs, beta, owner, least, most, ordered, out):
    """Propose states with independent atoms, drawn by posterior means under the stored states, mixed with the prior.

    out : (n, P, g) states from the prior in, proposals out; other arguments as for ``propose_near``

    Costs an exp per stored state, and a random block per atom of the stored states and per proposal.
    """
    N, P, g = out.shape
    S = logs.shape[1]
    kept, joints, flat = states.reshape(-1), logs.reshape(-1), out.reshape(-1)
    mean, touched = np.zeros(len(owner)), np.empty(S * g, np.int32)
    inside, drawn = np.zeros(len(owner), np.bool_), np.empty(g, np.int32)
    for n in range(N):
        here = n * S * g
        taken_places = count_states(kept, here, S, g)
        peak, sum_q, count = joints[n * S], 0.0, 0
        for s in range(taken_places):
            peak = max(peak, joints[n * S + s])
        for s in range(taken_places):
            q = exp(beta * (joints[n * S + s] - peak))
            sum_q += q
            for i in range(state_size(kept, here + s * g, g)):
                atom = kept[here + s * g + i]
                if not inside[atom]:
                    inside[atom] = True
                    touched[count] = atom
                    count += 1
                mean[atom] += q
        for k in range(P):
            at = (n * P + k) * g
            before = copy_state(drawn, 0, flat, at, g)
            clear_state(flat, at, g)
            size = 0
            for i in range(count + before):
                a, b, _, _ = random_words(key, first + n, k, i)
                u, atom = a * 2.0**-32, touched[i] if i < count else drawn[i - count]
                if i < count:
                    taken = u < (1 - PRIOR_FRACTION) * mean[atom] / sum_q
                    if u >= 1 - PRIOR_FRACTION:
                        for j in range(before):
                            taken = taken or drawn[j] == atom
                else:
                    taken = u < PRIOR_FRACTION and not inside[atom]
                if taken and size < most and index_of_owner(flat, at, size, owner, atom) < 0:
                    size = insert_atom(flat, at, size, atom, ordered, b)
            if size < least:
                copy_state(flat, at, drawn, 0, g)
        for i in range(count):
            inside[touched[i]] = False
            mean[touched[i]] = 0.0


@device_function
def hash_of(states, at, g):
    """Return a 64-bit hash of a state; two states collide with probability 2^-64."""
    mark = GOLDEN
    for i in range(at, at + g):
        mark = (mark ^ np.uint64(states[i] + 3)) * GOLDEN
        mark ^= mark >> np.uint64(29)
    return mark


@kernel("void(int32[:,:,::1], uint64[:,::1])")
def hash_states(states, marks):
    """Compute the hashes marks (n, S) of stored states (n, S, g). Costs a few operations per atom."""
    N, S, g = states.shape
    kept = states.reshape(-1)
    for n in range(N):
        for s in range(S):
            marks[n, s] = hash_of(kept, (n * S + s) * g, g)


@device_function
def worst_index(logs, at, count):
    """Return the index of the smallest of ``count`` joints from an index on, the first in case of ties."""
    worst = 0
    for s in range(1, count):
        if logs[at + s] < logs[at + worst]:
            worst = s
    return worst


@kernel("void(int32[:,:,::1], float64[:,::1], uint64[:,::1], int32[:,:,::1], float64[:,::1])")
def insert_better(states, logs, marks, proposed, values):
    """Replace the worst stored states, or vacant places, by better proposals (TV Alg. 1).

    states, logs, marks : (n, S, g) stored states, (n, S) log joints and hashes, changed in place
    proposed, values : (n, P, g) proposals and (n, P) their log joints

    A state is never stored twice, and in case of equal joints the older state stays.
    Costs a comparison per proposal, and S + g operations for each that is better.
    """
    N, S, g = states.shape
    P = proposed.shape[1]
    kept, joints, new = states.reshape(-1), logs.reshape(-1), proposed.reshape(-1)
    for n in range(N):
        here = n * S
        count = count_states(kept, here * g, S, g)
        worst = worst_index(joints, here, count)
        limit = joints[here + worst] if count == S else -np.inf
        for k in range(P):
            at = (n * P + k) * g
            if new[at] == VACANT or not values[n, k] > limit:
                continue
            sign, same = hash_of(new, at, g), 0
            for s in range(count):
                same += marks[n, s] == sign
            if same:
                continue
            place = worst if count == S else count
            copy_state(kept, (here + place) * g, new, at, g)
            joints[here + place], marks[n, place] = values[n, k], sign
            count = min(count + 1, S)
            worst = worst_index(joints, here, count)
            limit = joints[here + worst] if count == S else -np.inf
