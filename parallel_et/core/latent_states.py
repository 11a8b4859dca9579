"""Hidden states: their declaration by a model, tables of considered states, and conversions.

A state is a list of active atoms, padded with -1: an array (..., g). States can index a table with one row per atom
and a last row for padding.
"""

from dataclasses import dataclass
from itertools import combinations, permutations
from math import comb, perm
from typing import NamedTuple

import numpy as np

from parallel_et.core.windows import Windows
from parallel_et.kernels import select

MAX_COUNTED_STATES = 1 << 40
"""Number of states at which counting stops."""
POINTS_AT_ONCE = 64
"""Number of points whose distances to all other points are computed at a time."""


class Latents(NamedTuple):
    """The hidden states of a model: sets of atoms. An atom is a cause, a category, or a cause with a value or position.

    Attributes
    ----------
    atoms : number of atoms
    min_active, max_active : limits of the number of active atoms; None: no upper limit
    ordered : whether the order of the atoms counts
    owner : (atoms,) cause of each atom; at most one atom of a cause is active; () if each atom is a cause
    windows : windows of a point at all positions, if atom h + x H is cause h at position x
    """

    atoms: int
    min_active: int = 0
    max_active: int | None = None
    ordered: bool = False
    owner: tuple[int, ...] = ()
    windows: Windows | None = None

    @property
    def description(self) -> str:
        """The number of atoms, for messages."""
        return f"{self.atoms}, model.causes times places" if self.windows else f"model.causes = {self.atoms}"

    @property
    def owners(self) -> np.ndarray:
        """The cause of each atom, (atoms,)."""
        return np.array(self.owner or range(self.atoms))

    @property
    def free(self) -> bool:
        """True if every set of atoms is a state, and the order of the atoms does not count."""
        return not (self.min_active or self.max_active is not None or self.ordered or self.owner)

    def states(self, candidates: int, max_active: int) -> int:
        """Return the number of states with at most ``max_active`` of ``candidates`` atoms, ignoring owners.

        Counting stops above ``MAX_COUNTED_STATES``.
        """
        ways, total = perm if self.ordered else comb, 0
        for g in range(self.min_active, self.max_active_of(max_active) + 1):
            total += ways(candidates, g)
            if total > MAX_COUNTED_STATES:
                break
        return total

    def max_active_of(self, limit: int) -> int:
        """Return the largest number of active atoms in a state, at most ``limit``."""
        owners = len(set(self.owner)) or self.atoms
        return min(limit, owners if self.max_active is None else self.max_active)


@dataclass(frozen=True)
class Table:
    """A table of states over C candidates.

    If every set of candidates is a state, the states form a tree. A child adds one candidate after the candidates of
    its parent. The children of a state are adjacent in the table.

    Attributes
    ----------
    members : (K, g) int32
        Indices of the active candidates, padded with -1; in rising order unless the order counts.
    size : (K,) int32
        Number of active candidates, |s|, the depth in the tree.
    inner : (M, 4) int32
        States with children, parents first. Columns: index; size; candidate added to the parent, -1 for the empty
        state; difference between the index of a child and the candidate that the child adds.
    """

    members: np.ndarray
    size: np.ndarray
    inner: np.ndarray

    @classmethod
    def of(cls, latents: Latents, candidates: int, max_active: int) -> "Table":
        """Return the states of a model with at most ``max_active`` of this many candidates.

        The table omits states with two atoms of one owner only if all atoms are candidates.
        """
        if latents.free:
            return cls.up_to(candidates, max_active)
        ways = permutations if latents.ordered else combinations
        sizes = range(latents.min_active, latents.max_active_of(max_active) + 1)
        rows = [row for g in sizes for row in ways(range(candidates), g)]
        if latents.owner and candidates == latents.atoms:
            owner = latents.owner
            rows = [row for row in rows if len({owner[i] for i in row}) == len(row)]
        members = np.full((len(rows), max(1, sizes[-1])), -1, np.int32)
        for line, row in zip(members, rows, strict=True):
            line[: len(row)] = row
        return cls(members, (members >= 0).sum(1, dtype=np.int32), np.empty((0, 4), np.int32))

    @classmethod
    def up_to(cls, candidates: int, gamma: int) -> "Table":
        """Return all sets of at most ``gamma`` of ``candidates`` causes, as a tree."""
        members = np.full((Latents(candidates).states(candidates, gamma), gamma), -1, np.int32)
        inner: list[tuple[int, int, int, int]] = []
        waiting, used = [(0, 0, -1)], 1
        while waiting:
            index, size, last = waiting.pop()
            children = [(used + i, size + 1, last + 1 + i) for i in range(candidates - 1 - last)]
            inner.append((index, size, last, used - last - 1))
            used += len(children)
            for child, _, added in children:
                members[child, :size] = members[index, :size]
                members[child, size] = added
            if size + 1 < gamma:
                waiting += [child for child in reversed(children) if child[2] < candidates - 1]
        return cls(members, (members >= 0).sum(1, dtype=np.int32), np.array(inner, np.int32))

    def __len__(self) -> int:
        return len(self.size)

    def states(self, candidates: np.ndarray) -> np.ndarray:
        """Return all states over the candidates (n, H') of each point, (n, K, g)."""
        return np.where(self.members >= 0, candidates[:, self.members], np.int32(-1))

    def states_at(self, candidates: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Return one state for each row of candidates (m, H'), by the index of the state (m,) in the table; (m, g)."""
        members = self.members[index]
        return np.where(members >= 0, np.take_along_axis(candidates, np.maximum(members, 0), 1), np.int32(-1))


def clashes(states: np.ndarray, owner: tuple[int, ...]) -> np.ndarray:
    """Return a mask of the states (..., g) with two atoms of one owner, (...) bool."""
    whose = np.where(states >= 0, np.array(owner)[states], -1 - np.arange(states.shape[-1]))
    whose.sort(-1)
    return (np.diff(whose, axis=-1) == 0).any(-1)


def binary(states: np.ndarray, atoms: int) -> np.ndarray:
    """Convert states (..., g) to zeros and ones for all atoms, (..., atoms) uint8."""
    table = np.zeros((*states.shape[:-1], atoms + 1), np.uint8)
    np.put_along_axis(table, states, 1, -1)  # padding, -1, is written to the last column
    return table[..., :atoms]


def places_by_atom(states: np.ndarray, atoms: int) -> np.ndarray:
    """Return the depth rank of each atom in states (..., g), from 1, 0 for inactive atoms; (..., atoms) uint16."""
    number = np.broadcast_to(np.arange(1, states.shape[-1] + 1), states.shape)
    return values_by_atom(states, number, atoms).astype(np.uint16)


def on_grid(states: np.ndarray, causes: int, grid: tuple[int, int]) -> np.ndarray:
    """Return row and column of each cause in states (n, g), -1 for inactive causes; (n, causes, 2) int32.

    Atom h + x H is cause h at position x, and positions are counted row by row.
    """
    found = np.full((len(states), causes, 2), -1, np.int32)
    state, number = np.nonzero(states >= 0)
    place, cause = np.divmod(states[state, number], causes)
    found[state, cause] = np.column_stack(np.divmod(place, grid[1]))
    return found


def values_by_atom(states: np.ndarray, values: np.ndarray, atoms: int) -> np.ndarray:
    """Return the values (..., g) of the atoms of states (..., g) by atom, 0 for inactive atoms; (..., atoms)."""
    table = np.zeros((*states.shape[:-1], atoms + 1))
    np.put_along_axis(table, states, values, -1)
    return table[..., :atoms]


def states_of_binary(table: np.ndarray) -> np.ndarray:
    """Convert zeros and ones for all atoms, (n, atoms), to states (n, g) with atoms in rising order."""
    state, atom = np.nonzero(table)
    return states_of_pairs(state, atom, len(table))


def states_of_places(table: np.ndarray) -> np.ndarray:
    """Convert the depth rank of each atom in its state, from 1, 0 for inactive atoms, (n, atoms), to states (n, g)."""
    state, atom = np.nonzero(table)
    order = np.lexsort([table[state, atom], state])
    return states_of_pairs(state, atom[order], len(table))


def states_of_pairs(state: np.ndarray, atom: np.ndarray, count: int) -> np.ndarray:
    """Convert pairs of a state index, in rising order, and an active atom, (m,) each, to states (count, g)."""
    sizes = np.bincount(state, minlength=count)
    states = np.full((count, max(1, int(sizes.max(initial=0)))), -1, np.int32)
    states[state, np.arange(len(state)) - np.repeat(np.cumsum(sizes) - sizes, sizes)] = atom
    return states


def pack_active(table: np.ndarray, active: np.ndarray, padding: float) -> np.ndarray:
    """Move the active entries of a table (..., C) to the front, padded with ``padding``: (..., g)."""
    width = max(1, int(active.sum(-1).max(initial=0)))
    order = np.argsort(~active, axis=-1, kind="stable")[..., :width]
    taken = np.take_along_axis(np.broadcast_to(table, active.shape), order, -1)
    return np.where(np.take_along_axis(active, order, -1), taken, table.dtype.type(padding))


def best_atoms(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the ``count`` atoms with the largest scores (n, atoms), in rising order; equal scores: the lower index."""
    candidates = np.empty((len(scores), count), np.int32)
    select.largest(np.ascontiguousarray(scores), candidates)
    return candidates


def best_places(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the best atoms h + x H by scores (n, H, positions), in rising order, (n, count) int32.

    The best position of each cause comes first. More than H atoms include other positions.
    """
    n, H, _ = scores.shape
    place = scores.argmax(2)
    top = np.take_along_axis(scores, place[..., None], 2)[..., 0]
    if count <= H:
        cause = best_atoms(top, count)
        candidates = (cause + H * np.take_along_axis(place, cause, 1)).astype(np.int32)
        candidates.sort(axis=1)
        return candidates
    scores = scores.copy()
    np.put_along_axis(scores, place[..., None], np.inf, 2)
    return best_atoms(scores.transpose(0, 2, 1).reshape(n, -1), count)


def nearest(points: np.ndarray, count: int) -> np.ndarray:
    """Return for each of the points (m, D) the ``count`` nearest other points, (m, min(count, m - 1)) int32."""
    count, points = min(count, len(points) - 1), np.ascontiguousarray(points)
    near, scores = np.empty((len(points), count), np.int32), np.empty((POINTS_AT_ONCE, len(points)))
    half = 0.5 * np.einsum("md,md->m", points, points)
    for first in range(0, len(points) if count else 0, POINTS_AT_ONCE):
        own = np.arange(min(POINTS_AT_ONCE, len(points) - first))
        some = np.matmul(points[first : first + POINTS_AT_ONCE], points.T, out=scores[: len(own)])
        some -= half
        some[own, first + own] = -np.inf
        near[first : first + POINTS_AT_ONCE] = best_atoms(some, count)
    return near
