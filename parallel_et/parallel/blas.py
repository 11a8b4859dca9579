"""A limit of BLAS to one thread, which makes matrix products bit-identical for any number of cores."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from threadpoolctl import threadpool_limits

_lock = Lock()
_users = 0
_limits: threadpool_limits | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread in this block.

    The limit holds for the whole process. If blocks of several threads overlap, the last one to end lifts the limit.
    """
    global _users, _limits
    with _lock:
        if _users == 0:
            _limits = threadpool_limits(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _limits is not None:
                _limits.restore_original_limits()
                _limits = None
