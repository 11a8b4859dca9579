"""The posteriors of one iteration: computed when asked for, remembered as far as memory allows, else computed again."""

from collections.abc import Callable
from time import perf_counter

import numpy as np

from parallel_et.posterior.states import Posterior

ROOM = 1 << 26
"""Bytes that a rank may always spend on posteriors, besides a fifth of its data."""


class Posteriors:
    """The posterior of each block of a shard.

    Parameters
    ----------
    infer : the E-step of a block Y (n, D) float64
    rows : (N, D), the shard, float32 or float64
    blocks : slices of its rows
    again : whether the posteriors are needed more than once
    """

    def __init__(
        self, infer: Callable[[np.ndarray], Posterior], rows: np.ndarray, blocks: list[slice], again: bool
    ) -> None:
        self._infer, self._rows, self._blocks = infer, rows, blocks
        self._room = rows.nbytes // 5 + ROOM if again else 0
        self._kept: dict[int, Posterior] = {}
        self._evidence = np.full(len(rows), np.nan)
        self.seconds = 0.0

    def points(self, block: slice) -> np.ndarray:
        """The data of a block as float64."""
        return np.asarray(self._rows[block], np.float64)

    def __getitem__(self, block: slice) -> Posterior:
        if block.start in self._kept:
            return self._kept[block.start]
        start = perf_counter()
        posterior = self._infer(self.points(block))
        self.seconds += perf_counter() - start
        self._evidence[block] = posterior.evidence
        if posterior.nbytes <= self._room:
            self._room -= posterior.nbytes
            self._kept[block.start] = posterior
        return posterior

    def evidence(self) -> np.ndarray:
        """F_n of all points of the shard, (N,)."""
        for block in self._blocks:
            if np.isnan(self._evidence[block.start]):
                self[block]
        return self._evidence
