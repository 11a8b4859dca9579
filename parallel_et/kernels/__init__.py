"""Numba kernels: compiled loops over one block of points, independent of ranks, files and schedules.

Every kernel has one explicit signature and is cached on disk, so a machine compiles it only once.
Importing a module only declares its kernels. A job compiles or loads the kernels of the modules that it imports.
Points and fields are padded with zeros to whole vectors. Arrays start on cache lines, so no vector straddles two.
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
    """A function that is compiled, or loaded from the cache, when ``load`` or the first call requests it.

    Parameters
    ----------
    function : Python source of the kernel
    signature : Numba types of the arguments and of the result
    """

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self.function, self.signature = function, signature
        self._compiled: Callable[..., Any] | None = None
        cache.declared[cache.name_of(function)] = self.load

    def load(self) -> Callable[..., Any]:
        """Return the compiled function."""
        name = cache.name_of(self.function)
        with cache.lock:
            if self._compiled is None:
                dispatcher = numba.njit(**OPTIONS)(self.function)
                dispatcher._cache = cache.ChecksummedCache(name)  # as enable_caching does with Numba's own
                dispatcher.compile(self.signature)
                dispatcher.disable_compile()
                self._compiled = dispatcher
                cache.forget(name)
        return self._compiled

    def __call__(self, *args: Any) -> Any:
        return (self._compiled or self.load())(*args)


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Return the decorator of a kernel with this Numba signature."""
    return lambda function: Kernel(function, signature)


device_function: Callable[..., Any] = numba.njit(forceinline=True, **OPTIONS)
"""Decorator of functions that kernels share. Kernels cannot call each other, so these are compiled into each caller."""

NEGLIGIBLE_WEIGHT = 1e-20
"""Posterior weight below which a state cannot change any statistic in double precision."""
VACANT = -2
"""First entry of a list of causes that represents no state."""


@device_function
def scratch(size):
    """Return an uninitialised array of doubles that starts on a cache line."""
    buffer = np.empty(size + CACHE_LINE // 8)
    skip = -buffer.ctypes.data % CACHE_LINE // 8
    return buffer[skip : skip + size]
