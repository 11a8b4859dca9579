"""Which points an M-step has: all, or the next batch of them."""

import numpy as np

from parallel_et.core.random import stream


class Batches:
    """The points in batches: every pass has each of them once, in an order drawn from the seed.

    A batch is of whole blocks, as these are what gives the same bits on any number of ranks. The blocks are cut into
    as many contiguous parts as a batch has blocks, and a batch has one of each part: so it is spread over the data,
    and over all ranks, of which each has a contiguous run of blocks.

    Parameters
    ----------
    points : of all ranks
    block : points a block
    batch : points a batch at most
    seed : of the run

    Attributes
    ----------
    count : batches a pass; with 1 a batch is all points
    """

    def __init__(self, points: int, block: int, batch: int, seed: int) -> None:
        self.points, self.block, self.seed = points, block, seed
        blocks = -(-points // block)
        self.count = 1 if batch >= points else -(-blocks // max(1, batch // block))
        parts = -(-blocks // self.count)
        self._edges = blocks * np.arange(parts + 1) // parts
        self._pass, self._order = 0, self._drawn(0)
        self._iteration, self._blocks = -1, np.empty(0, int)

    def at(self, iteration: int) -> np.ndarray:
        """The numbers of the blocks of an iteration, in rising order."""
        if iteration != self._iteration:
            number, place = divmod(iteration, self.count)
            if number != self._pass and self.count > 1:
                self._pass, self._order = number, self._drawn(number)
            chosen = self._edges[:-1] + self._order[:, place]
            self._iteration, self._blocks = iteration, chosen[chosen < self._edges[1:]]
        return self._blocks

    def _drawn(self, number: int) -> np.ndarray:
        """For each part (rows) and batch (columns) of a pass which block of the part it has.

        A part may have a block less than there are batches: each such part leaves out another batch.
        """
        last, sizes, rng = self.count - 1, np.diff(self._edges), stream(self.seed, "batches", number)
        order = rng.permuted(np.tile(np.arange(self.count), (len(sizes), 1)), axis=1)
        short = np.flatnonzero(sizes == last)
        without = rng.permutation(self.count)[: len(short)]
        order[short, np.argmax(order[short] == last, axis=1)] = order[short, without]
        order[short, without] = last
        return order

    def size(self, iteration: int) -> int:
        """The number of points of an iteration."""
        if self.count == 1:
            return self.points
        blocks = self.at(iteration)
        return int(np.minimum(self.points - blocks * self.block, self.block).sum())


class Arriving(Batches):
    """A batch of points that others come before and after, however many; its sums are averaged with those of others.

    Parameters
    ----------
    size : points of the batch
    block : points a block
    points : for how many its sums are to stand, so that those of batches of several sizes can be averaged
    """

    def __init__(self, size: int, block: int, points: int) -> None:
        self.points, self.block, self._size = points, block, size
        self.count = 2  # or more

    def at(self, iteration: int) -> np.ndarray:
        return np.arange(-(-self._size // self.block))

    def size(self, iteration: int) -> int:
        return self._size
