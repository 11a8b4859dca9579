"""Numba loops over one block of points; nothing in here knows ranks, files or schedules.

Every kernel is compiled for one explicit signature when its module is imported and is cached on disk, so that
it is compiled once on a machine and never again for the same types. Points that are handled as SIMD lanes
come as the last axis, in tiles of ``LANES``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numba

LANES = 16
"""Points handled side by side in the kernels that have the points as lanes."""

kernel: Callable[..., Any] = partial(numba.njit, cache=True, nogil=True, error_model="numpy", boundscheck=False)
"""The decorator of all kernels; floating-point operations keep their written order."""

reducing: Callable[..., Any] = partial(kernel, fastmath={"reassoc", "contract", "nsz"})
"""For kernels whose inner loop is a sum over the dimensions: lets the compiler keep partial sums in SIMD lanes."""

NEGLIGIBLE = 1e-20
"""A state whose weight is below this adds nothing to any statistic that double precision could show."""
