"""Counter-based random numbers: they depend on the seed, the purpose and the index, never on the rank."""

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from parallel_et.kernels import random


def stream(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """Return the generator for a purpose ("noise.W", "data", …) and an index (an iteration, a group of points)."""
    return np.random.Generator(np.random.Philox(key=[seed, _word(purpose)], counter=[0, 0, index, 0]))


class Random(NamedTuple):
    """The random numbers of one iteration."""

    seed: int
    iteration: int

    def uniforms(self, purpose: str, first: int, shape: tuple[int, int]) -> np.ndarray:
        """Return numbers in [0, 1) of this shape, (points, numbers per point), for the points from ``first`` on."""
        numbers = np.empty(shape)
        random.uniforms(self.key(purpose), first, numbers)
        return numbers

    def generator(self, purpose: str, first: int) -> np.random.Generator:
        """Return a generator for the block of points from ``first`` on."""
        return np.random.Generator(np.random.Philox(key=[int(self.key(purpose)), first]))

    def key(self, purpose: str) -> np.uint64:
        """Return the key of a purpose, for kernels that draw random numbers by key, point and index."""
        return np.uint64(_word(f"{self.seed} {self.iteration} {purpose}"))


@lru_cache
def _word(purpose: str) -> int:
    return int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
