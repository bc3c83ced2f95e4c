"""Operators that run regions, and the edges, groups and barriers around them.

Their index space is not cut. Each value has its own index dimensions: what flows along an edge has
the same sharding on both sides.

    while   v0_0, v1_0 -> v0_0       carried values, then what the regions capture
    case    , v1_0 -> r0_0 r0_1      results come out of the branches
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weft.lang.kernel import Attributes, Block
from weft.lang.notation import Notation, Row, numbered, whole
from weft.lang.operator import define
from weft.lang.operators.pointwise import sign_pointwise
from weft.lang.signature import Signature
from weft.values import Point


def _separate_rows(prefix: str, shapes: Iterable[Point]) -> list[tuple[Row, ...]]:
    """Return index dimensions of its own for each value."""
    return [numbered(f"{prefix}{n}_", len(shape)) for n, shape in enumerate(shapes)]


def _sizes(prefix: str, shapes: Iterable[Point]) -> dict[str, int]:
    return {
        f"{prefix}{n}_{dim}": size
        for n, shape in enumerate(shapes)
        for dim, size in enumerate(shape)
    }


def sign_straight(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign results that are the operands.

    >>> print(sign_straight([(8, 4), (6,)], {}).notation)
    v0_0 v0_1, v1_0 -> v0_0 v0_1, v1_0
    """
    rows = _separate_rows("v", shapes)
    return Signature(Notation(rows, rows), shapes)


def sign_while(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign the carried values, then what the regions capture.

    >>> print(sign_while([(8,), (4,)], {"result_shapes": ((8,),)}).notation)
    v0_0, v1_0 -> v0_0
    """
    rows = _separate_rows("v", shapes)
    return Signature(Notation(rows, rows[: len(attributes["result_shapes"])]), shapes)


def sign_region_results(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign results that come out of regions.

    >>> print(sign_region_results([(), (4,)], {"result_shapes": ((8, 2),)}).notation)
    , v1_0 -> r0_0 r0_1
    """
    results = attributes["result_shapes"]
    line = Notation(_separate_rows("v", shapes), _separate_rows("r", results))
    return Signature(line, shapes, _sizes("r", results))


def sign_no_result(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign an operand without a result."""
    return Signature(Notation([map(whole, _sizes("v", shapes))], []), shapes)


def _return_operand(block: Block, operand: Any) -> Any:
    return operand


def _return_operands(block: Block, *operands: Any) -> tuple[Any, ...]:
    return operands


def _dtypes_of_operands(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return dtypes


def _dtypes_of_regions(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtypes of the last region's outputs."""
    return attributes.get("result_dtypes") or dtypes


_RESULTS = "result_shapes result_dtypes enters"
define("while", sign_while, dtypes=_dtypes_of_operands, attributes=_RESULTS)
define(
    "optimization_barrier",
    sign_straight,
    _return_operands,
    dtypes=_dtypes_of_operands,
    flops=0,
    attributes=_RESULTS,
)
for _name in ("case", "if"):
    define(_name, sign_region_results, dtypes=_dtypes_of_regions, attributes=_RESULTS)
define(
    "manual_computation",
    sign_region_results,
    dtypes=_dtypes_of_regions,
    attributes="in_shardings out_shardings manual_axes result_shapes result_dtypes enters",
)
for _name, _sign, _attributes in (
    ("data_flow_edge", sign_straight, "enters"),
    ("propagation_barrier", sign_pointwise, "allowed_direction"),
):
    define(
        _name,
        _sign,
        _return_operand,
        passes="both",
        keeps={"any": [(0,)]},
        flops=0,
        attributes=_attributes,
    )
define("sharding_group", sign_no_result, attributes="group_id")
