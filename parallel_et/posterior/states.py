"""The states that are considered, and what is known of them: the table over a point's candidates, and its weights."""

from dataclasses import dataclass
from math import comb
from typing import NamedTuple

import numpy as np

from parallel_et.kernels import truncated


def count_states(candidates: int, gamma: int) -> int:
    """Number of states with at most ``gamma`` of ``candidates`` causes active."""
    return sum(comb(candidates, g) for g in range(gamma + 1))


@dataclass(frozen=True)
class States:
    """All states with at most gamma of C candidates active, as a tree: a child adds one candidate to its parent.

    The added candidate comes after all that the parent has. The children of a state stand side by side in the table.

    Attributes
    ----------
    members : (K, gamma) int32
        The active candidates in increasing order, padded with -1; the empty state comes first.
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
    def up_to(cls, candidates: int, gamma: int) -> "States":
        """The table for ``candidates`` causes of which at most ``gamma`` are active."""
        members = np.full((count_states(candidates, gamma), gamma), -1, np.int32)
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

    def causes(self, candidates: np.ndarray, chosen: np.ndarray, alone: np.ndarray) -> np.ndarray:
        """The causes of one state a point, padded with -1; (n, gamma) int32.

        ``chosen`` (n,) of the table over the candidates (n, H'), or where it is not -1 the single cause ``alone`` (n,).
        """
        members = self.members[chosen]
        causes = np.where(members >= 0, np.take_along_axis(candidates, np.maximum(members, 0), 1), np.int32(-1))
        causes[alone >= 0] = -1
        causes[:, 0] = np.where(alone >= 0, alone, causes[:, 0])
        return causes


class Sparse(NamedTuple):
    """Rows of which few entries are not negligible: where each row starts (n + 1,), columns and values of all."""

    start: np.ndarray
    column: np.ndarray
    value: np.ndarray

    def dense(self, width: int) -> np.ndarray:
        """The rows with zeros where nothing is kept, (n, width)."""
        rows = len(self.start) - 1
        table = np.zeros((rows, width))
        table[np.repeat(np.arange(rows), np.diff(self.start)), self.column] = self.value
        return table

    def heaviest(self) -> tuple[np.ndarray, np.ndarray]:
        """Column and value of the largest entry of each row, of equal ones the first; -1 and 0 for empty rows; (n,)."""
        best, weight = np.empty(len(self.start) - 1, np.int32), np.empty(len(self.start) - 1)
        truncated.heaviest(*self, best, weight)
        return best, weight


@dataclass(frozen=True)
class Posterior:
    """What is kept of the truncated posterior of a block of n points.

    Attributes
    ----------
    evidence : (n,) F_n
    candidates : (n, H') int32, the preselected causes in rising order
    moments : (H' (H' + 1) / 2, n) <s_i s_j> of the candidates i <= j at row j (j + 1) / 2 + i, where needed
    norms : (n,) |y_n|^2, where a model needs them
    weights : q_n of the states of the table over the candidates, where a model needs them
    singletons : q_n of the states with one cause outside the candidates
    """

    evidence: np.ndarray
    candidates: np.ndarray
    singletons: Sparse
    moments: np.ndarray | None = None
    norms: np.ndarray | None = None
    weights: Sparse | None = None

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        arrays = [self.evidence, self.candidates, *self.singletons, *(self.weights or ()), self.moments, self.norms]
        return sum(array.nbytes for array in arrays if array is not None)
