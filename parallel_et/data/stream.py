"""Rows that a rank does not keep: they are read again in every pass, by a thread that reads ahead."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import numpy as np

from parallel_et.core.schema import in_bytes
from parallel_et.data.base import Source
from parallel_et.kernels.rows import Rows, padded_copy
from parallel_et.parallel.shards import Shard

ALIVE = 4
"""Chunks in memory: the one that a pass has come to, those before and after it, and what it takes to read one."""
LARGEST = 1 << 26
"""Bytes of a chunk; with more, reading gets no faster."""


def rows_of(source: Source, shard: Shard, memory: str | float | None, threads: int, ordered: bool = True) -> Rows:
    """The rows of a shard: in memory, or, if they are larger than the ``memory`` given, streamed.

    Where passes do not go from the first block to the last, but in another order, there is no reading ahead.
    """
    row = source.read(shard.first, shard.first)
    if memory is None or len(shard) * row.shape[1] * row.itemsize <= in_bytes(memory):
        return source.read(shard.first, shard.last)
    return Streamed(source, shard, in_bytes(memory), threads) if ordered else Fetched(source, shard)


class Fetched:
    """The rows of a shard (n, D or wider), of which a block at a time is read when it is asked for, and not kept."""

    def __init__(self, source: Source, shard: Shard) -> None:
        self._source, self._shard, self._lock = source, shard, Lock()
        row = source.read(shard.first, shard.first)
        self.shape, self.dtype, self.at_once = (len(shard), row.shape[1]), row.dtype, shard.block

    @property
    def nbytes(self) -> int:
        """Memory of a block."""
        return min(len(self), self._shard.block) * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self._shard)

    def __getitem__(self, block: slice) -> np.ndarray:
        first = self._shard.first
        with self._lock:
            return self._source.read(first + block.start, first + block.stop)


class Streamed:
    """The rows of a shard (n, D or wider), for passes from the first block to the last, again and again.

    They are read in chunks of whole blocks: while a pass is at one, the next is read, and after the last the first.
    The chunk before stays too, as of several threads one may be behind; who asks for any other waits for it. As many of
    the first chunks as there is room for besides stay for good.

    Parameters
    ----------
    source : what to read from; an error of its is raised where the rows are asked for
    shard : which rows
    room : bytes for the chunks; at least a chunk has a block for each of the threads that work on them
    threads : how many these are

    Attributes
    ----------
    at_once : rows that a thread may ask for at a time, such that together they ask for a chunk at most
    """

    def __init__(self, source: Source, shard: Shard, room: int, threads: int = 1) -> None:
        self._source, self._shard = source, shard
        row = source.read(shard.first, shard.first)
        self.shape, self.dtype = (len(shard), row.shape[1]), row.dtype
        block = shard.block * row.shape[1] * row.itemsize
        self._step = shard.block * max(threads, min(room // ALIVE, LARGEST) // block)
        self.at_once = self._step // threads
        self._count = -(-len(shard) // self._step)
        self._lasting = max(0, room // (self._step * row.shape[1] * row.itemsize) - ALIVE)
        self._chunks: dict[int, Future[np.ndarray]] = {}
        self._ahead = 0
        self._lock = Lock()
        self._reader = ThreadPoolExecutor(1)

    @property
    def nbytes(self) -> int:
        """Memory of all chunks that are there at a time."""
        return min(len(self), (ALIVE + self._lasting) * self._step) * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self._shard)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Some rows as the kernels want them; a copy, as else those of a slow thread would keep their chunk."""
        step = self._step
        pieces = [
            self._chunk(number)[max(0, part.start - number * step) : part.stop - number * step]
            for number in range(part.start // step, -(-part.stop // step))
        ]
        return padded_copy(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))

    def _chunk(self, number: int) -> np.ndarray:
        with self._lock:
            if number == self._ahead or number not in self._chunks:  # the pass has come to another chunk
                before, self._ahead = (number - 1) % self._count, (number + 1) % self._count
                wanted = (before, number, self._ahead)
                self._chunks = {n: chunk for n, chunk in self._chunks.items() if n < self._lasting or n in wanted}
                for n in wanted[1:]:  # only now is there room for more
                    self._chunks[n] = self._chunks.get(n) or self._reader.submit(self._read, n)
            chunk = self._chunks[number]
        return chunk.result()

    def _read(self, number: int) -> np.ndarray:
        first = self._shard.first + number * self._step
        return self._source.read(first, min(first + self._step, self._shard.last))
