"""Numba loops over one block of points; nothing in here knows ranks, files or schedules.

Every kernel is compiled for one explicit signature when its module is imported and is cached on disk, so that
it is compiled once on a machine and never again for the same types. The dimensions of points and fields are padded
with zeros, so that rows are whole vectors, and arrays start on cache lines, which vectors then do not straddle.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from parallel_et.kernels import cache
from parallel_et.kernels.rows import CACHE_LINE

OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False}


def kernel(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """The decorator of all kernels, with the types of what goes in and out."""

    def compiled(function: Callable[..., Any]) -> Any:
        with cache.ours():
            return numba.njit(signature, cache=True, **OPTIONS)(function)

    return compiled


part: Callable[..., Any] = numba.njit(forceinline=True, **OPTIONS)
"""The decorator of what several kernels share; it is compiled into each of them."""

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
