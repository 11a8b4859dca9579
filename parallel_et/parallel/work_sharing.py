"""Sharing the pieces of a large computation between ranks: the protocol, and its serial implementation."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from parallel_et.kernels.rows import aligned


class WorkSharing(Protocol):
    """The protocol of work sharing. All ranks call each method together, with the same arguments.

    ``Serial`` is the implementation for one rank, and ``NodeSharing`` the implementation for several.

    Attributes
    ----------
    rank, size : index of this rank among the ranks that share its memory, and their number
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def shared_array(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        """Return an uninitialised array in memory that the ranks of a node share.

        The next call with the same name reuses the memory. Between the last read and that call, the ranks must
        synchronise.
        """

    def private_copy(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return the values of a shared array as an array that later calls leave unchanged; copy only if necessary."""

    def map_range(self, count: int, work: Callable[[int, int], None]) -> None:
        """Split ``range(count)`` over the ranks of each node, and call work(first, last), which fills shared arrays.

        Every node does the whole work. It should therefore be cheap.
        """

    def map_pieces(self, sizes: Sequence[int], work: Callable[[int], None], out: Callable[[int], np.ndarray]) -> None:
        """Call work(k) for each piece k on one rank of all, and copy the result to all nodes.

        Parameters
        ----------
        sizes : numbers in the result of each piece; ranks get pieces of about the same total size
        work : computes piece k and writes the result to out(k)
        out : returns the part of a shared array for the result of piece k
        """

    def sum(self, words: np.ndarray, convert: Callable[[np.ndarray, int], None], values: np.ndarray) -> None:
        """Sum integers over all ranks, and convert the sums to floating point numbers.

        Parameters
        ----------
        words : (ranks of the node, 2, m) int64 shared array
        convert : gets sums (2, n) and the index of the first, and writes n elements of ``values``
        values : (m,) shared array for the result
        """


class Serial:
    """Work sharing of a single rank, which does all the work."""

    rank, size = 0, 1

    def shared_array(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        return aligned(shape, dtype)

    def private_copy(self, name: str, values: np.ndarray) -> np.ndarray:
        return values

    def map_range(self, count: int, work: Callable[[int, int], None]) -> None:
        work(0, count)

    def map_pieces(self, sizes: Sequence[int], work: Callable[[int], None], out: Callable[[int], np.ndarray]) -> None:
        for k in range(len(sizes)):
            work(k)

    def sum(self, words: np.ndarray, convert: Callable[[np.ndarray, int], None], values: np.ndarray) -> None:
        convert(words[0], 0)


serial = Serial()
