"""Streaming of rows that do not fit into memory: a thread reads them ahead, again in every pass."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import numpy as np

from parallel_et.core.schema import in_bytes
from parallel_et.data.base import Source
from parallel_et.kernels.rows import Rows, padded_copy
from parallel_et.parallel.shards import Shard

CHUNKS_IN_MEMORY = 4
"""Chunks in memory: the current, previous and next chunk of a pass, and the buffers that read one."""
MAX_CHUNK_BYTES = 1 << 26
"""Largest size of a chunk in bytes; larger chunks are not read faster."""


def open_rows(source: Source, shard: Shard, memory: str | float | None, threads: int, ordered: bool = True) -> Rows:
    """Return the rows of a shard, in memory or, if they are larger than ``memory``, streamed.

    Parameters
    ----------
    memory : bytes, or a size such as "8 GiB"; None for unlimited
    threads : number of threads that read blocks
    ordered : whether passes visit the blocks in order; otherwise rows are not read ahead
    """
    row = source.read(shard.first, shard.first)
    if memory is None or len(shard) * row.shape[1] * row.itemsize <= in_bytes(memory):
        return source.read(shard.first, shard.last)
    return StreamedRows(source, shard, in_bytes(memory), threads) if ordered else RowsOnDemand(source, shard)


class RowsOnDemand:
    """The rows of a shard (n, D or wider). Each request reads a block, which is not kept."""

    def __init__(self, source: Source, shard: Shard) -> None:
        self._source, self._shard, self._lock = source, shard, Lock()
        row = source.read(shard.first, shard.first)
        self.shape, self.dtype, self.request_points = (len(shard), row.shape[1]), row.dtype, shard.block

    @property
    def nbytes(self) -> int:
        """Return the memory of a block."""
        return min(len(self), self._shard.block) * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self._shard)

    def __getitem__(self, block: slice) -> np.ndarray:
        first = self._shard.first
        with self._lock:
            return self._source.read(first + block.start, first + block.stop)


class StreamedRows:
    """The rows of a shard (n, D or wider), for repeated passes from the first block to the last.

    Rows are read in chunks of whole blocks. During the work on a chunk the next chunk is read, and after the last
    chunk the first. The previous chunk stays in memory for slower threads. A request for any other chunk waits.
    If memory is left, the first chunks stay in memory for all passes.

    Parameters
    ----------
    source : source of the rows; its errors are raised by the request for the rows
    shard : rows of this rank
    memory_bytes : bytes for all chunks; a chunk has at least one block per thread
    threads : number of threads that request rows

    Attributes
    ----------
    request_points : maximum number of rows per request, such that all threads together request at most one chunk
    """

    def __init__(self, source: Source, shard: Shard, memory_bytes: int, threads: int = 1) -> None:
        self._source, self._shard = source, shard
        row = source.read(shard.first, shard.first)
        self.shape, self.dtype = (len(shard), row.shape[1]), row.dtype
        block = shard.block * row.shape[1] * row.itemsize
        self._step = shard.block * max(threads, min(memory_bytes // CHUNKS_IN_MEMORY, MAX_CHUNK_BYTES) // block)
        self.request_points = self._step // threads
        self._count = -(-len(shard) // self._step)
        self._lasting = max(0, memory_bytes // (self._step * row.shape[1] * row.itemsize) - CHUNKS_IN_MEMORY)
        self._chunks: dict[int, Future[np.ndarray]] = {}
        self._ahead = 0
        self._lock = Lock()
        self._reader = ThreadPoolExecutor(1)

    @property
    def nbytes(self) -> int:
        """Return the largest memory of all chunks."""
        return min(len(self), (CHUNKS_IN_MEMORY + self._lasting) * self._step) * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self._shard)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return rows in the layout of the kernels. They are a copy, so that no thread keeps a chunk in memory."""
        step = self._step
        pieces = [
            self._chunk(number)[max(0, part.start - number * step) : part.stop - number * step]
            for number in range(part.start // step, -(-part.stop // step))
        ]
        return padded_copy(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))

    def _chunk(self, number: int) -> np.ndarray:
        with self._lock:
            if number == self._ahead or number not in self._chunks:  # the pass has reached another chunk
                before, self._ahead = (number - 1) % self._count, (number + 1) % self._count
                wanted = (before, number, self._ahead)
                self._chunks = {n: chunk for n, chunk in self._chunks.items() if n < self._lasting or n in wanted}
                for n in wanted[1:]:  # after the release of other chunks
                    self._chunks[n] = self._chunks.get(n) or self._reader.submit(self._read, n)
            chunk = self._chunks[number]
        return chunk.result()

    def _read(self, number: int) -> np.ndarray:
        first = self._shard.first + number * self._step
        return self._source.read(first, min(first + self._step, self._shard.last))
