"""The threads of a rank, which share its blocks."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor


class Team:
    """``size`` threads; kernels and matrix products let them run side by side."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size) if size > 1 else None

    def share(self, blocks: Iterable[slice], work: Callable[[slice, int], object]) -> None:
        """Call ``work(block, thread)`` for all blocks, each on whatever thread is free; its exceptions end all."""
        if self._pool is None:
            for block in blocks:
                work(block, 0)
            return
        waiting = deque(blocks)

        def take(thread: int) -> None:
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
            for done in [self._pool.submit(take, thread) for thread in range(self.size)]:
                done.result()
        finally:
            waiting.clear()
