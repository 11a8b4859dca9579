"""Vectors of numbers as a type inside kernels, compiled to SIMD instructions of the processor.

LLVM vectorises a loop only if it can prove that arrays do not overlap, and then prefers half the width of AVX-512.
In a kernel with ``store(out, i, load(a, i) + load(b, i))`` no proof is needed.
A vector has ``LANES`` doubles or 2 ``LANES`` floats. Processors with narrow registers use several for a vector.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, models, register_model

from parallel_et.kernels.rows import LANES

DOUBLE, INT = ir.DoubleType(), ir.IntType(64)
DOUBLES, FLOATS, INTS = (
    ir.VectorType(DOUBLE, LANES),
    ir.VectorType(ir.FloatType(), 2 * LANES),
    ir.VectorType(INT, LANES),
)

LOG2_E = 1.4426950408889634
LN2_HI = 6.93147180369123816490e-01
LN2_LO = 1.90821492927058770002e-10
SHIFT = 6755399441055744.0  # 1.5 * 2**52: the sum of x and this has the nearest integer in its low bits
TWO_52 = 4503599627370496.0
LOWEST_EXPONENT = -708.0
ONE, HALF_ROOT = 0x3FF0000000000000, 0x3FE6A09E667F3BCD  # the bits of 1 and of sqrt(1/2)

# Taylor series shortened by Chebyshev polynomials, lowest power first. EXP: exp(r) for |r| <= log(2) / 2, to 3e-18.
# LOG: (log((1 + s) / (1 - s)) / (2 s) - 1) / z, z = s^2, for arguments in [sqrt(1/2), sqrt(2)], to 5e-18 of the log.
EXP = [
    1.0,
    1.0,
    0.5000000000000019,
    0.16666666666666702,
    0.041666666666488085,
    0.00833333333330957,
    0.0013888888952317934,
    0.0001984126990910223,
    2.4801485479363404e-05,
    2.755722510116836e-06,
    2.7632640602920863e-07,
    2.5114797765539588e-08,
]
LOG = [
    0.3333333333333335,
    0.19999999999949503,
    0.14285714313086528,
    0.11111105553063548,
    0.09091445502524712,
    0.07665832399659545,
    0.07308546618690004,
]
# the Mills ratio R(x) = exp(x^2 / 2) int_x^inf exp(-z^2 / 2) dz = t P(2 t - 1), t = MILLS_AT / (MILLS_AT + x), to 3e-14
MILLS_AT = 5.0
MILLS = [
    0.38561620943062636,
    0.33357331903779264,
    0.248309412315814,
    0.15718221510919297,
    0.08272894311190714,
    0.03465094682095859,
    0.010425100929421127,
    0.001500656519794674,
    -0.0003999953325667605,
    -0.0002731715390083877,
    -2.975546028665122e-05,
    2.4945992754510366e-05,
    8.336906705608274e-06,
    -1.9922153114748652e-06,
    -1.3508251868188381e-06,
    1.630527549423278e-07,
    1.83757219929248e-07,
    -1.5401747077703477e-08,
    -1.617590896785259e-08,
    1.280568540096283e-09,
]


class VectorType(types.Type):
    """The Numba type of a vector."""

    def __init__(self, name: str, image: ir.VectorType) -> None:
        super().__init__(name=name)
        self.image = image


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    """The data model of a vector: one LLVM value."""

    def __init__(self, manager: Any, kind: VectorType) -> None:
        super().__init__(manager, kind, kind.image)


Vector, Floats = VectorType("Vector", DOUBLES), VectorType("Floats", FLOATS)


def constant(value: float) -> ir.Constant:
    """Return a vector of equal doubles."""
    return ir.Constant(DOUBLES, [ir.Constant(DOUBLE, value)] * LANES)


def integers(value: int) -> ir.Constant:
    """Return a vector of equal integers."""
    return ir.Constant(INTS, [ir.Constant(INT, value)] * LANES)


def broadcast(builder: Any, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Return a vector with a number in all lanes."""
    undefined, first = ir.Constant(kind, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
    return builder.shuffle_vector(builder.insert_element(undefined, value, first), undefined, everywhere)


def call_llvm(builder: Any, name: str, *args: ir.Value) -> ir.Value:
    """Call an LLVM operation on vectors of doubles that returns a vector."""
    kind = ir.FunctionType(DOUBLES, [DOUBLES] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"{name}.v{LANES}f64"), args)


def multiply_add(builder: Any, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """Return x y + z, rounded once."""
    return call_llvm(builder, "llvm.fma", x, y, z)


def larger(builder: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return the larger of two vectors, lane by lane."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def polynomial(builder: Any, x: ir.Value, coefficients: list[float]) -> ir.Value:
    """Return a polynomial by Horner's scheme, lowest power first; odd and even powers are independent chains."""
    square = builder.fmul(x, x)
    chains = []
    for half in (coefficients[::2], coefficients[1::2]):
        value = constant(half[-1])
        for c in half[-2::-1]:
            value = multiply_add(builder, value, square, constant(c))
        chains.append(value)
    return multiply_add(builder, chains[1], x, chains[0])


def quotient(builder: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return x / y for y in the range of single precision: a division in single precision and two corrections.

    A division in double precision would take as long as a whole polynomial.
    """
    floats = ir.VectorType(ir.FloatType(), LANES)
    ones = ir.Constant(floats, [ir.Constant(ir.FloatType(), 1.0)] * LANES)
    inverse = builder.fpext(builder.fdiv(ones, builder.fptrunc(y, floats)), DOUBLES)
    minus = builder.fneg(y)
    inverse = multiply_add(builder, multiply_add(builder, minus, inverse, constant(1.0)), inverse, inverse)
    q = builder.fmul(x, inverse)
    return multiply_add(builder, multiply_add(builder, minus, q, x), inverse, q)


def scaled(builder: Any, x: ir.Value, shifted: ir.Value) -> ir.Value:
    """Return x 2^k for the integers k in the low bits of k + SHIFT."""
    exponent = builder.shl(builder.bitcast(shifted, INTS), integers(52))
    return builder.bitcast(builder.add(builder.bitcast(x, INTS), exponent), DOUBLES)


def logarithm(builder: Any, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return e, s, p with log x = e log 2 + 2 s (1 + p), for x = m 2^e with m between sqrt(1/2) and sqrt(2)."""
    above = builder.add(builder.bitcast(x, INTS), integers(ONE - HALF_ROOT))
    e = builder.bitcast(builder.or_(builder.lshr(above, integers(52)), integers(0x4330000000000000)), DOUBLES)
    e = builder.fsub(e, constant(TWO_52 + 1023.0))
    m = builder.bitcast(builder.add(builder.and_(above, integers((1 << 52) - 1)), integers(HALF_ROOT)), DOUBLES)
    s = quotient(builder, builder.fsub(m, constant(1.0)), builder.fadd(m, constant(1.0)))
    z = builder.fmul(s, s)
    return e, s, builder.fmul(polynomial(builder, z, LOG), z)


def register_operator(symbol: Callable[..., Any], emit: str) -> None:
    """Register an operator between vectors of doubles with the compiler."""

    @infer_global(symbol)
    class Template(ConcreteTemplate):
        cases = [signature(Vector, Vector, Vector)]

    @lower_builtin(symbol, Vector, Vector)
    def lower(context: Any, builder: Any, kind: Any, args: Any) -> ir.Value:
        return getattr(builder, emit)(*args)


for symbol, emit in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    register_operator(symbol, emit)


def pointer_to(context: Any, builder: Any, kind: Any, array: ir.Value, index: ir.Value, image: ir.Type) -> ir.Value:
    """Return the address of the element with a flat index in a contiguous array of any shape."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), image.as_pointer())


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """Load the vector at a flat index of a contiguous array of doubles or floats."""
    kind = Vector if array.dtype == types.float64 else Floats

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        return builder.load(pointer_to(context, builder, sig.args[0], *args, kind.image), align=4)

    return kind(array, types.intp), code


@intrinsic
def store(typingctx: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write a vector to a flat index of a contiguous array of its kind."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], pointer_to(context, builder, sig.args[0], args[0], args[1], vector.image), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), code


@intrinsic
def fill(typingctx: Any, value: Any) -> Any:
    """Return a vector of equal doubles."""
    return Vector(types.float64), lambda _, builder, __, args: broadcast(builder, args[0], DOUBLES)


@intrinsic
def fma(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x y + z, rounded once."""
    return Vector(Vector, Vector, Vector), lambda _, builder, __, args: multiply_add(builder, *args)


@intrinsic
def maximum(typingctx: Any, x: Any, y: Any) -> Any:
    """Return the larger of two vectors, lane by lane."""
    return x(x, x), lambda _, builder, __, args: larger(builder, *args)


@intrinsic
def equals(typingctx: Any, x: Any, y: Any) -> Any:
    """Return 1 where two vectors are equal, 0 elsewhere."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        return builder.select(builder.fcmp_ordered("==", *args), constant(1.0), constant(0.0))

    return Vector(Vector, Vector), code


@intrinsic
def choose(typingctx: Any, x: Any, y: Any, yes: Any, no: Any) -> Any:
    """Return ``yes`` where x > y, elsewhere ``no``."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        x, y, yes, no = args
        return builder.select(builder.fcmp_ordered(">", x, y), yes, no)

    return Vector(Vector, Vector, Vector, Vector), code


@intrinsic
def total(typingctx: Any, x: Any) -> Any:
    """Return the sum of the lanes: of the halves, then of their halves, and so on."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        kind = ir.FunctionType(DOUBLE, [DOUBLE, DOUBLES])
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f64")
        return builder.call(add, [ir.Constant(DOUBLE, -0.0), args[0]], fastmath=("reassoc",))

    return types.float64(Vector), code


@intrinsic
def highest(typingctx: Any, x: Any) -> Any:
    """Return the largest lane."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        kind = ir.FunctionType(DOUBLE, [DOUBLES])
        pick = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fmax.v{LANES}f64")
        return builder.call(pick, [args[0]])

    return types.float64(Vector), code


def at_least(builder: Any, vector: ir.Value, limit: ir.Value) -> ir.Value:
    """Return the mask of the lanes that are at least a number."""
    return builder.fcmp_ordered(">=", vector, broadcast(builder, limit, vector.type))


def count_lanes(builder: Any, lanes: ir.Value) -> ir.Value:
    """Return the number of lanes in a mask."""
    bits = builder.zext(builder.bitcast(lanes, ir.IntType(lanes.type.count)), INT)
    count = cgutils.get_or_insert_function(builder.module, ir.FunctionType(INT, [INT]), "llvm.ctpop.i64")
    return builder.call(count, [bits])


@intrinsic
def count_at_least(typingctx: Any, x: Any, limit: Any) -> Any:
    """Return the number of lanes that are at least a limit."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        return count_lanes(builder, at_least(builder, *args))

    return types.int64(x, types.float64 if x == Vector else types.float32), code


@intrinsic
def append_at_least(typingctx: Any, x: Any, limit: Any, first: Any, found: Any, index: Any) -> Any:
    """Append the numbers of the lanes that are at least a limit, counted from ``first``, to ``found``; return how many.

    ``found`` is an int32 array with space for all lanes from the index on.
    """

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        x, limit, first, found, index = args
        lanes, int32 = x.type.count, ir.IntType(32)
        numbers = ir.VectorType(int32, lanes)
        start = broadcast(builder, builder.trunc(first, int32), numbers)
        which = at_least(builder, x, limit)
        pointer = pointer_to(context, builder, sig.args[3], found, index, int32)
        kind = ir.FunctionType(ir.VoidType(), [numbers, pointer.type, which.type])
        name = f"llvm.masked.compressstore.v{lanes}i32"
        append = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(append, [builder.add(start, ir.Constant(numbers, list(range(lanes)))), pointer, which])
        return count_lanes(builder, which)

    kind = types.float64 if x == Vector else types.float32
    return types.int64(x, kind, types.int64, found, types.intp), code


@intrinsic
def bits_at_least(typingctx: Any, x: Any, limit: Any) -> Any:
    """Return the lanes that are at least a limit as the bits of an integer."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        lanes = at_least(builder, *args)
        return builder.zext(builder.bitcast(lanes, ir.IntType(lanes.type.count)), INT)

    return types.int64(x, types.float64 if x == Vector else types.float32), code


@intrinsic
def lowest_bit(typingctx: Any, bits: Any) -> Any:
    """Return the position of the lowest set bit of a positive integer."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), code


@intrinsic
def count_bits(typingctx: Any, bits: Any) -> Any:
    """Return the number of set bits of an unsigned integer."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        count = cgutils.get_or_insert_function(builder.module, ir.FunctionType(INT, [INT]), "llvm.ctpop.i64")
        return builder.call(count, [args[0]])

    return types.int64(types.uint64), code


@intrinsic
def uniform(typingctx: Any, seed: Any, counter: Any) -> Any:
    """Draw numbers in (0, 1) by SplitMix64 of a seed, from a counter and the next ones as lanes."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        seed, counter = (broadcast(builder, value, INTS) for value in args)
        z = builder.add(counter, ir.Constant(INTS, [ir.Constant(INT, 1 + lane) for lane in range(LANES)]))
        z = builder.add(seed, builder.mul(z, integers(0x9E3779B97F4A7C15)))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = builder.mul(builder.xor(z, builder.lshr(z, integers(shift))), integers(factor))
        z = builder.xor(z, builder.lshr(z, integers(31)))
        between = builder.or_(builder.lshr(z, integers(12)), integers(ONE))  # the bits of a number from 1 to 2
        return builder.fsub(builder.bitcast(between, DOUBLES), constant(1.0 - 2.0**-53))

    return Vector(types.uint64, types.uint64), code


@intrinsic
def exp(typingctx: Any, x: Any) -> Any:
    """Return exp(x) for x <= 700 to 3e-16 relative; x is at least -708, where exp(x) is 3e-308."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        x = larger(builder, args[0], constant(LOWEST_EXPONENT))
        shifted = multiply_add(builder, x, constant(LOG2_E), constant(SHIFT))
        k = builder.fsub(shifted, constant(SHIFT))
        r = multiply_add(builder, k, constant(-LN2_HI), x)
        r = multiply_add(builder, k, constant(-LN2_LO), r)
        return scaled(builder, polynomial(builder, r, EXP), shifted)

    return Vector(Vector), code


@intrinsic
def log(typingctx: Any, x: Any) -> Any:
    """Return the natural logarithm of normal positive numbers to 3e-16 relative to max(1, |log x|)."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        e, s, p = logarithm(builder, args[0])
        twice = builder.fadd(s, s)
        tail = multiply_add(builder, twice, p, builder.fmul(e, constant(LN2_LO)))
        return multiply_add(builder, e, constant(LN2_HI), builder.fadd(twice, tail))

    return Vector(Vector), code


@intrinsic
def mills_ratio(typingctx: Any, x: Any) -> Any:
    """Return the Mills ratio of numbers from 0 to 1e30, to 3e-14 relative."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> ir.Value:
        t = quotient(builder, constant(MILLS_AT), builder.fadd(args[0], constant(MILLS_AT)))
        z = builder.fsub(builder.fadd(t, t), constant(1.0))
        return builder.fmul(t, polynomial(builder, z, MILLS))

    return Vector(Vector), code


@intrinsic
def square_root(typingctx: Any, x: Any) -> Any:
    """Return the square root."""
    return Vector(Vector), lambda _, builder, __, args: call_llvm(builder, "llvm.sqrt", *args)


@intrinsic
def add_fixed(typingctx: Any, high: Any, low: Any, index: Any, x: Any, unit: Any) -> Any:
    """Add the whole part of x to the integers ``high`` at an index, and the rest, in units of 1 / unit, to ``low``."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        high, low, index, x, unit = args
        whole = call_llvm(builder, "llvm.rint", x)
        rest = call_llvm(builder, "llvm.rint", builder.fmul(builder.fsub(x, whole), unit))
        for kind, words, value in ((sig.args[0], high, whole), (sig.args[1], low, rest)):
            here = pointer_to(context, builder, kind, words, index, INTS)
            builder.store(builder.add(builder.load(here, align=8), builder.fptosi(value, INTS)), here, align=8)
        return context.get_dummy_value()

    return types.void(high, low, types.intp, Vector, Vector), code
