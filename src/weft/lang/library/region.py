"""Operators that run regions, and the edges, groups and barriers around them: no index space cut.

Each value keeps its own index dimensions: what flows along an edge lies the same on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weft.lang.block import Attributes, Block
from weft.lang.library.pointwise import sign_pointwise
from weft.lang.library.rows import numbered, whole
from weft.lang.notation import Notation, Row
from weft.lang.operator import OPERATORS, Operator
from weft.lang.signature import Signature
from weft.values import Point


def _own(prefix: str, shapes: Iterable[Point]) -> list[tuple[Row, ...]]:
    """Index dimensions of its own for each value."""
    return [numbered(f"{prefix}{n}_", len(shape)) for n, shape in enumerate(shapes)]


def _sizes(prefix: str, shapes: Iterable[Point]) -> dict[str, int]:
    return {
        f"{prefix}{n}_{dim}": size
        for n, shape in enumerate(shapes)
        for dim, size in enumerate(shape)
    }


def sign_straight(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Every operand is a result.

    >>> print(sign_straight([(8, 4), (6,)], {}).notation)
    v0_0 v0_1, v1_0 -> v0_0 v0_1, v1_0
    """
    rows = _own("v", shapes)
    return Signature(Notation(rows, rows), shapes)


def sign_while(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """The carried values, then what the regions take from outside.

    >>> print(sign_while([(8,), (4,)], {"result_shapes": ((8,),)}).notation)
    v0_0, v1_0 -> v0_0
    """
    rows = _own("v", shapes)
    return Signature(Notation(rows, rows[: len(attributes["result_shapes"])]), shapes)


def sign_made_inside(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Results that come out of regions.

    >>> print(sign_made_inside([(), (4,)], {"result_shapes": ((8, 2),)}).notation)
    , v1_0 -> r0_0 r0_1
    """
    results = attributes["result_shapes"]
    line = Notation(_own("v", shapes), _own("r", results))
    return Signature(line, shapes, _sizes("r", results))


def sign_nothing(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """An operand is seen, and nothing is made."""
    return Signature(Notation([map(whole, _sizes("v", shapes))], []), shapes)


def _as_it_is(block: Block, operand: Any) -> Any:
    return operand


def _all(block: Block, *operands: Any) -> tuple[Any, ...]:
    return operands


def _dtypes_of_operands(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return dtypes


def _dtypes_from_inside(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """What the last region returns."""
    return attributes.get("result_dtypes") or dtypes


OPERATORS.add(Operator("while", sign_while, dtypes=_dtypes_of_operands))
OPERATORS.add(
    Operator("optimization_barrier", sign_straight, _all, dtypes=_dtypes_of_operands, flops=0)
)
for _name in ("case", "if", "manual_computation"):
    OPERATORS.add(Operator(_name, sign_made_inside, dtypes=_dtypes_from_inside))
for _name, _sign in (("data_flow_edge", sign_straight), ("propagation_barrier", sign_pointwise)):
    OPERATORS.add(Operator(_name, _sign, _as_it_is, passes="both", keeps={"any": [(0,)]}, flops=0))
OPERATORS.add(Operator("sharding_group", sign_nothing))
