"""Reductions along dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from weft.lang.library.rows import numbered
from weft.lang.notation import CUSTOM, Notation
from weft.lang.operator import OPERATORS, Attributes, Operator
from weft.lang.signature import Signature
from weft.values import Point


def monoid_of(attributes: Attributes) -> str:
    """The monoid of a region, or `custom` if it is none that we know.

    >>> monoid_of({"monoid": "max"}), monoid_of({"monoid": "sum", "region": "custom"})
    ('max', 'custom')
    """
    monoid: str = attributes.get("monoid", "sum")
    return CUSTOM if attributes.get("region") in ("custom", "replace") else monoid


def sign_reduce(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Inputs of one shape, then as many initial values, which count once.

    >>> print(sign_reduce([(8, 4), ()], {"dimensions": (1,), "monoid": "max"}).notation)
    i0 i1, +  -> i0  max: i1
    """
    count = len(shapes) // 2
    dims = numbered("i", len(shapes[0]))
    across = attributes["dimensions"]
    kept = [row for dim, row in enumerate(dims) if dim not in across]
    reduced = dict.fromkeys((f"i{dim}" for dim in sorted(across)), monoid_of(attributes))
    operands = [dims] * count + [()] * count
    line = Notation(operands, [kept] * count, reduced, once=range(count, 2 * count))
    return Signature(line, shapes)


OPERATORS.add(Operator("reduce", sign_reduce))
