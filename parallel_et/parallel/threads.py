"""The threads of a rank, which process its blocks."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor


class ThreadTeam:
    """A pool of ``size`` threads. Kernels and matrix products release the GIL, so the threads run in parallel."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size) if size > 1 else None

    def map_blocks(self, blocks: Iterable[slice], work: Callable[[slice, int], object]) -> None:
        """Call ``work(block, thread)`` for all blocks, each on the next free thread. The first exception ends all."""
        if self._pool is None:
            for block in blocks:
                work(block, 0)
            return
        waiting = deque(blocks)

        def process_blocks(thread: int) -> None:
            while True:
                try:
                    block = waiting.popleft()
                except IndexError:
                    return
                try:
                    work(block, thread)
                except BaseException:
                    waiting.clear()
                    raise

        try:
            for future in [self._pool.submit(process_blocks, thread) for thread in range(self.size)]:
                future.result()
        finally:
            waiting.clear()
