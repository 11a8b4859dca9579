"""The states that are considered, and what is known of them: the table over a point's candidates, and its weights."""

from dataclasses import dataclass
from math import comb

import numpy as np


def count_states(candidates: int, gamma: int) -> int:
    """Number of states with at most ``gamma`` of ``candidates`` causes active."""
    return sum(comb(candidates, g) for g in range(gamma + 1))


@dataclass(frozen=True)
class States:
    """All states with at most gamma of C candidates active, in depth-first order: a parent stands before its children.

    Attributes
    ----------
    size : (K,) int32
        Number of active candidates, |s|; the depth in the tree.
    last : (K,) int32
        The candidate that a state adds to its parent, -1 for the empty state, which comes first.
    members : (K, gamma) int32
        The active candidates in increasing order, padded with -1.
    """

    size: np.ndarray
    last: np.ndarray
    members: np.ndarray

    @classmethod
    def up_to(cls, candidates: int, gamma: int) -> "States":
        """The table for ``candidates`` causes of which at most ``gamma`` are active."""
        members = np.full((count_states(candidates, gamma), gamma), -1, np.int32)
        path: list[int] = []
        for k in range(1, len(members)):
            if len(path) == gamma or (path and path[-1] == candidates - 1):
                while path[-1] == candidates - 1:
                    path.pop()
                path[-1] += 1
            else:
                path.append(path[-1] + 1 if path else 0)
            members[k, : len(path)] = path
        size = (members >= 0).sum(1, dtype=np.int32)
        last = np.array([row[g - 1] if g else -1 for row, g in zip(members, size, strict=True)], np.int32)
        return cls(size, last, members)

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True)
class Posterior:
    """The truncated posterior of a block of n points.

    Attributes
    ----------
    evidence : (n,) F_n
    candidates : (n, H') int32, the preselected causes
    weights : (K, n) q_n of each state of the table over the candidates
    singletons : (n, H) q_n of the states with one cause outside the candidates, or (n, 0) without those
    """

    evidence: np.ndarray
    candidates: np.ndarray
    weights: np.ndarray
    singletons: np.ndarray

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return sum(getattr(self, name).nbytes for name in self.__dataclass_fields__)
