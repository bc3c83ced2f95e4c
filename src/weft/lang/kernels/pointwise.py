"""Kernels of operators that make each element from the elements in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.errors import WeftError
from weft.lang.block import Block, Kernel
from weft.lang.dtype import dtype_name, itemsize, kind
from weft.lang.kernels.dtypes import cast
from weft.lang.kernels.erf import erf_of, erfc_of, gelu_of

Function = Callable[..., Any]


def named(name: str) -> Kernel:
    """The kernel that is a function of the arrays' own library."""
    return lambda block, *operands: getattr(block.xp, name)(*operands)


def of(function: Function) -> Kernel:
    """The kernel that is a function of the namespace and the operands."""
    return lambda block, *operands: function(block.xp, *operands)


def either(name: str, logical: str) -> Kernel:
    """The kernel that is one function of numbers and another of truth values."""

    def kernel(block: Block, *operands: Any) -> Any:
        is_logical = operands[0].dtype == block.xp.bool
        return getattr(block.xp, logical if is_logical else name)(*operands)

    return kernel


def _kind(x: Any) -> str:
    return kind(dtype_name(x.dtype))


def _is_integral(xp: Any, x: Any) -> bool:
    return _kind(x) in ("int", "uint")


def _bits(xp: Any, x: Any) -> int:
    return 8 * itemsize(dtype_name(x.dtype))


def divide(xp: Any, x: Any, y: Any) -> Any:
    """The quotient; of integers, rounded towards zero."""
    if not _is_integral(xp, x):
        return xp.divide(x, y)
    quotient = xp.floor_divide(x, y)
    inexact = (quotient * y != x) & ((x < 0) != (y < 0))
    return quotient + xp.astype(inexact, x.dtype)


def remainder(xp: Any, x: Any, y: Any) -> Any:
    """What is left of a division that rounds towards zero: it has the sign of the dividend."""
    if not _is_integral(xp, x):
        rest = xp.remainder(xp.abs(x), xp.abs(y))
        return xp.where(x < 0, -rest, rest)
    rest = xp.remainder(x, y)
    return xp.where((rest != 0) & ((x < 0) != (y < 0)), rest - y, rest)


def absolute(xp: Any, x: Any) -> Any:
    """The size of each number; those without a sign are their own."""
    return x if _kind(x) in ("bool", "uint") else xp.abs(x)


def power(xp: Any, x: Any, y: Any) -> Any:
    """The power; integers have none with a negative exponent."""
    if _kind(y) == "int" and bool(xp.any(y < 0)):
        raise WeftError(
            "an integer has no power with a negative exponent", hint="convert it to a float first"
        )
    return xp.pow(x, y)


def cbrt(xp: Any, x: Any) -> Any:
    """The cube root."""
    return xp.sign(x) * xp.abs(x) ** (1 / 3)


def rsqrt(xp: Any, x: Any) -> Any:
    """One over the square root."""
    return 1 / xp.sqrt(x)


def logistic(xp: Any, x: Any) -> Any:
    """The sigmoid, from the smaller exponential, which does not overflow."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x < 0, small, xp.ones_like(x)) / (1 + small)


def round_away(xp: Any, x: Any) -> Any:
    """The nearest integer; halves go away from zero."""
    size = xp.abs(x)
    below = xp.floor(size)
    up = (size != below) & (size >= below + 0.5)  # past 2**52, halves are lost in sums
    return xp.sign(x) * xp.where(up, below + 1, below)


def popcnt(xp: Any, x: Any) -> Any:
    """How many bits are set."""
    total = xp.zeros_like(x)
    for bit in range(_bits(xp, x)):
        total = total + ((x >> bit) & 1)
    return total


def count_leading_zeros(xp: Any, x: Any) -> Any:
    """How many bits above the highest that is set."""
    bits = _bits(xp, x)
    count = xp.full(x.shape, bits, dtype=x.dtype)
    for bit in range(bits):
        count = xp.where(((x >> bit) & 1) != 0, xp.full_like(x, bits - 1 - bit), count)
    return count


def _in_range(xp: Any, x: Any, by: Any) -> Any:
    return (by >= 0) & (by < _bits(xp, x))


def shift_left(xp: Any, x: Any, by: Any) -> Any:
    """Bits moved up; moved by too much, nothing is left."""
    fits = _in_range(xp, x, by)
    return xp.where(fits, x << xp.where(fits, by, xp.zeros_like(by)), xp.zeros_like(x))


def shift_right_arithmetic(xp: Any, x: Any, by: Any) -> Any:
    """Bits moved down, the highest filling up, be it a sign or not."""
    most = xp.full_like(by, _bits(xp, x) - 1)
    by = xp.where(_in_range(xp, x, by), by, most)
    if _kind(x) == "int":
        return x >> by
    return xp.where((x >> (_bits(xp, x) - 1)) != 0, ~(~x >> by), x >> by)


def shift_right_logical(xp: Any, x: Any, by: Any) -> Any:
    """Bits moved down, zeros filling up."""
    fits = _in_range(xp, x, by)
    moved = x >> xp.where(fits, by, xp.zeros_like(by))
    if _kind(x) == "int":
        top = xp.full_like(x, xp.iinfo(x.dtype).max)
        kept = xp.where(
            by > 0, top >> xp.where(fits & (by > 0), by - 1, xp.zeros_like(by)), ~(x ^ x)
        )
        moved = moved & kept
    return xp.where(fits, moved, xp.zeros_like(x))


def compare(block: Block, x: Any, y: Any) -> Any:
    """Whether a comparison holds: EQ, NE, LT, LE, GT or GE."""
    names = {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal"}
    names |= {"GT": "greater", "GE": "greater_equal"}
    return getattr(block.xp, names[block.attributes["comparison_direction"]])(x, y)


def convert(block: Block, x: Any) -> Any:
    """The same numbers in another dtype."""
    xp, name = block.xp, block.attributes.get("dtype")
    if name is None:
        return x
    if _kind(x) == "complex" and kind(name) != "complex":
        x = (x != 0) if name == "bool" else xp.real(x)
    return cast(xp, x, name)


def complex_of(xp: Any, real: Any, imag: Any) -> Any:
    """A complex number of two reals."""
    dtype = xp.complex128 if real.dtype == xp.float64 else xp.complex64
    return xp.astype(real, dtype) + xp.astype(imag, dtype) * xp.asarray(1j, dtype=dtype)


def real(xp: Any, x: Any) -> Any:
    """The real part."""
    return xp.real(x) if _kind(x) == "complex" else x


def imag(xp: Any, x: Any) -> Any:
    """The imaginary part."""
    return xp.imag(x) if _kind(x) == "complex" else xp.zeros_like(x)


def select(xp: Any, flag: Any, x: Any, y: Any) -> Any:
    """One operand or the other."""
    return xp.where(flag, x, y)


def clamp(xp: Any, low: Any, x: Any, high: Any) -> Any:
    """The operand, no less than one and no more than another."""
    return xp.minimum(xp.maximum(x, low), high)


def relu(xp: Any, x: Any) -> Any:
    """What is positive."""
    return xp.maximum(x, xp.zeros_like(x))


def silu(xp: Any, x: Any) -> Any:
    """The operand times its sigmoid."""
    return x * logistic(xp, x)


def gelu(xp: Any, x: Any, exact: bool = False) -> Any:
    """The Gaussian error linear unit, by its usual approximation with tanh, or as it is."""
    if exact:
        return gelu_of(xp, x)
    return 0.5 * x * (1 + xp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def square(xp: Any, x: Any) -> Any:
    """The operand times itself."""
    return x * x


def polynomial(block: Block, x: Any) -> Any:
    """A polynomial, from its last coefficient on: of powers, or of Chebyshev's on a range."""
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
    one = two = xp.zeros_like(x)
    for c in coefficients[:0:-1]:
        one, two = 2 * x * one - two + c, one
    return x * one - two + coefficients[0]


def identity(xp: Any, x: Any) -> Any:
    """The operand as it is."""
    return x


_STANDARD = {
    "add": "add",
    "atan2": "atan2",
    "ceil": "ceil",
    "cosine": "cos",
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "floor": "floor",
    "floor_divide": "floor_divide",
    "is_finite": "isfinite",
    "log": "log",
    "log_plus_one": "log1p",
    "maximum": "maximum",
    "minimum": "minimum",
    "mod": "remainder",
    "multiply": "multiply",
    "negate": "negative",
    "round_nearest_even": "round",
    "sign": "sign",
    "sine": "sin",
    "sqrt": "sqrt",
    "subtract": "subtract",
    "tan": "tan",
    "tanh": "tanh",
    "is_inf": "isinf",
    **{name: name for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh")},
}
_OWN: dict[str, Function] = {
    "abs": absolute,
    "cbrt": cbrt,
    "clamp": clamp,
    "complex": complex_of,
    "count_leading_zeros": count_leading_zeros,
    "divide": divide,
    "erf": erf_of,
    "erfc": erfc_of,
    "imag": imag,
    "logistic": logistic,
    "popcnt": popcnt,
    "power": power,
    "real": real,
    "relu": relu,
    "remainder": remainder,
    "round_nearest_afz": round_away,
    "rsqrt": rsqrt,
    "select": select,
    "sharding_constraint": identity,
    "shift_left": shift_left,
    "shift_right_arithmetic": shift_right_arithmetic,
    "shift_right_logical": shift_right_logical,
    "silu": silu,
    "square": square,
}
KERNELS: dict[str, Kernel] = {
    **{name: named(function) for name, function in _STANDARD.items()},
    **{name: of(function) for name, function in _OWN.items()},
    "and": either("bitwise_and", "logical_and"),
    "or": either("bitwise_or", "logical_or"),
    "xor": either("bitwise_xor", "logical_xor"),
    "not": either("bitwise_invert", "logical_not"),
    "compare": compare,
    "convert": convert,
    "gelu": lambda block, x: gelu(block.xp, x, block.attributes.get("exact", False)),
    "polynomial": polynomial,
}
"""The kernels of the pointwise operators, by name; `reduce_precision` has none."""
