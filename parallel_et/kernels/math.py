"""Branch-free ``exp`` and ``log`` that LLVM turns into SIMD code; the library's own stay scalar in compiled loops."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from parallel_et.kernels import kernel

LOG2_E = 1.4426950408889634
LN2_HI = 6.93147180369123816490e-01
LN2_LO = 1.90821492927058770002e-10
SHIFT = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in the low bits
TWO_52 = 4503599627370496.0


@intrinsic
def bits_of(typingctx: Any, x: Any) -> Any:
    """The bit image of a double as int64."""
    return types.int64(types.float64), lambda _, builder, __, args: builder.bitcast(args[0], ir.IntType(64))


@intrinsic
def double_of(typingctx: Any, bits: Any) -> Any:
    """The double with the given bit image."""
    return types.float64(types.int64), lambda _, builder, __, args: builder.bitcast(args[0], ir.DoubleType())


@kernel("float64(float64)", inline="always")
def exp(x: float) -> float:
    """Exponential of x <= 700 to 2e-16 relative; 0 below -708."""
    low = max(x, -708.0)
    shifted = low * LOG2_E + SHIFT
    k = shifted - SHIFT
    r = (low - k * LN2_HI) - k * LN2_LO
    p = 1.6059043836821613e-10  # 1/13!, then down to 1/2!
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 1.984126984126984e-04
    p = p * r + 1.388888888888889e-03
    p = p * r + 8.333333333333333e-03
    p = p * r + 4.1666666666666664e-02
    p = p * r + 1.6666666666666666e-01
    p = p * r + 0.5
    y = 1.0 + (r + r * r * p)
    scaled = double_of(bits_of(y) + (bits_of(shifted) << np.int64(52)))
    return scaled if x >= -708.0 else 0.0


@kernel("float64(float64)", inline="always")
def log(x: float) -> float:
    """Natural logarithm of a normal positive x to 3e-16 relative to max(1, |log x|)."""
    bits = bits_of(x)
    m = double_of((bits & np.int64(0x000FFFFFFFFFFFFF)) | np.int64(0x3FF0000000000000))
    e = double_of((bits >> np.int64(52)) | np.int64(0x4330000000000000)) - (TWO_52 + 1023.0)
    high = m > 1.4142135623730951
    m = 0.5 * m if high else m
    e = e + 1.0 if high else e
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 1.0 / 23.0
    p = p * z + 1.0 / 21.0
    p = p * z + 1.0 / 19.0
    p = p * z + 1.0 / 17.0
    p = p * z + 1.0 / 15.0
    p = p * z + 1.0 / 13.0
    p = p * z + 1.0 / 11.0
    p = p * z + 1.0 / 9.0
    p = p * z + 1.0 / 7.0
    p = p * z + 1.0 / 5.0
    p = p * z + 1.0 / 3.0
    return e * LN2_HI + (2.0 * s + (2.0 * s * z * p + e * LN2_LO))
