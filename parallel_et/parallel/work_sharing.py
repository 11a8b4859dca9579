"""How large works are shared out over the ranks, as those see it who have such work."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from parallel_et.kernels.rows import aligned


class Deal(Protocol):
    """Shares out works over the ranks, all of which call it alike; ``Node`` does so for many.

    Attributes
    ----------
    rank, size : of this rank among those that share its memory
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def room(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        """An uninitialised array that the ranks of a node have in common until they next ask for one of that name.

        By then all must have been together.
        """

    def own(self, name: str, values: np.ndarray) -> np.ndarray:
        """What is in the room of that name as an array that stays: a copy, unless nobody else has it."""

    def here(self, count: int, work: Callable[[int, int], None]) -> None:
        """Of so many things that cost little each, do [first, last) on some rank of each node, into rooms."""

    def __call__(self, sizes: Sequence[int], work: Callable[[int], None], out: Callable[[int], np.ndarray]) -> None:
        """Have each piece k of a work done by some rank, which fills out(k), a part of a room of sizes[k] numbers; then
        all have them. Large ones are taken for more work than small ones.
        """

    def sum(self, words: np.ndarray, convert: Callable[[np.ndarray, int], None], values: np.ndarray) -> None:
        """Sum words (ranks of the node, 2, m), a room of integers, over all ranks into ``values`` (m,), another.

        ``convert`` is given sums (2, n), and where they begin, and writes as many values there.
        """


class Alone:
    """All is done here."""

    rank, size = 0, 1

    def room(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        return aligned(shape, dtype)

    def own(self, name: str, values: np.ndarray) -> np.ndarray:
        return values

    def here(self, count: int, work: Callable[[int, int], None]) -> None:
        work(0, count)

    def __call__(self, sizes: Sequence[int], work: Callable[[int], None], out: Callable[[int], np.ndarray]) -> None:
        for k in range(len(sizes)):
            work(k)

    def sum(self, words: np.ndarray, convert: Callable[[np.ndarray, int], None], values: np.ndarray) -> None:
        convert(words[0], 0)


alone = Alone()
