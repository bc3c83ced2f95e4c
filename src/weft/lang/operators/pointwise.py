"""Pointwise operators: each element from the elements at the same index, with broadcasting.

    add   i0 i1, 1 i1 -> i0 i1

Axes propagate through them both ways. Each is one line at the end of this file: its kernel, the
kinds of dtypes it takes, and which of its operands may be partial (`keeps`): sums through linear
operators, extremes through monotone ones that are defined for every part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import cos, exp, log, pi, sqrt
from math import erf as math_erf
from math import erfc as math_erfc
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import (
    Conversion,
    Dtypes,
    Operand,
    as_choice,
    as_compared,
    as_dtype,
    as_floats,
    as_quotients,
    complex_dtype,
    dtype_name,
    for_kinds,
    itemsize,
    kind,
    like_all,
    like_first,
    real_dtype,
    result_type,
    separate,
    together,
    truth,
)
from weft.lang.kernel import Accumulates, Attributes, Block, Kernel, bitcast, cast
from weft.lang.notation import Notation, aligned
from weft.lang.operator import NOTHING, Flops, Keeps, Sign, define
from weft.lang.signature import Signature
from weft.values import Point

Function = Callable[..., Any]


def sign_pointwise(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign operands that are broadcast to one shape, as NumPy does.

    >>> print(sign_pointwise([(8, 4), (8, 4)], {}).notation)
    i0 i1, i0 i1 -> i0 i1
    >>> print(sign_pointwise([(8, 4), (1, 4), (4,), ()], {}).notation)
    i0 i1, 1 i1, i1,  -> i0 i1
    """
    operands, result = aligned("i", shapes)
    return Signature(Notation(operands, [result]), shapes)


_BINARY = """
    add subtract multiply divide floor_divide mod remainder power maximum minimum atan2 next_after
    copysign hypot logaddexp and or xor shift_left shift_right_arithmetic shift_right_logical
    compare complex
"""
_COUNTS = {**dict.fromkeys(_BINARY.split(), 2), "clamp": 3, "select": 3}
"""How many operands operators take that do not take one."""


def _sign_counted(name: str) -> Sign:
    """Return the sign of an operator that takes a number of operands of its own."""
    count = _COUNTS.get(name, 1)

    def sign(shapes: Sequence[Point], attributes: Attributes) -> Signature:
        if len(shapes) != count:
            raise WeftError(f"{name} takes {count} operand{'s' * (count > 1)}, got {len(shapes)}")
        return sign_pointwise(shapes, attributes)

    return sign


def sign_polynomial(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign one operand; `coefficients` are those of a polynomial, the constant first.

    They are those of the powers, or, with `low` and `high`, those of the Chebyshev polynomials on
    that range. `name` may tell which function it approximates.

    >>> print(sign_polynomial([(8, 4)], {"coefficients": (0.0, 0.5, 0.25)}).notation)
    i0 i1 -> i0 i1
    """
    coefficients, low, high = attributes["coefficients"], *map(attributes.get, ("low", "high"))
    if len(shapes) != 1 or not coefficients:
        raise WeftError(
            f"a polynomial has {len(coefficients)} coefficients, {len(shapes)} operands"
        )
    if (low is None) != (high is None) or (low is not None and not low < high):
        raise WeftError(f"expected a range from low to high, got {low} to {high}")
    return sign_pointwise(shapes, attributes)


def _polynomial_flops(line: Signature, attributes: Attributes) -> float:
    """Count a product and a sum for each coefficient but one."""
    return 2.0 * (len(attributes["coefficients"]) - 1)


# Dtype rules.


def _compared(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return bool; complex numbers can only be equal or not."""
    if attributes.get("comparison_direction") not in ("EQ", "NE"):
        for_kinds("bool int uint float", truth)(dtypes, attributes)
    if {kind(dtype) for dtype in dtypes} != {"int", "uint"}:
        like_all(dtypes, {})
    return ["bool"]


def _of_parts(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    (real,) = for_kinds(_FLOAT)(dtypes, {})
    return [complex_dtype(real)]


def _real_part(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return [real_dtype(dtypes[0])]


def _chosen(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    if dtypes[0] != "bool":
        raise WeftError(f"expected a bool condition, got {dtypes[0]}", hint="compare it with zero")
    return like_all(dtypes[1:], attributes)


def _converted(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return [as_dtype(attributes["dtype"]) if attributes.get("dtype") else dtypes[0]]


def _as_parts(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert a real and an imaginary part to those of the complex dtype that holds them."""
    return [real_dtype(complex_dtype(result_type(*operands)))] * len(operands)


# Kernels.


def named(name: str) -> Kernel:
    """Return the kernel that calls a function of the arrays' own library."""
    return lambda block, *operands: getattr(block.xp, name)(*operands)


def of(function: Function) -> Kernel:
    """Return the kernel that calls a function of the namespace and the operands."""
    return lambda block, *operands: function(block.xp, *operands)


def either(name: str, logical: str) -> Kernel:
    """Return the kernel that calls one function for numbers and another for bools."""

    def kernel(block: Block, *operands: Any) -> Any:
        is_logical = operands[0].dtype == block.xp.bool
        return getattr(block.xp, logical if is_logical else name)(*operands)

    return kernel


def signed_in_torch(kernel: Kernel) -> Kernel:
    """Return a kernel whose bits do not depend on signs, for unsigned integers of torch, too.

    Torch has no arithmetic for uint16, uint32 and uint64: it is that of signed integers.
    """

    def run(block: Block, *operands: Any) -> Any:
        name = dtype_name(operands[0].dtype)
        is_torch = "torch" in getattr(block.xp, "__name__", "")
        if not is_torch or name not in ("uint16", "uint32", "uint64"):
            return kernel(block, *operands)
        signed = (bitcast(block.xp, x, name[1:]) for x in operands)
        return bitcast(block.xp, kernel(block, *signed), name)

    return run


def _kind(x: Any) -> str:
    return kind(dtype_name(x.dtype))


def _is_integral(x: Any) -> bool:
    return _kind(x) in ("int", "uint")


def _bits(x: Any) -> int:
    return 8 * itemsize(dtype_name(x.dtype))


def divide(xp: Any, x: Any, y: Any) -> Any:
    """Divide; integers are rounded towards zero."""
    if not _is_integral(x):
        return xp.divide(x, y)
    quotient = xp.floor_divide(x, y)
    inexact = (quotient * y != x) & ((x < 0) != (y < 0))
    return quotient + xp.astype(inexact, x.dtype)


def remainder(xp: Any, x: Any, y: Any) -> Any:
    """Return the remainder of a division that rounds towards zero: the sign of the dividend."""
    if not _is_integral(x):
        rest = xp.remainder(xp.abs(x), xp.abs(y))
        return xp.where(x < 0, -rest, rest)
    rest = xp.remainder(x, y)
    return xp.where((rest != 0) & ((x < 0) != (y < 0)), rest - y, rest)


def absolute(xp: Any, x: Any) -> Any:
    """Return absolute values."""
    return x if _kind(x) in ("bool", "uint") else xp.abs(x)


def power(xp: Any, x: Any, y: Any) -> Any:
    """Return powers; integers cannot have negative exponents."""
    if _kind(y) == "int" and bool(xp.any(y < 0)):
        raise WeftError(
            "an integer cannot have a negative exponent", hint="convert it to a float first"
        )
    return xp.pow(x, y)


def cbrt(xp: Any, x: Any) -> Any:
    """Return the cube root."""
    return xp.sign(x) * xp.abs(x) ** (1 / 3)


def rsqrt(xp: Any, x: Any) -> Any:
    """Return one over the square root."""
    return 1 / xp.sqrt(x)


def logistic(xp: Any, x: Any) -> Any:
    """Return the sigmoid, from the smaller exponential, which does not overflow."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x < 0, small, xp.ones_like(x)) / (1 + small)


def round_away(xp: Any, x: Any) -> Any:
    """Round to the nearest integer; halves away from zero."""
    size = xp.abs(x)
    below = xp.floor(size)
    up = (size != below) & (size >= below + 0.5)  # past 2**52, adding a half is lost to rounding
    return xp.sign(x) * xp.where(up, below + 1, below)


def popcnt(xp: Any, x: Any) -> Any:
    """Count the bits that are set."""
    total = xp.zeros_like(x)
    for bit in range(_bits(x)):
        total = total + ((x >> bit) & 1)
    return total


def count_leading_zeros(xp: Any, x: Any) -> Any:
    """Count the bits above the highest that is set."""
    bits = _bits(x)
    count = xp.full(x.shape, bits, dtype=x.dtype)
    for bit in range(bits):
        count = xp.where(((x >> bit) & 1) != 0, xp.full_like(x, bits - 1 - bit), count)
    return count


def _in_range(x: Any, by: Any) -> Any:
    return (by >= 0) & (by < _bits(x))


def shift_left(xp: Any, x: Any, by: Any) -> Any:
    """Shift bits up; shifts by the width or more give 0."""
    fits = _in_range(x, by)
    return xp.where(fits, x << xp.where(fits, by, xp.zeros_like(by)), xp.zeros_like(x))


def shift_right_arithmetic(xp: Any, x: Any, by: Any) -> Any:
    """Shift bits down, repeating the highest bit."""
    most = xp.full_like(by, _bits(x) - 1)
    by = xp.where(_in_range(x, by), by, most)
    if _kind(x) == "int":
        return x >> by
    return xp.where((x >> (_bits(x) - 1)) != 0, ~(~x >> by), x >> by)


def shift_right_logical(xp: Any, x: Any, by: Any) -> Any:
    """Shift bits down, filling with zeros."""
    fits = _in_range(x, by)
    moved = x >> xp.where(fits, by, xp.zeros_like(by))
    if _kind(x) == "int":
        top = xp.full_like(x, xp.iinfo(x.dtype).max)
        kept = xp.where(
            by > 0, top >> xp.where(fits & (by > 0), by - 1, xp.zeros_like(by)), ~(x ^ x)
        )
        moved = moved & kept
    return xp.where(fits, moved, xp.zeros_like(x))


def compare(block: Block, x: Any, y: Any) -> Any:
    """Compare by `comparison_direction`: EQ, NE, LT, LE, GT or GE."""
    names = {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal"}
    names |= {"GT": "greater", "GE": "greater_equal"}
    return getattr(block.xp, names[block.attributes["comparison_direction"]])(x, y)


def convert(block: Block, x: Any) -> Any:
    """Convert to another dtype."""
    xp, name = block.xp, block.attributes.get("dtype")
    if name is None:
        return x
    if _kind(x) == "complex" and kind(name) != "complex":
        x = (x != 0) if name == "bool" else xp.real(x)
    return cast(xp, x, name)


def complex_of(xp: Any, real: Any, imag: Any) -> Any:
    """Return complex numbers from real and imaginary parts."""
    dtype = xp.complex128 if real.dtype == xp.float64 else xp.complex64
    return xp.astype(real, dtype) + xp.astype(imag, dtype) * xp.asarray(1j, dtype=dtype)


def real(xp: Any, x: Any) -> Any:
    """Return the real part."""
    return xp.real(x) if _kind(x) == "complex" else x


def imag(xp: Any, x: Any) -> Any:
    """Return the imaginary part."""
    return xp.imag(x) if _kind(x) == "complex" else xp.zeros_like(x)


def select(xp: Any, flag: Any, x: Any, y: Any) -> Any:
    """Choose one operand or the other."""
    return xp.where(flag, x, y)


def clamp(xp: Any, low: Any, x: Any, high: Any) -> Any:
    """Clip the second operand to the first and the third."""
    return xp.minimum(xp.maximum(x, low), high)


def relu(xp: Any, x: Any) -> Any:
    """Return the larger of the operand and 0."""
    return xp.maximum(x, xp.zeros_like(x))


def silu(xp: Any, x: Any) -> Any:
    """Return the operand times its sigmoid."""
    return x * logistic(xp, x)


def gelu(xp: Any, x: Any, exact: bool = False) -> Any:
    """Return the Gaussian error linear unit, by its approximation with tanh, or exactly."""
    if exact:
        return 0.5 * x * erfc(xp, -0.7071067811865476 * x)
    return 0.5 * x * (1 + xp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def square(xp: Any, x: Any) -> Any:
    """Return the operand times itself."""
    return x * x


def polynomial(block: Block, x: Any) -> Any:
    """Evaluate a polynomial in powers, or in Chebyshev polynomials on a range."""
    at = block.attributes
    if at.get("low") is None:
        return _horner(block.xp, x, at["coefficients"])
    half = (at["high"] - at["low"]) / 2
    return _clenshaw(block.xp, (x - (at["high"] + at["low"]) / 2) / half, at["coefficients"])


def _horner(xp: Any, x: Any, coefficients: Sequence[float]) -> Any:
    total = xp.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def _clenshaw(xp: Any, x: Any, coefficients: Sequence[float]) -> Any:
    """Evaluate a sum of Chebyshev polynomials by Clenshaw's recurrence."""
    one = two = xp.zeros_like(x)
    for c in coefficients[:0:-1]:
        one, two = 2 * x * one - two + c, one
    return x * one - two + coefficients[0]


def identity(xp: Any, x: Any) -> Any:
    """Return the operand."""
    return x


# The error function, to the last digits of the dtype, in functions of the standard: a Chebyshev
# series in x² below 1, and above it exp(-x²) times a smooth function of (x - bend) / (x + bend),
# which maps [0, inf) to [-1, 1).
_FAR = 30.0
"""Beyond it the complement is 0 in every dtype."""
_BEND = 3.75


def erf(xp: Any, x: Any) -> Any:
    """Return the error function."""
    if hasattr(xp, "erf"):
        return xp.erf(x)
    size = xp.abs(x)
    near = xp.minimum(size, xp.ones_like(x))
    series = x * _clenshaw(xp, 2 * near * near - 1, _small())
    return xp.where(size < 1, series, xp.sign(x) * (1 - _tail(xp, size)))


def erfc(xp: Any, x: Any) -> Any:
    """Return 1 minus the error function, accurately where that is small."""
    if hasattr(xp, "erfc"):
        return xp.erfc(x)
    tail = _tail(xp, xp.abs(x))
    return xp.where(x < 0, 2 - tail, tail)


_LANCZOS = (
    0.99999999999980993, 676.520368121885099, -1259.13921672240287, 771.323428777653079,
    -176.615029162140599, 12.5073432786869048, -0.138571095265720117, 9.98436957801957086e-6,
    1.50563273514931156e-7,
)  # fmt: skip
"""Lanczos' coefficients for g = 7."""


def lgamma(xp: Any, x: Any) -> Any:
    """Return the logarithm of the absolute value of the gamma function, as XLA computes it.

    Lanczos' approximation from 1/2 on; below it the reflection about 1/2.
    """
    if hasattr(xp, "lgamma"):
        return xp.lgamma(x)
    given, x = x, xp.where(xp.isfinite(x), x, xp.ones_like(x))
    is_low, g = x < 0.5, 7.5
    z = xp.where(is_low, -x, x - 1)
    series = xp.full_like(x, _LANCZOS[0])
    for n, coefficient in enumerate(_LANCZOS[1:], 1):
        series = series + coefficient / (z + n)
    log_t = log(g) + xp.log1p(z / g)
    high = (z + 0.5 - (z + g) / log_t) * log_t + log(2 * pi) / 2 + xp.log(series)
    part = xp.abs(x) - xp.floor(xp.abs(x))
    part = xp.minimum(part, 1 - part)
    is_pole = part == 0
    sine = xp.log(xp.sin(pi * xp.where(is_pole, xp.full_like(x, 0.5), part)))
    low = xp.where(is_pole, xp.full_like(x, float("inf")), log(pi) - sine - high)
    return xp.where(xp.isfinite(given), xp.where(is_low, low, high), xp.abs(given))


def _tail(xp: Any, x: Any) -> Any:
    """Return the complement for x >= 0: exp(-x²) times a smooth function."""
    x = xp.minimum(x, xp.full_like(x, _FAR))
    return xp.exp(-x * x) * _clenshaw(xp, (x - _BEND) / (x + _BEND), _large())


@cache
def _small() -> tuple[float, ...]:
    """Return the coefficients of erf(x) / x on [0, 1], as a function of x²."""
    return _chebyshev(lambda t: math_erf(sqrt((t + 1) / 2)) / sqrt((t + 1) / 2), 14)


@cache
def _large() -> tuple[float, ...]:
    """Return the coefficients of exp(x²) erfc(x) on [0, inf)."""
    return _chebyshev(lambda t: _scaled(_BEND * (1 + t) / (1 - t)), 30)


def _scaled(x: float) -> float:
    """Return exp(x²) erfc(x), by its continued fraction where the product would lose digits."""
    if x < 2:
        return exp(x * x) * math_erfc(x)
    fraction = x
    for k in range(120, 0, -1):
        fraction = x + k / 2 / fraction
    return 1 / (sqrt(pi) * fraction)


def _chebyshev(function: Callable[[float], float], count: int) -> tuple[float, ...]:
    """Return the first Chebyshev coefficients of a function, from its values at their zeros."""
    angles = [pi * (n + 0.5) / count for n in range(count)]
    values = [function(cos(angle)) for angle in angles]
    sums = [sum(v * cos(k * a) for v, a in zip(values, angles)) for k in range(count)]
    return tuple(s * (1 if k == 0 else 2) / count for k, s in enumerate(sums))


_REAL, _NUMBER = "int uint float", "int uint float complex"
_ANY, _BITS, _ORDERED = "bool int uint float complex", "bool int uint", "bool int uint float"
_FLOAT, _FLOATS = "float", "float complex"
_RISING: Keeps = {"max": [(0,)], "min": [(0,)]}
_RISING_POSITIVE: Keeps = {"min": [(0,)]}
_LINEAR: Keeps = {"sum": [(0,)]}
_BOTH: Keeps = {"sum": [(0, 1)]}
_SIGNLESS = ("add", "subtract", "negate", "multiply", "not", "shift_left", "shift_right_logical")
"""Operators whose bits are the same for signed and unsigned integers."""


def _add(
    name: str,
    kernel: Kernel | Function | str | None,
    kinds: str | Dtypes,
    conversion: Conversion = together,
    keeps: Keeps = NOTHING,
    accumulates: Accumulates = "",
    flops: float | Flops = 1,
    attributes: str = "",
    workspace: float = 1.0,
) -> None:
    """Add an operator; a kernel that is text names a function of the arrays' library."""
    kernel = named(kernel) if isinstance(kernel, str) else kernel
    define(
        name,
        sign_polynomial if name == "polynomial" else _sign_counted(name),
        signed_in_torch(kernel) if name in _SIGNLESS and kernel is not None else kernel,
        passes="both",
        keeps=keeps,
        flops=flops,
        dtypes=for_kinds(kinds) if isinstance(kinds, str) else kinds,
        conversion=conversion,
        accumulates=accumulates,
        attributes=attributes,
        workspace=workspace,
        structs=name == "sharding_constraint",
    )


# Arithmetic.
_add("abs", of(absolute), for_kinds(_ANY, _real_part))
_add("add", "add", _ANY, keeps=_BOTH)
_add("subtract", "subtract", _NUMBER, keeps=_BOTH)
_add("negate", "negative", _NUMBER, keeps=_LINEAR)
_add("multiply", "multiply", _ANY, keeps={"sum": [(0,), (1,)], "prod": [(0, 1)]})
_add("divide", of(divide), _NUMBER, as_quotients, workspace=1.5)
_add("floor_divide", "floor_divide", _REAL)
_add("mod", "remainder", _REAL)
_add("remainder", of(remainder), _REAL, workspace=3.25)
_add("power", of(power), _NUMBER)
_add("square", of(square), _NUMBER)
_add("sign", "sign", _NUMBER, keeps=_RISING)
_add("maximum", "maximum", _ORDERED, keeps={"max": [(0, 1)]})
_add("minimum", "minimum", _ORDERED, keeps={"min": [(0, 1)]})
_add("clamp", of(clamp), _ORDERED, keeps={"max": [(1,)], "min": [(1,)]})
_add("ceil", "ceil", _ORDERED, keeps=_RISING)
_add("floor", "floor", _ORDERED, keeps=_RISING)
_add("round_nearest_even", "round", _REAL, keeps=_RISING)
_add("round_nearest_afz", of(round_away), _FLOAT, as_floats, _RISING, "always", workspace=4.5)
_add(
    "reduce_precision",
    None,
    _FLOAT,
    as_floats,
    accumulates="always",
    attributes="exponent_bits mantissa_bits",
)

# Roots, exponentials, angles.
_add("sqrt", "sqrt", _FLOATS, as_floats, _RISING_POSITIVE)
_add("rsqrt", of(rsqrt), _FLOAT, as_floats, accumulates="always")
_add("cbrt", of(cbrt), _FLOAT, as_floats, _RISING, "always", workspace=2.25)
_add("exponential", "exp", _FLOATS, as_floats, _RISING)
_add("exponential_minus_one", "expm1", _FLOATS, as_floats, _RISING)
_add("log", "log", _FLOATS, as_floats, _RISING_POSITIVE)
_add("log_plus_one", "log1p", _FLOATS, as_floats, _RISING_POSITIVE)
_add("logistic", of(logistic), _FLOAT, as_floats, _RISING, "always", workspace=2.5)
_add("cosine", "cos", _FLOATS, as_floats)
_add("sine", "sin", _FLOATS, as_floats)
_add("tan", "tan", _FLOATS, as_floats)
_add("tanh", "tanh", _FLOATS, as_floats, _RISING)
for _name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh"):
    _add(_name, _name, _FLOATS, as_floats)
_add("atan2", "atan2", _FLOAT, as_floats, accumulates="always")
_add("next_after", "nextafter", _FLOAT, as_floats)
for _name in ("copysign", "hypot", "logaddexp"):
    _add(_name, _name, _FLOAT, as_floats, accumulates="always")
for _name in ("log2", "log10"):
    _add(_name, _name, _FLOAT, as_floats, _RISING_POSITIVE)
_add("trunc", "trunc", _REAL, keeps=_RISING)
_add("erf", of(erf), _FLOAT, as_floats, accumulates="always")
_add("erfc", of(erfc), _FLOAT, as_floats, accumulates="always")
_add("lgamma", of(lgamma), _FLOAT, as_floats, accumulates="always", flops=40, workspace=11.0)
_add(
    "polynomial",
    polynomial,
    _FLOATS,
    as_quotients,
    accumulates="always",
    flops=_polynomial_flops,
    attributes="coefficients low high name error",
)

# Activations.
_add("relu", of(relu), _REAL, keeps=_RISING)
_add("silu", of(silu), _FLOAT, as_floats, accumulates="always", workspace=2.5)
_add(
    "gelu",
    lambda block, x: gelu(block.xp, x, block.attributes.get("exact", False)),
    _FLOAT,
    as_floats,
    accumulates="always",
    attributes="exact",
    workspace=2.25,
)

# Bits and comparisons.
_add("and", either("bitwise_and", "logical_and"), _BITS, keeps={"and": [(0, 1)]})
_add("or", either("bitwise_or", "logical_or"), _BITS, keeps={"or": [(0, 1)]})
_add("xor", either("bitwise_xor", "logical_xor"), _BITS)
_add("not", either("bitwise_invert", "logical_not"), _BITS)
_add("count_leading_zeros", of(count_leading_zeros), "int uint", workspace=2.5)
_add("popcnt", of(popcnt), "int uint", workspace=2.25)
_add("shift_left", of(shift_left), "int uint", workspace=2.5)
_add("shift_right_arithmetic", of(shift_right_arithmetic), "int uint", workspace=2.25)
_add("shift_right_logical", of(shift_right_logical), "int uint", workspace=5.0)
_add("compare", compare, _compared, as_compared, attributes="comparison_direction compare_type")
_add("is_finite", "isfinite", for_kinds(_ANY, truth), separate)
_add("is_inf", "isinf", for_kinds(_ANY, truth), separate)

# No computation.
_add("convert", convert, _converted, separate, flops=0)
_add("select", of(select), _chosen, as_choice, keeps={"any": [(1, 2)]}, flops=0)
_add("complex", of(complex_of), _of_parts, _as_parts, keeps=_BOTH, flops=0)
_add("real", of(real), for_kinds(_ANY, _real_part), keeps=_LINEAR, flops=0)
_add("imag", of(imag), for_kinds(_ANY, _real_part), keeps=_LINEAR, flops=0)
_add("sharding_constraint", of(identity), like_first, separate, keeps={"any": [(0,)]}, flops=0)
