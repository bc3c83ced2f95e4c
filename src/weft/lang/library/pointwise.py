"""Operators that make each element from the elements in its place: axes pass through both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.kernels.pointwise import KERNELS
from weft.lang.library.rows import aligned
from weft.lang.notation import Notation
from weft.lang.operator import OPERATORS, Dtypes, Group, Operator
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

_OWN = ("gelu", "relu", "silu", "sharding_constraint")

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


def _alike(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    if len(set(dtypes)) > 1:
        raise WeftError(
            f"the operands are of {' and '.join(dtypes)}", hint="convert one of them to the other"
        )
    return [attributes.get("dtype") or dtypes[0]]


def _is_true(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    _alike(dtypes, {})
    return ["bool"]


def _complex(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return ["complex128" if _alike(dtypes, {})[0] == "float64" else "complex64"]


def _real(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return [{"complex64": "float32", "complex128": "float64"}.get(dtypes[0], dtypes[0])]


def _chosen(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return _alike(dtypes[1:], attributes)


_DTYPES: dict[str, Dtypes] = {
    "abs": _real,
    "compare": _is_true,
    "complex": _complex,
    "imag": _real,
    "is_finite": _is_true,
    "is_inf": _is_true,
    "real": _real,
    "select": _chosen,
}
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
            dtypes=_DTYPES.get(_name, _alike),
        )
    )

OPERATORS.add(
    Operator(
        "polynomial",
        sign_polynomial,
        KERNELS["polynomial"],
        passes="both",
        flops=_of_polynomial,
        dtypes=_alike,
    )
)
