"""Reductions along dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.dtype import (
    as_flags,
    as_floats,
    averaged,
    for_kinds,
    like_all,
    separate,
    summed,
)
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
        is_made = all(size for dim, size in enumerate(shape) if dim not in across)
        if monoid in ("max", "min") and is_made and any(shape[dim] == 0 for dim in across):
            raise WeftError(f"there is no {monoid} of no elements: {list(shape)} along {given}")
        dims = numbered("i", len(shape))
        made = [
            Row() if dim in across else row
            for dim, row in enumerate(dims)
            if dim not in across or attributes.get("keep")
        ]
        reduced = {f"i{dim}": monoid for dim in sorted(across)}
        return Signature(Notation([dims], [made], reduced), shapes)

    return sign


def each_input(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtypes of the inputs, which the initial values have too."""
    for dtype, init in zip(dtypes, dtypes[len(dtypes) // 2 :]):
        like_all([dtype, init], {})
    return dtypes[: len(dtypes) // 2]


_NUMBERS, _ORDERED = "bool int uint float complex", "bool int uint float"

OPERATORS.add(
    Operator("reduce", sign_reduce, kernels.reduce, keeps={"own": [...]}, dtypes=each_input)
)
for _name, _monoid, _dtypes, _conversion in (
    ("sum_dim", "sum", for_kinds(_NUMBERS, summed), separate),
    ("prod_dim", "prod", for_kinds(_NUMBERS, summed), separate),
    ("mean_dim", "sum", for_kinds(_NUMBERS, averaged), separate),
    ("max_dim", "max", for_kinds(_ORDERED), separate),
    ("min_dim", "min", for_kinds(_ORDERED), separate),
    ("all_dim", "and", for_kinds("bool"), as_flags),
    ("any_dim", "or", for_kinds("bool"), as_flags),
    ("logsumexp_dim", "logsumexp", for_kinds("float"), as_floats),
):
    OPERATORS.add(
        Operator(
            _name,
            sign_along(_monoid),
            kernels.along(_monoid, _dtypes, mean=_name == "mean_dim"),
            keeps={"own": [(0,)]},
            dtypes=_dtypes,
            conversion=_conversion,
        )
    )
