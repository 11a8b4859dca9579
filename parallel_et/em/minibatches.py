"""Minibatches: the blocks of points of each M-step."""

import numpy as np

from parallel_et.core.random import stream


class Batches:
    """Minibatches of whole blocks. Every pass visits each block once, in an order that follows from the seed.

    The blocks are divided into contiguous strata, and a batch contains one block of each stratum. A batch is therefore
    spread over the data and over all ranks.

    Parameters
    ----------
    points : number of points on all ranks
    block : number of points per block
    batch : largest number of points in a batch
    seed : seed of the run

    Attributes
    ----------
    count : number of batches in a pass; 1 without minibatches
    """

    def __init__(self, points: int, block: int, batch: int, seed: int) -> None:
        self.points, self.block, self.seed = points, block, seed
        blocks = -(-points // block)
        self.count = 1 if batch >= points else -(-blocks // max(1, batch // block))
        strata = -(-blocks // self.count)
        self._edges = blocks * np.arange(strata + 1) // strata
        self._pass, self._order = 0, self._draw_order(0)
        self._iteration, self._blocks = -1, np.empty(0, int)

    def block_numbers(self, iteration: int) -> np.ndarray:
        """Return the indices of the blocks of an iteration, in rising order."""
        if iteration != self._iteration:
            number, place = divmod(iteration, self.count)
            if number != self._pass and self.count > 1:
                self._pass, self._order = number, self._draw_order(number)
            chosen = self._edges[:-1] + self._order[:, place]
            self._iteration, self._blocks = iteration, chosen[chosen < self._edges[1:]]
        return self._blocks

    def _draw_order(self, number: int) -> np.ndarray:
        """Draw the block of each stratum (rows) for each batch (columns) of a pass.

        A stratum may have one block less than there are batches. Each of these strata omits a different batch.
        """
        last, sizes, rng = self.count - 1, np.diff(self._edges), stream(self.seed, "batches", number)
        order = rng.permuted(np.tile(np.arange(self.count), (len(sizes), 1)), axis=1)
        short = np.flatnonzero(sizes == last)
        omitted = rng.permutation(self.count)[: len(short)]
        order[short, np.argmax(order[short] == last, axis=1)] = order[short, omitted]
        order[short, omitted] = last
        return order

    def size(self, iteration: int) -> int:
        """Return the number of points of an iteration."""
        if self.count == 1:
            return self.points
        blocks = self.block_numbers(iteration)
        return int(np.minimum(self.points - blocks * self.block, self.block).sum())


class StreamedBatch(Batches):
    """One batch of a stream of points. Its sums are averaged with the sums of earlier batches.

    Parameters
    ----------
    size : number of points in the batch
    block : number of points per block
    points : number of points to which sums are scaled, so that sums of batches of different sizes can be averaged
    """

    def __init__(self, size: int, block: int, points: int) -> None:
        self.points, self.block, self._size = points, block, size
        self.count = 2  # any number above 1: sums are averaged

    def block_numbers(self, iteration: int) -> np.ndarray:
        return np.arange(-(-self._size // self.block))

    def size(self, iteration: int) -> int:
        return self._size
