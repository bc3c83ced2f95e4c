"""Kernels of operators in stages: products before they are summed, blocks before they meet."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

from weft.errors import WeftError
from weft.lang.block import Attributes, Block
from weft.lang.dtype import accumulator, dtype_name, like_first, summed
from weft.lang.kernels.contract import spread
from weft.lang.kernels.dtypes import cast, summing
from weft.lang.kernels.monoids import reduction

MOST = 1 << 30
"""So many bytes of products may lie on a cell."""


def prod_of(block: Block, x: Any, y: Any) -> Any:
    """Every product of a matrix product, none of them summed."""
    size = block.results[0].size * getattr(x.dtype, "itemsize", 1)  # not in the standard
    if size > MOST:
        raise too_many_products("prod_of", size)
    line = block.signature.notation
    names = [tuple(row.plain or "" for row in rows) for rows in (*line.operands, *line.results)]
    one, two = (spread(block.xp, a, n, names[2]) for a, n in zip((x, y), names))
    return one * two


def too_many_products(name: str, size: int) -> WeftError:
    """What is said where products would lie in full that are too many."""
    return WeftError(
        f"{name} would hold {size} B of products on a cell, and at most {MOST} B may lie there",
        hint="plan it, and let nothing but reductions use it, without a sharding; or use matmul",
    )


def reduce_blocks(block: Block, x: Any) -> Any:
    """Each block of a dimension reduced by a monoid; what lies beyond the end counts nothing."""
    xp, axis = block.xp, block.attributes["dimension"] % x.ndim
    (result,) = reduced_dtype([dtype_name(x.dtype)], block.attributes)
    within = accumulator(result)
    monoid = reduction(xp, block.attributes["monoid"], summing(xp, within))
    made = [cast(xp, monoid(part, (axis,)), result) for part in _parts(block, x, axis, 0)]
    return xp.stack(made, axis=axis) if made else cast(xp, x[_at(axis, slice(0, 0))], result)


def reduced_dtype(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtype of a reduction by the monoid among the attributes."""
    rule = summed if attributes["monoid"] in ("sum", "prod") else like_first
    return rule(dtypes, attributes)


def _parts(block: Block, x: Any, axis: int, number: int) -> list[Any]:
    """What each block of the box has of an operand: `width * b + t`, as far as it goes."""
    width, inner = block.signature.sizes["t"], block.span("t")
    have = block.operands[number]
    low, high = have.start[axis], have.stop[axis]
    parts = []
    for b in block.span("b"):
        first = min(max(width * b + inner.start, low), high)
        stop = min(max(width * b + inner.stop, first), high)
        parts.append(x[_at(axis, slice(first - low, stop - low))])
    return parts


def _at(axis: int, part: slice) -> tuple[Any, ...]:
    return (*[slice(None)] * axis, part, ...)


def attention_blocks(block: Block, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """For each block of keys its largest score, the sum of its weights, and what they mix.

    A block that a query does not see has the lowest score, and weighs nothing.
    """
    xp, axis = block.xp, k.ndim - 2
    scale = block.attributes.get("scale")
    q = q * (1 / sqrt(q.shape[-1]) if scale is None else scale)
    lowest = float(xp.finfo(q.dtype).min) / 2
    tops, totals, mixed = [], [], []
    keys, values = _parts(block, k, axis, 1), _parts(block, v, axis, 2)
    if not keys:
        return tuple(xp.empty(box.shape, dtype=q.dtype) for box in block.results)
    for b, one, two in zip(block.span("b"), keys, values):
        scores = xp.matmul(q, xp.matrix_transpose(one))
        seen = _seen(block, b, scores.shape[-1])
        scores = xp.where(seen, scores, xp.full_like(scores, lowest))
        top = _highest(xp, scores, lowest)
        each = xp.where(seen, xp.exp(scores - xp.expand_dims(top, axis=-1)), xp.zeros_like(scores))
        tops.append(top)
        totals.append(xp.sum(each, axis=-1))
        mixed.append(xp.matmul(each, two))
    return xp.stack(tops, axis=-1), xp.stack(totals, axis=-1), xp.stack(mixed, axis=-2)


def _highest(xp: Any, scores: Any, lowest: float) -> Any:
    if scores.shape[-1]:
        return xp.max(scores, axis=-1)
    return xp.full(scores.shape[:-1], lowest, dtype=scores.dtype)


def _seen(block: Block, b: int, count: int) -> Any:
    """Which keys of a block each query sees."""
    xp, queries = block.xp, block.span("q")
    first = block.signature.sizes["t"] * b
    places = xp.arange(first, first + count)
    if not block.attributes.get("causal", False):
        return places >= 0
    ahead = block.signature.operand_shapes[1][-2] - block.signature.sizes["q"]
    last = xp.reshape(xp.arange(queries.start + ahead, queries.stop + ahead), (-1, 1))
    return places <= last
