"""Hidden states: what a model's are like, the table of those that are considered, and how they are written down.

A state is a list of active atoms, padded with -1: an array (..., g). A table with a row for each atom and one more for
none can be indexed by it as it is.
"""

from dataclasses import dataclass
from itertools import combinations, permutations
from math import comb, perm
from typing import NamedTuple

import numpy as np

from parallel_et.core.windows import Windows
from parallel_et.kernels import select

MANY = 1 << 40
"""More states than anybody can consider."""
ROOM = 64
"""Points whose distances to all others are computed at a time."""


class Latents(NamedTuple):
    """The hidden states of a model: sets of atoms. An atom is a cause, a category, a cause with a value or at a place.

    Attributes
    ----------
    atoms : how many there are
    least, most : active atoms of a state; None: as many as there are
    ordered : whether their order counts
    owner : (atoms,) to whom each belongs, of whose atoms at most one is active; () where each is its own
    windows : what of a point is to be seen at each place, if atom h + x H is cause h at place x
    """

    atoms: int
    least: int = 0
    most: int | None = None
    ordered: bool = False
    owner: tuple[int, ...] = ()
    windows: Windows | None = None

    @property
    def words(self) -> str:
        """The number of atoms, for people."""
        return f"{self.atoms}, model.causes times places" if self.windows else f"model.causes = {self.atoms}"

    @property
    def owners(self) -> np.ndarray:
        """The owner of each atom, which is the cause that it is of; (atoms,)."""
        return np.array(self.owner or range(self.atoms))

    @property
    def free(self) -> bool:
        """Whether every set of atoms is a state, which is one whatever their order."""
        return not (self.least or self.most is not None or self.ordered or self.owner)

    def states(self, candidates: int, most: int) -> int:
        """Number of states with at most ``most`` of ``candidates`` atoms, whoever owns them; counted up to ``MANY``."""
        ways, total = perm if self.ordered else comb, 0
        for g in range(self.least, self.most_of(most) + 1):
            total += ways(candidates, g)
            if total > MANY:
                break
        return total

    def most_of(self, most: int) -> int:
        """Active atoms that a state can have where at most ``most`` are considered."""
        owners = len(set(self.owner)) or self.atoms
        return min(most, owners if self.most is None else self.most)


@dataclass(frozen=True)
class Table:
    """States over C candidates; where every set is one, as a tree: a child adds one candidate to its parent.

    The added candidate comes after all that the parent has. The children of a state stand side by side in the table.

    Attributes
    ----------
    members : (K, g) int32
        The active candidates, padded with -1; in increasing order, where that does not count.
    size : (K,) int32
        Number of active candidates, |s|; the depth in the tree.
    inner : (M, 4) int32
        The states with children, each before those below it: its index, its size, the candidate it adds to its
        parent (-1 for the empty state), and what added to a candidate gives the index of that child.
    """

    members: np.ndarray
    size: np.ndarray
    inner: np.ndarray

    @classmethod
    def of(cls, latents: Latents, candidates: int, most: int) -> "Table":
        """The states of a model with at most ``most`` of so many candidates.

        Where all atoms are candidates, those with two atoms of one owner are left out; else they are in the table.
        """
        if latents.free:
            return cls.up_to(candidates, most)
        ways = permutations if latents.ordered else combinations
        sizes = range(latents.least, latents.most_of(most) + 1)
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
        """All sets of at most ``gamma`` of ``candidates`` causes."""
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
        """All of them over the candidates (n, H') of each point, (n, K, g)."""
        return np.where(self.members >= 0, candidates[:, self.members], np.int32(-1))

    def chosen(self, candidates: np.ndarray, index: np.ndarray) -> np.ndarray:
        """One state for each row of candidates (m, H'), by its index (m,) in the table; (m, g)."""
        members = self.members[index]
        return np.where(members >= 0, np.take_along_axis(candidates, np.maximum(members, 0), 1), np.int32(-1))


def clashes(states: np.ndarray, owner: tuple[int, ...]) -> np.ndarray:
    """Which states (..., g) have two atoms of one owner, (...) bool."""
    whose = np.where(states >= 0, np.array(owner)[states], -1 - np.arange(states.shape[-1]))
    whose.sort(-1)
    return (np.diff(whose, axis=-1) == 0).any(-1)


def binary(states: np.ndarray, atoms: int) -> np.ndarray:
    """States (..., g) as zeros and ones for all atoms, (..., atoms) uint8."""
    table = np.zeros((*states.shape[:-1], atoms + 1), np.uint8)
    np.put_along_axis(table, states, 1, -1)  # what is padded goes to the last column
    return table[..., :atoms]


def places(states: np.ndarray, atoms: int) -> np.ndarray:
    """States (..., g) as the place of each atom in its state, from 1 on, zero for others; (..., atoms) uint16."""
    number = np.broadcast_to(np.arange(1, states.shape[-1] + 1), states.shape)
    return valued(states, number, atoms).astype(np.uint16)


def on_grid(states: np.ndarray, causes: int, grid: tuple[int, int]) -> np.ndarray:
    """Row and column of each of the causes of states (n, g), -1 for those that are not active; (n, causes, 2) int32.

    Atom h + x H is cause h at place x, counted row by row.
    """
    found = np.full((len(states), causes, 2), -1, np.int32)
    state, number = np.nonzero(states >= 0)
    place, cause = np.divmod(states[state, number], causes)
    found[state, cause] = np.column_stack(np.divmod(place, grid[1]))
    return found


def valued(states: np.ndarray, values: np.ndarray, atoms: int) -> np.ndarray:
    """States (..., g) as the values (..., g) of their atoms, zero for all others, (..., atoms)."""
    table = np.zeros((*states.shape[:-1], atoms + 1))
    np.put_along_axis(table, states, values, -1)
    return table[..., :atoms]


def listed(table: np.ndarray) -> np.ndarray:
    """Zeros and ones for all atoms, (n, atoms), as states (n, g); the atoms in rising order."""
    state, atom = np.nonzero(table)
    return in_lists(state, atom, len(table))


def in_order(table: np.ndarray) -> np.ndarray:
    """The place of each atom in its state, from 1 on, zero for none, (n, atoms), as states (n, g)."""
    state, atom = np.nonzero(table)
    order = np.lexsort([table[state, atom], state])
    return in_lists(state, atom[order], len(table))


def in_lists(state: np.ndarray, atom: np.ndarray, count: int) -> np.ndarray:
    """Pairs of the number of a state, in rising order, and an atom that is active in it, (m,), as states (count, g)."""
    sizes = np.bincount(state, minlength=count)
    states = np.full((count, max(1, int(sizes.max(initial=0)))), -1, np.int32)
    states[state, np.arange(len(state)) - np.repeat(np.cumsum(sizes) - sizes, sizes)] = atom
    return states


def in_front(table: np.ndarray, active: np.ndarray, nothing: float) -> np.ndarray:
    """The active entries of a table (..., C) in lists, padded with ``nothing``: (..., g)."""
    width = max(1, int(active.sum(-1).max(initial=0)))
    order = np.argsort(~active, axis=-1, kind="stable")[..., :width]
    taken = np.take_along_axis(np.broadcast_to(table, active.shape), order, -1)
    return np.where(np.take_along_axis(active, order, -1), taken, table.dtype.type(nothing))


def best(scores: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` atoms with the largest scores (n, atoms), in rising order; of equal scores those of lower index."""
    candidates = np.empty((len(scores), count), np.int32)
    select.largest(np.ascontiguousarray(scores), candidates)
    return candidates


def best_places(scores: np.ndarray, count: int) -> np.ndarray:
    """By scores (n, H, places) the best place of each cause, and of these the best; beyond H also other places.

    As atoms h + x H, in rising order, (n, count) int32.
    """
    n, H, _ = scores.shape
    place = scores.argmax(2)
    top = np.take_along_axis(scores, place[..., None], 2)[..., 0]
    if count <= H:
        cause = best(top, count)
        candidates = (cause + H * np.take_along_axis(place, cause, 1)).astype(np.int32)
        candidates.sort(axis=1)
        return candidates
    scores = scores.copy()
    np.put_along_axis(scores, place[..., None], np.inf, 2)
    return best(scores.transpose(0, 2, 1).reshape(n, -1), count)


def nearest(points: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` others that are nearest to each of the points (m, D), (m, count) int32; fewer if there are few."""
    count, points = min(count, len(points) - 1), np.ascontiguousarray(points)
    near, scores = np.empty((len(points), count), np.int32), np.empty((ROOM, len(points)))
    half = 0.5 * np.einsum("md,md->m", points, points)
    for first in range(0, len(points) if count else 0, ROOM):
        own = np.arange(min(ROOM, len(points) - first))
        some = np.matmul(points[first : first + ROOM], points.T, out=scores[: len(own)])
        some -= half
        some[own, first + own] = -np.inf
        near[first : first + ROOM] = best(some, count)
    return near
