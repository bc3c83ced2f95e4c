"""Operators that a program uses to talk between devices itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.lang.block import Attributes
from weft.lang.library.pointwise import sign_pointwise
from weft.lang.library.rows import numbered, whole
from weft.lang.notation import Notation
from weft.lang.operator import OPERATORS, Operator
from weft.lang.signature import Signature
from weft.values import Point


def sign_all(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """As many results as operands, all of one shape."""
    dims = numbered("i", len(shapes[0]))
    return Signature(Notation([dims] * len(shapes), [dims] * len(shapes)), shapes)


def keep_but(shapes: Sequence[Point], result: Point, changed: Collection[int]) -> Signature:
    """Operands and results that share all dimensions but some, which are seen whole.

    >>> print(keep_but([(8, 4)], (16, 4), [0]))
    [i0] j1 -> [o0] j1  {o0=16, j1=4, i0=8}
    """
    kept = numbered("j", len(result))
    operand = [whole(f"i{dim}") if dim in changed else row for dim, row in enumerate(kept)]
    made = [whole(f"o{dim}") if dim in changed else row for dim, row in enumerate(kept)]
    sizes = {f"o{dim}": result[dim] for dim in changed}
    return Signature(Notation([operand] * len(shapes), [made] * len(shapes)), shapes, sizes)


def sign_all_gather(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Whole along the dimension in which the parts are put together."""
    return keep_but(shapes, attributes["result_shape"], [attributes["all_gather_dim"]])


def sign_reduce_scatter(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Whole along the dimension that is handed out."""
    return keep_but(shapes, attributes["result_shape"], [attributes["scatter_dimension"]])


def sign_all_to_all(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Whole along both dimensions."""
    changed = {attributes["split_dimension"], attributes["concat_dimension"]}
    return keep_but(shapes, attributes["result_shape"], sorted(changed))


OPERATORS.add(Operator("all_reduce", sign_all))
OPERATORS.add(Operator("collective_broadcast", sign_pointwise))
OPERATORS.add(Operator("collective_permute", sign_pointwise))
OPERATORS.add(Operator("cross-replica-sum", sign_pointwise))
OPERATORS.add(Operator("all_gather", sign_all_gather))
OPERATORS.add(Operator("reduce_scatter", sign_reduce_scatter))
OPERATORS.add(Operator("all_to_all", sign_all_to_all))
