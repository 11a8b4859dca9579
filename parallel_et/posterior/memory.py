"""The posteriors of one iteration: computed when asked for, remembered as far as memory allows, else computed again."""

from collections.abc import Callable
from threading import Lock

import numpy as np

from parallel_et.posterior.states import Posterior

ROOM = 1 << 23
"""Bytes that a rank may always spend on posteriors, besides a fifth of its data."""


class Posteriors:
    """The posterior of each block of a shard.

    Parameters
    ----------
    points : number of points of the shard
    data : bytes that its data take
    again : whether the posteriors are needed more than once
    """

    def __init__(self, points: int, data: int, again: bool) -> None:
        self._room = data // 5 + ROOM if again else 0
        self._kept: dict[int, Posterior] = {}
        self._lock = Lock()
        self.evidence = np.full(points, np.nan)

    def of(self, block: slice, infer: Callable[[], Posterior]) -> Posterior:
        """The posterior of a block, by ``infer`` if it is not remembered."""
        if block.start in self._kept:
            return self._kept[block.start]
        posterior = infer()
        self.evidence[block] = posterior.evidence
        with self._lock:
            if posterior.nbytes <= self._room:
                self._room -= posterior.nbytes
                self._kept[block.start] = posterior
        return posterior
