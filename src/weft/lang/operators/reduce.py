"""Reductions along dimensions.

sum_dim         i0 i1 -> i0                sum: i1
reduce          i0 i1, + -> i0             max: i1    (initial values count once)
reduce_blocks   i0 3*b+t -> i0 b           sum: t     (each block by itself)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import (
    Dtypes,
    accumulator,
    as_flags,
    as_floats,
    averaged,
    dtype_name,
    for_kinds,
    like_all,
    like_first,
    separate,
    summed,
)
from weft.lang.kernel import Attributes, Block, Kernel, along, cast, summing
from weft.lang.monoid import combination, reduction
from weft.lang.notation import CUSTOM, Notation, Row, axis_of, numbered
from weft.lang.operator import Sign, define
from weft.lang.signature import Signature
from weft.space import BlockGrid
from weft.values import Point


def sign_reduction(monoid: str) -> Sign:
    """Return the signature rule of a reduction along `dimensions`, kept as 1 with `keepdims`.

    >>> print(sign_reduction("max")([(8, 4)], {"dimensions": (-1,), "keepdims": True}).notation)
    i0 i1 -> i0 1  max: i1
    """

    def sign(shapes: Sequence[Point], attributes: Attributes) -> Signature:
        (shape,), given = shapes, attributes["dimensions"]
        if any(not -len(shape) <= dim < len(shape) for dim in given):
            raise WeftError(f"{list(shape)} has no such dimensions: {tuple(given)}")
        across = {dim % len(shape) for dim in given}
        has_results = all(size for dim, size in enumerate(shape) if dim not in across)
        if monoid in ("max", "min") and has_results and any(shape[dim] == 0 for dim in across):
            raise WeftError(f"{monoid} of no elements: {list(shape)} along {given}")
        dims = numbered("i", len(shape))
        result = [
            Row() if dim in across else row
            for dim, row in enumerate(dims)
            if dim not in across or attributes.get("keepdims")
        ]
        reduced = {f"i{dim}": monoid for dim in sorted(across)}
        return Signature(Notation([dims], [result], reduced), shapes)

    return sign


def reducing(monoid: str, dtypes: Dtypes, mean: bool = False) -> Kernel:
    """Return the kernel of a reduction along `dimensions`.

    A mean divides by the size of the whole array, so that the means of parts add up.
    """

    def kernel(block: Block, x: Any) -> Any:
        xp, axes = block.xp, tuple(dim % x.ndim for dim in block.attributes["dimensions"])
        (result,) = dtypes([dtype_name(x.dtype)], block.attributes)
        within = accumulator(result)
        x = x if monoid in ("sum", "prod") and axes else cast(xp, x, within)
        total = reduction(xp, monoid, summing(xp, within))(x, axes) if axes else x
        if mean:
            whole = block.signature.operand_shapes[0]
            total = total / prod(whole[axis] for axis in axes)
        return cast(xp, xp.reshape(total, block.results[0].shape), result)

    return kernel


def monoid_of(attributes: Attributes) -> str:
    """Return the monoid of a reduction's region, or `custom` if it has none.

    >>> monoid_of({"monoid": "max"}), monoid_of({"monoid": "sum", "region": "custom"})
    ('max', 'custom')
    """
    monoid: str = attributes.get("monoid", "sum")
    return CUSTOM if attributes.get("region") in ("custom", "replace") else monoid


def sign_reduce(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign inputs of one shape, then as many initial values, which count once.

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


def reduce(block: Block, *operands: Any) -> Any:
    """Reduce each input, and combine it with its initial value once."""
    if block.attributes.get("region") in ("custom", "replace"):
        raise WeftError("a reduction by a custom region cannot be run box by box")
    monoid, axes = block.attributes.get("monoid", "sum"), tuple(block.attributes["dimensions"])
    half, results = len(operands) // 2, []
    for x, init in zip(operands[:half], operands[half:]):
        wide = accumulator(dtype_name(x.dtype))
        each = cast(block.xp, x, wide)
        total = reduction(block.xp, monoid, each.dtype)(each, axes) if axes else each
        total = combination(block.xp, monoid, each.dtype)(total, cast(block.xp, init, wide))
        results.append(cast(block.xp, total, dtype_name(x.dtype)))
    return tuple(results)


def each_input(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtypes of the inputs, which the initial values must have too."""
    for dtype, init in zip(dtypes, dtypes[len(dtypes) // 2 :]):
        like_all([dtype, init], {})
    return dtypes[: len(dtypes) // 2]


def sign_reduce_blocks(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a dimension cut into blocks, each reduced by itself; the last may be short or empty.

    >>> attributes = {"dimension": 1, "blocks": 4, "monoid": "sum"}
    >>> print(sign_reduce_blocks([(8, 10)], attributes))
    i0 3*b+t -> i0 b  sum: t  {i0=8, b=4, t=3}
    """
    (shape,) = shapes
    dim, width = axis_of(attributes["dimension"], shape), block_width(shape, attributes)
    operand = [*numbered("i", len(shape))]
    result = [*operand]
    operand[dim] = Row((("b", width), ("t", 1)))
    result[dim] = Row((("b", 1),))
    sizes = {"b": attributes["blocks"], "t": width}
    return Signature(Notation([operand], [result], {"t": attributes["monoid"]}), shapes, sizes)


def block_width(shape: Point, attributes: Attributes) -> int:
    """Return the size of a block of the `dimension` that is cut into `blocks`."""
    size, count = shape[axis_of(attributes["dimension"], shape)], int(attributes["blocks"])
    return BlockGrid.cut((size,), (count,)).block_shape[0]


def reduce_blocks(block: Block, x: Any) -> Any:
    """Reduce each block of a dimension by a monoid."""
    xp, axis = block.xp, block.attributes["dimension"] % x.ndim
    (result,) = reduced_dtype([dtype_name(x.dtype)], block.attributes)
    within = accumulator(result)
    monoid = reduction(xp, block.attributes["monoid"], summing(xp, within))
    parts = [cast(xp, monoid(part, (axis,)), result) for part in block_parts(block, x, axis, 0)]
    return xp.stack(parts, axis=axis) if parts else cast(xp, x[along(axis, slice(0, 0))], result)


def reduced_dtype(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtype of a reduction by the monoid among the attributes."""
    rule = summed if attributes["monoid"] in ("sum", "prod") else like_first
    return rule(dtypes, attributes)


def block_parts(block: Block, x: Any, axis: int, number: int) -> list[Any]:
    """Return the slice of an operand in each block of the box: `width * b + t`."""
    width, inner = block.signature.sizes["t"], block.span("t")
    have = block.operands[number]
    low, high = have.start[axis], have.stop[axis]
    parts = []
    for b in block.span("b"):
        first = min(max(width * b + inner.start, low), high)
        stop = min(max(width * b + inner.stop, first), high)
        parts.append(x[along(axis, slice(first - low, stop - low))])
    return parts


_NUMBERS, _ORDERED = "bool int uint float complex", "bool int uint float"
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
    define(
        _name,
        sign_reduction(_monoid),
        reducing(_monoid, _dtypes, mean=_name == "mean_dim"),
        keeps={"own": [(0,)]},
        dtypes=_dtypes,
        conversion=_conversion,
        attributes="dimensions keepdims",
        workspace=2.25 if _monoid == "logsumexp" else 1.0,
    )
define(
    "reduce",
    sign_reduce,
    reduce,
    keeps={"own": [...]},
    dtypes=each_input,
    attributes="dimensions monoid region",
)
define(
    "reduce_blocks",
    sign_reduce_blocks,
    reduce_blocks,
    keeps={"own": [(0,)]},
    dtypes=reduced_dtype,
    attributes="dimension blocks monoid",
)
