"""Reductions along dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.kernels import reduce as kernels
from weft.lang.library.rows import numbered
from weft.lang.notation import CUSTOM, Notation, Row
from weft.lang.operator import OPERATORS, Operator, Sign
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


def sign_along(monoid: str) -> Sign:
    """What reduces along `dimensions`, which stay as single ones if `keep` says so.

    >>> print(sign_along("max")([(8, 4)], {"dimensions": (-1,), "keep": True}).notation)
    i0 i1 -> i0 1  max: i1
    """

    def sign(shapes: Sequence[Point], attributes: Attributes) -> Signature:
        (shape,), given = shapes, attributes["dimensions"]
        if any(not -len(shape) <= dim < len(shape) for dim in given):
            raise WeftError(f"{list(shape)} has no such dimensions: {tuple(given)}")
        across = {dim % len(shape) for dim in given}
        dims = numbered("i", len(shape))
        made = [
            Row() if dim in across else row
            for dim, row in enumerate(dims)
            if dim not in across or attributes.get("keep")
        ]
        reduced = {f"i{dim}": monoid for dim in sorted(across)}
        return Signature(Notation([dims], [made], reduced), shapes)

    return sign


OPERATORS.add(Operator("reduce", sign_reduce, kernels.reduce, keeps={"own": [...]}))
for _name, _monoid in (
    *(("sum_dim", "sum"), ("mean_dim", "sum"), ("prod_dim", "prod"), ("max_dim", "max")),
    *(("min_dim", "min"), ("all_dim", "and"), ("any_dim", "or"), ("logsumexp_dim", "logsumexp")),
):
    OPERATORS.add(
        Operator(
            _name,
            sign_along(_monoid),
            kernels.along(_monoid, mean=_name == "mean_dim"),
            keeps={"own": [(0,)]},
        )
    )
