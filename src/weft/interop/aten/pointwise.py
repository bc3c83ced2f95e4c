"""ATen's operators that make each element from the elements in its place."""

from __future__ import annotations

from typing import Any

from weft.interop.aten.table import TABLE, Said, To, refuse, says
from weft.lang import Symbol, ops
from weft.lang.arithmetic import apply

_SAME = """
    abs ceil cos=cosine erf exp=exponential expm1=exponential_minus_one floor log
    log1p=log_plus_one neg=negate relu round=round_nearest_even rsqrt sigmoid=logistic sign silu
    sin=sine sqrt tan tanh acos acosh asin asinh atan atanh cosh erfc sinh
    maximum minimum atan2 mul=multiply fmod=remainder
"""
"""Those that are one operator on operands of the dtype of the result."""

_COMPARED = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_LOGIC = {"and": "and", "or": "or", "xor": "xor"}


def _same(name: str) -> Said:
    def said(to: To, *operands: Any) -> Symbol:
        found: Symbol = apply(name, *_tensors(to, operands, to.dtype))
        return found

    return said


def _compared(direction: str) -> Said:
    def said(to: To, x: Any, y: Any) -> Symbol:
        pair = _tensors(to, (x, y), to.common)
        found: Symbol = apply("compare", *pair, comparison_direction=direction)
        return found

    return said


def _logical(name: str) -> Said:
    def said(to: To, x: Any, y: Any) -> Symbol:
        found: Symbol = apply(name, _is_set(to, x), _is_set(to, y))
        return found

    return said


def _tensors(to: To, operands: tuple[Any, ...], dtype: str) -> list[Any]:
    return [to.cast(x, dtype) for x in operands]


def _is_set(to: To, x: Symbol) -> Symbol:
    """Whether elements are not zero."""
    if x.dtype == "bool":
        return x
    found: Symbol = apply("compare", x, to.cast(0, x.dtype), comparison_direction="NE")
    return found


for _word in _SAME.split():
    _name, _, _other = _word.partition("=")
    TABLE[_name] = _same(_other or _name)
for _name, _direction in _COMPARED.items():
    TABLE[_name] = _compared(_direction)
for _name, _other in _LOGIC.items():
    TABLE[f"bitwise_{_name}"] = _same(_other)
    TABLE[f"logical_{_name}"] = _logical(_other)


@says("add")
def add(to: To, x: Any, y: Any, alpha: Any = 1) -> Any:
    """A sum; the second operand may be scaled."""
    return to.cast(x) + _scaled(to, y, alpha)


@says("sub")
def sub(to: To, x: Any, y: Any, alpha: Any = 1) -> Any:
    """A difference; the second operand may be scaled."""
    return to.cast(x) - _scaled(to, y, alpha)


def _scaled(to: To, x: Any, by: Any) -> Any:
    x = to.cast(x)
    return x if by == 1 else x * to.cast(by)


@says("div")
def div(to: To, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    """A quotient; of integers it may be rounded towards zero or down."""
    x, y = _symbol(to, x), _symbol(to, y)
    (quotient,) = to.tracer.apply("divide", (x, y), {})
    if rounding_mode is None:
        return quotient
    if "float" in to.dtype:
        raise refuse(f"a quotient of {to.dtype} that is rounded ({rounding_mode})")
    return quotient - _apart(x, y).astype(to.dtype) if rounding_mode == "floor" else quotient


@says("remainder")
def remainder(to: To, x: Any, y: Any) -> Any:
    """What is left of a division that rounds down: it has the sign of the divisor."""
    x, y = _symbol(to, x), _symbol(to, y)
    rest = apply("remainder", x, y)
    return to.choose(_apart(x, y), rest + y, rest)


def _apart(x: Symbol, y: Symbol) -> Symbol:
    """Where a division is not whole, and its operands are of different signs."""
    rest = apply("remainder", x, y)
    is_left = apply("compare", rest, 0, comparison_direction="NE")
    found: Symbol = is_left & apply("xor", rest < 0, y < 0)
    return found


def _symbol(to: To, x: Any) -> Symbol:
    return to.cast(x) if isinstance(x, Symbol) else to.constant(to.cast(x))


@says("reciprocal")
def reciprocal(to: To, x: Symbol) -> Any:
    """One over each element."""
    return 1.0 / to.cast(x)


@says("pow")
def power(to: To, x: Any, y: Any) -> Any:
    """A power; small whole ones are products."""
    x = to.cast(x)
    if isinstance(y, int | float) and y == 2:
        return apply("square", x)
    if isinstance(y, int | float) and y == 0.5:
        return apply("sqrt", x)
    return apply("power", x, to.cast(y))


@says("logical_not")
def logical_not(to: To, x: Symbol) -> Any:
    """Whether elements are zero."""
    return ~_is_set(to, x)


@says("bitwise_not")
def bitwise_not(to: To, x: Symbol) -> Any:
    """The other bits."""
    return ~x


@says("isnan")
def isnan(to: To, x: Symbol) -> Any:
    """Whether elements are no numbers: what is not equal to itself."""
    return apply("compare", x, x, comparison_direction="NE")


@says("isinf")
def isinf(to: To, x: Symbol) -> Any:
    """Whether elements are infinite."""
    return apply("is_inf", x)


@says("gelu")
def gelu(to: To, x: Symbol, approximate: str = "none") -> Any:
    """The Gaussian error linear unit, exact or with tanh."""
    return ops.gelu(x, exact=approximate == "none")


@says("where")
def where(to: To, flag: Symbol, x: Any, y: Any) -> Any:
    """One operand or the other."""
    return to.choose(flag, to.cast(x), to.cast(y))


@says("clamp", "hardtanh")
def clamp(to: To, x: Any, low: Any = None, high: Any = None, **said: Any) -> Any:
    """No less than one, and no more than another."""
    low, high = said.get("min", low), said.get("max", high)
    x = to.cast(x)
    x = x if low is None else apply("maximum", x, to.cast(low))
    return x if high is None else apply("minimum", x, to.cast(high))


@says("leaky_relu")
def leaky_relu(to: To, x: Symbol, slope: float = 0.01) -> Any:
    """What is negative scaled."""
    return to.choose(x > 0.0, x, x * slope)


@says("elu")
def elu(to: To, x: Symbol, alpha: float = 1, scale: float = 1, by: float = 1) -> Any:
    """What is negative as an exponential less one."""
    low = apply("exponential_minus_one", apply("minimum", x, 0.0) * by) * alpha
    return to.choose(x > 0.0, x, low) * scale


@says("_to_copy")
def to_copy(to: To, x: Symbol, *_: Any, **said: Any) -> Any:
    """The same numbers in another dtype."""
    return to.cast(x)


@says("clone", "alias")
def same(to: To, x: Symbol, **_: Any) -> Any:
    """The operand as it is."""
    return x
