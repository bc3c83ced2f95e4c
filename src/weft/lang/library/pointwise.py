"""Operators that make each element from the elements in its place: axes pass through both ways."""

from __future__ import annotations

from collections.abc import Sequence

from weft.lang.library.rows import numbered
from weft.lang.notation import Notation
from weft.lang.operator import OPERATORS, Attributes, Operator
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


def sign_pointwise(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """All operands and the result alike.

    >>> print(sign_pointwise([(8, 4), (8, 4)], {}).notation)
    i0 i1, i0 i1 -> i0 i1
    """
    dims = numbered("i", len(shapes[0]))
    return Signature(Notation([dims] * len(shapes), [dims]), shapes)


def sign_with_scalars(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """As above, and an operand may be a scalar, though not the middle one.

    >>> print(sign_with_scalars([(), (8, 4), (8, 4)], {}).notation)
    , i0 i1, i0 i1 -> i0 i1
    """
    dims = numbered("i", len(shapes[1]))
    return Signature(Notation([dims if shape else () for shape in shapes], [dims]), shapes)


for _name in POINTWISE:
    OPERATORS.add(Operator(_name, sign_pointwise, passes="both"))
OPERATORS.add(Operator("sharding_constraint", sign_pointwise, passes="both"))
for _name in ("select", "clamp"):
    OPERATORS.add(Operator(_name, sign_with_scalars, passes="both"))
