"""Operators that make each element from the elements in its place: axes pass through both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang.block import Attributes
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
    for_kinds,
    kind,
    like_all,
    like_first,
    real_dtype,
    result_type,
    separate,
    together,
    truth,
)
from weft.lang.kernels.dtypes import Accumulates
from weft.lang.kernels.pointwise import KERNELS
from weft.lang.library.rows import aligned
from weft.lang.notation import Notation
from weft.lang.operator import OPERATORS, Group, Operator
from weft.lang.signature import Signature
from weft.values import Point

_NAMES = """
    abs add and atan2 cbrt ceil compare complex convert cosine count_leading_zeros divide
    exponential exponential_minus_one floor imag is_finite log log_plus_one logistic maximum
    minimum multiply negate not or popcnt power real reduce_precision remainder round_nearest_afz
    round_nearest_even rsqrt shift_left shift_right_arithmetic shift_right_logical sign sine sqrt
    subtract tan tanh xor
"""

POINTWISE = tuple(_NAMES.split())
"""The names of those whose operands all have one shape."""

_OWN = ("floor_divide", "gelu", "mod", "relu", "silu", "sharding_constraint")

_CHLO = """
    acos acosh asin asinh atan atanh cosh erf erfc is_inf sinh square
"""
"""Those that XLA spells out before Shardy sees them."""


def sign_pointwise(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """All operands and the result alike, but that single or missing leading dimensions repeat.

    >>> print(sign_pointwise([(8, 4), (8, 4)], {}).notation)
    i0 i1, i0 i1 -> i0 i1
    >>> print(sign_pointwise([(8, 4), (1, 4), (4,), ()], {}).notation)
    i0 i1, 1 i1, i1,  -> i0 i1
    """
    operands, made = aligned("i", shapes)
    return Signature(Notation(operands, [made]), shapes)


def sign_polynomial(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """One operand, and the coefficients of a polynomial, the constant first.

    They are those of the powers, or, with `low` and `high`, those of Chebyshev's polynomials of
    this range, which is where the polynomial is meant for. `name` may say what it stands for.

    >>> print(sign_polynomial([(8, 4)], {"coefficients": (0.0, 0.5, 0.25)}).notation)
    i0 i1 -> i0 i1
    """
    coefficients, low, high = attributes["coefficients"], *map(attributes.get, ("low", "high"))
    if len(shapes) != 1 or not coefficients:
        raise WeftError(
            f"a polynomial has {len(coefficients)} coefficients, {len(shapes)} operands"
        )
    if (low is None) != (high is None) or (low is not None and not low < high):
        raise WeftError(f"a polynomial is meant for a range from low to high, got {low} to {high}")
    return sign_pointwise(shapes, attributes)


def _of_polynomial(line: Signature, attributes: Attributes) -> float:
    """A product and a sum for each coefficient but one."""
    return 2.0 * (len(attributes["coefficients"]) - 1)


_KEEPS: dict[str, Mapping[str, Sequence[Group]]] = {
    "add": {"sum": [(0, 1)]},
    "subtract": {"sum": [(0, 1)]},
    "negate": {"sum": [(0,)]},
    "multiply": {"sum": [(0,), (1,)], "prod": [(0, 1)]},
    "complex": {"sum": [(0, 1)]},
    "real": {"sum": [(0,)]},
    "imag": {"sum": [(0,)]},
    "maximum": {"max": [(0, 1)]},
    "minimum": {"min": [(0, 1)]},
    "and": {"and": [(0, 1)]},
    "or": {"or": [(0, 1)]},
    "select": {"any": [(1, 2)]},
    "clamp": {"max": [(1,)], "min": [(1,)]},
    "sharding_constraint": {"any": [(0,)]},
    **{
        name: {"max": [(0,)], "min": [(0,)]}
        for name in (
            *("cbrt", "ceil", "exponential", "exponential_minus_one", "floor", "logistic"),
            *("relu", "round_nearest_afz", "round_nearest_even", "sign", "tanh"),
        )
    },
    **{name: {"min": [(0,)]} for name in ("log", "log_plus_one", "sqrt")},
}
"""What stays partial: sums through what is linear, extremes through what never falls (and is
defined for every part: of a maximum some parts may be negative)."""


_REAL, _NUMBER = "int uint float", "int uint float complex"
_ANY, _BITS = "bool int uint float complex", "bool int uint"
_FLOAT, _FLOATS = "float", "float complex"


def _compared(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Complex numbers are equal or not, and neither is less than the other."""
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
        raise WeftError(f"a condition is bool, not {dtypes[0]}", hint="compare it with zero")
    return like_all(dtypes[1:], attributes)


def _converted(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return [as_dtype(attributes["dtype"]) if attributes.get("dtype") else dtypes[0]]


def _parts(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert two parts to those of the complex dtype that holds them."""
    return [real_dtype(complex_dtype(result_type(*operands)))] * len(operands)


class _Types(NamedTuple):
    """How an operator treats dtypes."""

    dtypes: Dtypes
    conversion: Conversion = together
    accumulates: Accumulates = ""


def _types(names: str, types: _Types) -> dict[str, _Types]:
    return dict.fromkeys(names.split(), types)


_TYPES: dict[str, _Types] = {
    **_types("add multiply", _Types(for_kinds(_ANY))),
    **_types("subtract negate sign square power", _Types(for_kinds(_NUMBER))),
    **_types("and or xor not", _Types(for_kinds(_BITS))),
    **_types("maximum minimum clamp ceil floor", _Types(for_kinds("bool int uint float"))),
    **_types("floor_divide mod relu remainder round_nearest_even", _Types(for_kinds(_REAL))),
    **_types(
        "count_leading_zeros popcnt shift_left shift_right_arithmetic shift_right_logical",
        _Types(for_kinds("int uint")),
    ),
    **_types(
        "cosine exponential exponential_minus_one log log_plus_one sine sqrt tan tanh acos acosh "
        "asin asinh atan atanh cosh sinh",
        _Types(for_kinds(_FLOATS), as_floats),
    ),
    **_types(
        "atan2 cbrt erf erfc gelu logistic reduce_precision round_nearest_afz rsqrt silu",
        _Types(for_kinds(_FLOAT), as_floats, "always"),
    ),
    "divide": _Types(for_kinds(_NUMBER), as_quotients),
    "abs": _Types(for_kinds(_ANY, _real_part)),
    "real": _Types(for_kinds(_ANY, _real_part)),
    "imag": _Types(for_kinds(_ANY, _real_part)),
    "complex": _Types(_of_parts, _parts),
    "compare": _Types(_compared, as_compared),
    "is_finite": _Types(for_kinds(_ANY, truth), separate),
    "is_inf": _Types(for_kinds(_ANY, truth), separate),
    "select": _Types(_chosen, as_choice),
    "convert": _Types(_converted, separate),
    "sharding_constraint": _Types(like_first, separate),
}
"""The operators by what they do to dtypes."""

_FREE = frozenset(["convert", "select", "sharding_constraint", "real", "imag", "complex"])
"""Those that compute nothing."""

for _name in (*POINTWISE, *_CHLO.split(), *_OWN, "select", "clamp"):
    OPERATORS.add(
        Operator(
            _name,
            sign_pointwise,
            KERNELS.get(_name),
            passes="both",
            keeps=_KEEPS.get(_name, {}),
            flops=0 if _name in _FREE else 1,
            dtypes=_TYPES[_name].dtypes,
            conversion=_TYPES[_name].conversion,
            accumulates=_TYPES[_name].accumulates,
        )
    )

OPERATORS.add(
    Operator(
        "polynomial",
        sign_polynomial,
        KERNELS["polynomial"],
        passes="both",
        flops=_of_polynomial,
        dtypes=for_kinds(_FLOATS),
        conversion=as_quotients,
        accumulates="always",
    )
)
