"""Numba loops over one block of points; nothing in here knows ranks, files or schedules.

Every kernel has one explicit signature and is cached on disk, so that it is compiled once on a machine and never again.
A module that is imported only declares its kernels: a job compiles and loads those of the modules that it imports. The
dimensions of points and fields are padded with zeros, so that rows are whole vectors, and arrays start on cache lines,
which vectors then do not straddle.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from parallel_et.errors import UserError
from parallel_et.kernels import cache
from parallel_et.kernels.rows import CACHE_LINE

if numba.config.DISABLE_JIT:
    raise UserError("NUMBA_DISABLE_JIT: expected 0, as kernels only run compiled, found 1; unset this variable")

OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False}


class Kernel:
    """A function that is compiled, or loaded if it was compiled before, when that is asked for or it is first called.

    Parameters
    ----------
    signature : the types of what goes in and out
    """

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self.function, self.signature = function, signature
        self._compiled: Callable[..., Any] | None = None
        cache.declared[cache.name_of(function)] = self.load

    def load(self) -> Callable[..., Any]:
        """The compiled function."""
        name = cache.name_of(self.function)
        with cache.lock:
            if self._compiled is None:
                dispatcher = numba.njit(**OPTIONS)(self.function)
                dispatcher._cache = cache.SealedCache(name)  # as enable_caching does with Numba's own
                dispatcher.compile(self.signature)
                dispatcher.disable_compile()
                self._compiled = dispatcher
                cache.loaded(name)
        return self._compiled

    def __call__(self, *args: Any) -> Any:
        return (self._compiled or self.load())(*args)


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """The decorator of all kernels, with the types of what goes in and out."""
    return lambda function: Kernel(function, signature)


part: Callable[..., Any] = numba.njit(forceinline=True, **OPTIONS)
"""The decorator of what several kernels share; it is compiled into each of them, as kernels cannot call each other."""

NEGLIGIBLE = 1e-20
"""A state whose weight is below this adds nothing to any statistic that double precision could show."""
VACANT = -2
"""What a list begins with that stands for no state."""


@part
def scratch(size):
    """An uninitialised array of doubles whose vectors do not straddle cache lines."""
    room = np.empty(size + CACHE_LINE // 8)
    skip = -room.ctypes.data % CACHE_LINE // 8
    return room[skip : skip + size]
