"""ATen's pointwise operators."""

from __future__ import annotations

from typing import Any

from weft.interop.aten import TABLE, AtenNode, Converter, converts
from weft.lang import Symbol, ops
from weft.lang.arithmetic import apply

_SAME = """
    abs ceil cos=cosine erf exp=exponential expm1=exponential_minus_one floor log
    log1p=log_plus_one neg=negate relu round=round_nearest_even rsqrt sigmoid=logistic sign silu
    sin=sine sqrt tan tanh trunc acos acosh asin asinh atan atanh cosh erfc sinh
    maximum minimum atan2 mul=multiply fmod=remainder
"""
"""Those that are one operator on operands of the dtype of the result."""

_COMPARED = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_LOGIC = {"and": "and", "or": "or", "xor": "xor"}


def _same(name: str) -> Converter:
    def convert(node: AtenNode, *operands: Any) -> Symbol:
        result: Symbol = apply(name, *_tensors(node, operands, node.dtype))
        return result

    return convert


def _compared(direction: str) -> Converter:
    def convert(node: AtenNode, x: Any, y: Any) -> Symbol:
        pair = _tensors(node, (x, y), node.common)
        result: Symbol = apply("compare", *pair, comparison_direction=direction)
        return result

    return convert


def _logical(name: str) -> Converter:
    def convert(node: AtenNode, x: Any, y: Any) -> Symbol:
        result: Symbol = apply(name, _is_set(node, x), _is_set(node, y))
        return result

    return convert


def _tensors(node: AtenNode, operands: tuple[Any, ...], dtype: str) -> list[Any]:
    return [node.cast(x, dtype) for x in operands]


def _is_set(node: AtenNode, x: Symbol) -> Symbol:
    """Return whether elements are not zero."""
    if x.dtype == "bool":
        return x
    result: Symbol = apply("compare", x, node.cast(0, x.dtype), comparison_direction="NE")
    return result


for _word in _SAME.split():
    _name, _, _other = _word.partition("=")
    TABLE[_name] = _same(_other or _name)
for _name, _direction in _COMPARED.items():
    TABLE[_name] = _compared(_direction)
for _name in ("__lshift__", "bitwise_left_shift"):
    TABLE[_name] = _same("shift_left")
for _name in ("__rshift__", "bitwise_right_shift"):
    TABLE[_name] = lambda node, x, y: ops.bitwise_right_shift(*_tensors(node, (x, y), node.dtype))
for _name, _other in _LOGIC.items():
    TABLE[f"bitwise_{_name}"] = _same(_other)
    TABLE[f"logical_{_name}"] = _logical(_other)


@converts("add")
def add(node: AtenNode, x: Any, y: Any, alpha: Any = 1) -> Any:
    """Add; the second operand may be scaled."""
    return node.cast(x) + _scaled(node, y, alpha)


@converts("sub")
def sub(node: AtenNode, x: Any, y: Any, alpha: Any = 1) -> Any:
    """Subtract; the second operand may be scaled."""
    return node.cast(x) - _scaled(node, y, alpha)


def _scaled(node: AtenNode, x: Any, by: Any) -> Any:
    x = node.cast(x)
    return x if by == 1 else x * node.cast(by)


@converts("div")
def div(node: AtenNode, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    """Divide; quotients may be rounded towards zero or down."""
    x, y = _symbol(node, x), _symbol(node, y)
    (quotient,) = node.tracer.apply("divide", (x, y), {})
    if rounding_mode is None:
        return quotient
    if "float" in node.dtype:
        return x // y if rounding_mode == "floor" else apply("trunc", quotient)
    return (
        quotient - _rounds_down(x, y).astype(node.dtype) if rounding_mode == "floor" else quotient
    )


@converts("remainder")
def remainder(node: AtenNode, x: Any, y: Any) -> Any:
    """Return the remainder of a division that rounds down: the sign of the divisor."""
    x, y = _symbol(node, x), _symbol(node, y)
    rest = apply("remainder", x, y)
    return node.choose(_rounds_down(x, y), rest + y, rest)


def _rounds_down(x: Symbol, y: Symbol) -> Symbol:
    """Return where a division has a remainder, and its operands have different signs."""
    rest = apply("remainder", x, y)
    is_left = apply("compare", rest, 0, comparison_direction="NE")
    result: Symbol = is_left & apply("xor", rest < 0, y < 0)
    return result


def _symbol(node: AtenNode, x: Any) -> Symbol:
    return node.cast(x) if isinstance(x, Symbol) else node.constant(node.cast(x))


@converts("pow")
def power(node: AtenNode, x: Any, y: Any) -> Any:
    """Return powers; squares and square roots have operators of their own."""
    x = node.cast(x)
    if isinstance(y, int | float) and y == 2:
        return apply("square", x)
    if isinstance(y, int | float) and y == 0.5:
        return apply("sqrt", x)
    return apply("power", x, node.cast(y))


@converts("clamp", "hardtanh")
def clamp(node: AtenNode, x: Any, low: Any = None, high: Any = None, **limits: Any) -> Any:
    """Limit to a range; either end may be None."""
    low, high = limits.get("min", low), limits.get("max", high)
    x = node.cast(x)
    x = x if low is None else apply("maximum", x, node.cast(low))
    return x if high is None else apply("minimum", x, node.cast(high))


@converts("elu")
def elu(node: AtenNode, x: Symbol, alpha: float = 1, scale: float = 1, by: float = 1) -> Any:
    """Replace negative elements by an exponential minus one."""
    low = apply("exponential_minus_one", apply("minimum", x, 0.0) * by) * alpha
    return node.choose(x > 0.0, x, low) * scale


TABLE |= {
    "reciprocal": lambda node, x: 1.0 / node.cast(x),
    "logical_not": lambda node, x: ~_is_set(node, x),
    "bitwise_not": lambda node, x: ~x,
    "isnan": lambda node, x: ops.isnan(x),
    "isinf": lambda node, x: ops.isinf(x),
    "gelu": lambda node, x, approximate="none": ops.gelu(x, exact=approximate == "none"),
    "where": lambda node, flag, x, y: node.choose(flag, node.cast(x), node.cast(y)),
    "leaky_relu": lambda node, x, slope=0.01: node.choose(x > 0.0, x, x * slope),
    "_to_copy": lambda node, x, *_, **__: node.cast(x),
    "_conj": lambda node, x: ops.conj(x),
    "complex": lambda node, x, y: apply("complex", x, y),
    "polar": lambda node, x, y: apply("complex", x * ops.cos(y), x * ops.sin(y)),
    "view_as_complex": lambda node, x: apply("complex", x[..., 0], x[..., 1]),
    "view_as_real": lambda node, x: ops.stack([ops.real(x), ops.imag(x)], -1),
    "clone": lambda node, x, **_: x,
    "alias": lambda node, x: x,
}
