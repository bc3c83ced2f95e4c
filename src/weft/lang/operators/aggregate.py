"""Reductions by monoids that users define, and the components of what they make.

aggregate   i0 i1 -> i0               moments: i1
component   i0 i1 -> i0 i1            (of an element with several components one)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import components, itemsize
from weft.lang.kernel import Attributes, Block, native
from weft.lang.monoid import Monoid, monoid_named
from weft.lang.notation import Notation, numbered, whole
from weft.lang.operator import define
from weft.lang.operators.reduce import sign_reduction
from weft.lang.signature import Signature
from weft.lang.struct_array import StructArray
from weft.values import Point


def _monoid(attributes: Attributes) -> Monoid:
    monoid = monoid_named(attributes["monoid"])
    if monoid is None:
        name = attributes["monoid"]
        raise WeftError(
            f"{name} is one of Weft's own reductions",
            hint=f"ops.{name}(x, axis), or x.{name}(axis)",
        )
    return monoid


def sign_aggregate(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a reduction along `dimensions` by the `monoid` of that name.

    >>> print(sign_aggregate([(8, 4)], {"dimensions": (1,), "monoid": "moments"}).notation)
    i0 i1 -> i0  moments: i1
    """
    return sign_reduction(_monoid(attributes).name)(shapes, attributes)


def aggregate(block: Block, x: Any) -> Any:
    """Make elements of a monoid, and combine those along `dimensions`."""
    xp, box = block.xp, block.operands[0]
    shape, rank = block.signature.operand_shapes[0], len(x.shape)
    axes = [dim % rank for dim in block.attributes["dimensions"]]
    kept = [axis for axis in range(rank) if axis not in axes]
    axes = sorted(axes)
    sizes = [box.shape[axis] for axis in axes]
    index = xp.zeros((1,) * len(axes), dtype=native(xp, "int64"))
    for number, axis in enumerate(axes):
        line = xp.arange(box.start[axis], box.stop[axis], dtype=native(xp, "int64"))
        line = line * prod(shape[later] for later in axes[number + 1 :])
        index = index + xp.reshape(line, tuple(-1 if n == number else 1 for n in range(len(axes))))
    flat = (*(box.shape[axis] for axis in kept), prod(sizes))
    if isinstance(x, StructArray):
        order = (*kept, *axes)
        x = x.map(lambda part: xp.permute_dims(part, (*order, *range(rank, part.ndim))))
        x = x.reshape(xp, flat)
    else:
        x = xp.reshape(xp.permute_dims(x, (*kept, *axes)), flat)
    made = _monoid(block.attributes).aggregate(xp, x, xp.reshape(index, (-1,)))
    if isinstance(made, StructArray):
        return made.reshape(xp, block.results[0].shape)
    return xp.reshape(made, block.results[0].shape)


def _elements(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtype of a monoid's elements."""
    monoid = _monoid(attributes)
    made = monoid.dtype(dtypes[0])
    if components(dtypes[0]) and components(made) != components(dtypes[0]):
        raise WeftError(f"{dtypes[0]} cannot be aggregated by {monoid.name}")
    return [made]


def sign_component(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign one component of each element; dimensions that it has of its own come last.

    >>> print(sign_component([(8,)], {"name": "values", "result_shape": (8, 3)}))
    i0 -> i0 [c0]  {i0=8, c0=3}
    """
    (shape,), result = shapes, tuple(attributes["result_shape"])
    if result[: len(shape)] != shape:
        raise WeftError(f"a component of {list(shape)} cannot have the shape {list(result)}")
    dims, inner = numbered("i", len(shape)), result[len(shape) :]
    own = [whole(f"c{n}") for n in range(len(inner))]
    sizes = {f"c{n}": size for n, size in enumerate(inner)}
    return Signature(Notation([dims], [(*dims, *own)]), shapes, sizes)


def component(block: Block, x: Any) -> Any:
    """Return one component of each element."""
    return x[block.attributes["name"]]


def _component(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    name = attributes["name"]
    for each in components(dtypes[0]):
        if each.name == name:
            return [each.dtype]
    raise WeftError(f"{dtypes[0]} has no component {name}")


def _workspace(block: Block) -> int:
    """Return the elements of the result whose bytes the kernel needs for what it aggregates.

    A function that reduces at once has up to two words for each number, or four where it sorts;
    others lift all numbers, and combine half of them at a time.
    """
    monoid = _monoid(block.attributes)
    dtype = monoid.dtype("float32")
    size, sorts = itemsize(dtype), any(part.shape for part in components(dtype))
    each = (32 if sorts else 16) if monoid.reduce is not None else 12 + 3 * size
    return -(-block.operands[0].size * each // max(4, size))


define(
    "aggregate",
    sign_aggregate,
    aggregate,
    attributes="dimensions keepdims monoid",
    structs=True,
    flops=4,
    dtypes=_elements,
    workspace=_workspace,
)
define(
    "component",
    sign_component,
    component,
    attributes="name result_shape",
    structs=True,
    passes="both",
    flops=0,
    dtypes=_component,
    workspace=0.0,
)
