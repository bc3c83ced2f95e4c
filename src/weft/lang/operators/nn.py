"""Neural network layers: softmax, normalisation, attention, embedding lookups excepted.

softmax            i0 [k] -> i0 [k]
layer_norm         i0 [k], [k], [k] -> i0 [k]
attention          b0 h q [d], b0 h [k] [d], b0 h [k] e -> b0 h q e
attention_blocks   the same for each block of keys, to be combined
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import Operand, accumulator, as_floats, as_quotients, for_kinds
from weft.lang.kernel import Attributes, Block
from weft.lang.notation import CUSTOM, Notation, Row, axis_of, digits, numbered, plain, whole
from weft.lang.operator import NOTHING, Keeps, Sign, define
from weft.lang.operators.reduce import block_parts, block_width
from weft.lang.signature import Signature
from weft.values import Point

Rows = tuple[Row, ...]


def sign_along(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign an operator that needs all of one `dimension`, the last by default.

    >>> print(sign_along([(8, 6)], {"dimension": 0}).notation)
    [k] i1 -> [k] i1
    """
    (shape,) = shapes
    along = axis_of(attributes.get("dimension", -1), shape)
    dims = [whole("k") if d == along else row for d, row in enumerate(numbered("i", len(shape)))]
    return Signature(Notation([dims], [dims]), shapes)


def softmax(block: Block, x: Any) -> Any:
    """Compute exponentials that sum to one along a dimension."""
    xp, axis = block.xp, block.attributes.get("dimension", -1) % x.ndim
    each = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return each / xp.sum(each, axis=axis, keepdims=True)


def log_softmax(block: Block, x: Any) -> Any:
    """Compute the logarithm of the softmax."""
    xp, axis = block.xp, block.attributes.get("dimension", -1) % x.ndim
    x = x - xp.max(x, axis=axis, keepdims=True)
    return x - xp.log(xp.sum(xp.exp(x), axis=axis, keepdims=True))


def sign_norm(most: int) -> Sign:
    """Return the signature rule of a norm over the last dimension, with up to `most` vectors.

    >>> print(sign_norm(2)([(8, 4), (4,), (4,)], {}).notation)
    i0 [k], [k], [k] -> i0 [k]
    """

    def sign(shapes: Sequence[Point], attributes: Attributes) -> Signature:
        if not 1 <= len(shapes) <= 1 + most or not shapes[0]:
            raise WeftError(
                f"a norm takes an array and up to {most} vectors, got {list(map(list, shapes))}"
            )
        dims = (*numbered("i", len(shapes[0]) - 1), whole("k"))
        return Signature(Notation([dims, *[dims[-1:]] * (len(shapes) - 1)], [dims]), shapes)

    return sign


def layer_norm(block: Block, x: Any, *scale_and_shift: Any) -> Any:
    """Shift and scale the last dimension to mean 0 and variance 1, then apply the vectors."""
    xp, eps = block.xp, block.attributes.get("eps", 1e-5)
    x = x - xp.mean(x, axis=-1, keepdims=True)
    x = x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps)
    return _scaled(x, *scale_and_shift)


def rms_norm(block: Block, x: Any, *scale: Any) -> Any:
    """Divide the last dimension by the root of its mean square, then scale it."""
    xp, eps = block.xp, block.attributes.get("eps", 1e-6)
    return _scaled(x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps), *scale)


def _scaled(x: Any, weight: Any = None, bias: Any = None) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def sign_batch_norm_inference(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign an array and four vectors along its feature dimension.

    >>> print(sign_batch_norm_inference([(8, 4)] + [(4,)] * 4, {"feature_index": 1}).notation)
    i0 i1, i1, i1, i1, i1 -> i0 i1
    """
    dims = numbered("i", len(shapes[0]))
    feature = [dims[attributes["feature_index"]]]
    return Signature(Notation([dims, *[feature] * 4], [dims]), shapes)


def batch_norm_inference(
    block: Block, x: Any, scale: Any, offset: Any, mean: Any, variance: Any
) -> Any:
    """Shift and scale each feature by its own statistics."""
    xp, axis = block.xp, block.attributes["feature_index"]
    by = scale / xp.sqrt(variance + block.attributes.get("epsilon", 0.0))
    shape = (-1, *(1,) * (x.ndim - axis - 1))
    mean, by, offset = (xp.reshape(each, shape) for each in (mean, by, offset))
    return (x - mean) * by + offset


def sign_attention(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign queries, keys and values, each [batches, heads, positions, features].

    Heads may be missing. With fewer heads of keys than of queries, each serves several of them.

    >>> print(sign_attention([(2, 4, 8, 16), (2, 4, 9, 16), (2, 4, 9, 5)], {}).notation)
    b0 h q [d], b0 h [k] [d], b0 h [k] e -> b0 h q e
    >>> print(sign_attention([(4, 8, 16), (2, 9, 16), (2, 9, 5)], {}).notation)
    2*h+g q [d], h [k] [d], h [k] e -> 2*h+g q e
    """
    ranks = {len(shape) for shape in shapes}
    if len(shapes) != 3 or len(ranks) != 1 or min(ranks) < 2:
        raise WeftError(
            f"attention takes queries, keys and values of one rank, got {list(map(list, shapes))}"
        )
    (q, e), d, k = plain("q", "e"), whole("d"), whole("k")
    heads, served, sizes = _heads(shapes[0], shapes[1])
    operands = [(*served, q, d), (*heads, k, d), (*heads, k, e)]
    return Signature(Notation(operands, [(*served, q, e)]), shapes, sizes)


def _heads(queries: Point, keys: Point) -> tuple[Rows, Rows, dict[str, int]]:
    """Return the batches and heads of keys, those of queries, and how many share each."""
    if len(queries) == 2:
        return (), (), {}
    batch, few, many = numbered("b", len(queries) - 3), keys[-3], queries[-3]
    kept = (*batch, *plain("h"))
    if few == many:
        return kept, kept, {}
    if few < 1 or many % few:
        raise WeftError(
            f"{many} heads of queries cannot share {few} heads of keys",
            hint="there must be a whole number of heads of queries for each",
        )
    group = many // few
    return kept, (*batch, digits([("h", few), ("g", group)])), {"g": group}


def attention(block: Block, q: Any, k: Any, v: Any) -> Any:
    """Compute for each query the mean of the values, weighted by the softmax of its scores.

    With `causal` a query sees the keys up to its own position, the last query having the position
    of the last key; a query that sees no key gives zeros.
    """
    xp, shape = block.xp, q.shape
    scale = block.attributes.get("scale")
    scale = 1 / sqrt(q.shape[-1]) if scale is None else scale
    if q.ndim > 2:
        sharing = len(block.span("g")) if "g" in block.signature.sizes else 1
        q = xp.reshape(q, (*k.shape[:-2], sharing, *q.shape[-2:]))
        k, v = xp.expand_dims(k, axis=-3), xp.expand_dims(v, axis=-3)
    scores = xp.matmul(q * scale, xp.matrix_transpose(k))
    if block.attributes.get("causal", False):
        scores = _causal(block, scores)
    top = xp.max(scores, axis=-1, keepdims=True)
    each = xp.exp(scores - xp.where(xp.isfinite(top), top, xp.zeros_like(top)))
    total = xp.sum(each, axis=-1, keepdims=True)
    mixed = xp.matmul(each, v) / xp.where(total == 0, xp.ones_like(total), total)
    return xp.reshape(mixed, (*shape[:-1], v.shape[-1]))


def _causal(block: Block, scores: Any) -> Any:
    """Return the scores with those of keys after each query set to -inf."""
    xp, sizes, queries = block.xp, block.signature.sizes, block.span("q")
    ahead = sizes["k"] - sizes["q"]
    last = xp.reshape(xp.arange(queries.start + ahead, queries.stop + ahead), (-1, 1))
    seen = xp.arange(sizes["k"]) <= last
    return xp.where(seen, scores, xp.full_like(scores, -float("inf")))


def flops_of_attention(line: Signature, attributes: Attributes) -> float:
    """Count two products for each pair of a query and a key, and the softmax of the scores.

    A sub-problem is one feature of a key and one of a value for a query and a key.
    """
    d, e = line.sizes["d"], line.sizes["e"]
    return (2 * (d + e) + 5) / max(1, d * e)


def sign_attention_blocks(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign attention to each block of keys: largest score, sum of weights, weighted values.

    >>> shapes = [(4, 8, 16), (4, 6, 16), (4, 6, 5)]
    >>> print(sign_attention_blocks(shapes, {"blocks": 2}))
    i0 q [d], i0 3*b+t [d], i0 3*b+t e -> i0 q b, i0 q b, i0 q b e  custom: t
        {i0=4, q=8, b=2, e=5, d=16, t=3}
    """
    queries, keys, values = shapes
    if queries[:-2] != keys[:-2] or keys[:-1] != values[:-1]:
        raise WeftError(
            f"attention in blocks takes as many keys as values, and heads of keys as of queries: "
            f"{list(map(list, shapes))}"
        )
    width = block_width(keys, {**attributes, "dimension": -2})
    heads, (q, b, e) = numbered("i", len(queries) - 2), plain("q", "b", "e")
    d, key = whole("d"), Row((("b", width), ("t", 1)))
    operands = [(*heads, q, d), (*heads, key, d), (*heads, key, e)]
    results = [(*heads, q, b), (*heads, q, b), (*heads, q, b, e)]
    sizes = {"b": attributes["blocks"], "t": width}
    return Signature(Notation(operands, results, {"t": CUSTOM}), shapes, sizes)


def attention_blocks(block: Block, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """Compute for each block of keys its largest score, sum of weights and weighted values.

    A block that a query does not see has the lowest score and no weight.
    """
    xp, axis = block.xp, k.ndim - 2
    scale = block.attributes.get("scale")
    q = q * (1 / sqrt(q.shape[-1]) if scale is None else scale)
    lowest = float(xp.finfo(q.dtype).min) / 2
    tops, totals, mixed = [], [], []
    keys, values = block_parts(block, k, axis, 1), block_parts(block, v, axis, 2)
    if not keys:
        return tuple(xp.empty(box.shape, dtype=q.dtype) for box in block.results)
    for b, one, two in zip(block.span("b"), keys, values):
        scores = xp.matmul(q, xp.matrix_transpose(one))
        seen = _visible_keys(block, b, scores.shape[-1])
        scores = xp.where(seen, scores, xp.full_like(scores, lowest))
        top = _largest(xp, scores, lowest)
        each = xp.where(seen, xp.exp(scores - xp.expand_dims(top, axis=-1)), xp.zeros_like(scores))
        tops.append(top)
        totals.append(xp.sum(each, axis=-1))
        mixed.append(xp.matmul(each, two))
    return xp.stack(tops, axis=-1), xp.stack(totals, axis=-1), xp.stack(mixed, axis=-2)


def _largest(xp: Any, scores: Any, lowest: float) -> Any:
    if scores.shape[-1]:
        return xp.max(scores, axis=-1)
    return xp.full(scores.shape[:-1], lowest, dtype=scores.dtype)


def _visible_keys(block: Block, b: int, count: int) -> Any:
    """Return which keys of a block each query sees."""
    xp, queries = block.xp, block.span("q")
    first = block.signature.sizes["t"] * b
    positions = xp.arange(first, first + count)
    if not block.attributes.get("causal", False):
        return positions >= 0
    ahead = block.signature.operand_shapes[1][-2] - block.signature.sizes["q"]
    last = xp.reshape(xp.arange(queries.start + ahead, queries.stop + ahead), (-1, 1))
    return positions <= last


def _as_wide(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert to the accumulator's dtype: blocks are rounded after they are combined."""
    return [accumulator(dtype) for dtype in as_quotients(operands)]


def _scale_and_shift(count: int) -> Keeps:
    """Return the operands of a norm that may be partial sums: all vectors together."""
    return {"sum": [tuple(range(1, count))]} if count > 1 else {}


for _name, _sign, _kernel, _keeps, _flops, _conversion, _attributes, _workspace in (
    ("softmax", sign_along, softmax, NOTHING, 5, as_floats, "dimension", 1.25),
    ("log_softmax", sign_along, log_softmax, NOTHING, 5, as_floats, "dimension", 1.25),
    ("layer_norm", sign_norm(2), layer_norm, _scale_and_shift, 8, as_quotients, "eps", 1.25),
    ("rms_norm", sign_norm(1), rms_norm, _scale_and_shift, 5, as_quotients, "eps", 1.0),
    (
        "batch_norm_inference",
        sign_batch_norm_inference,
        batch_norm_inference,
        {"sum": [(0, 2, 3), (1, 2)]},
        4,
        as_quotients,
        "epsilon feature_index",
        1.0,
    ),
    (
        "attention",
        sign_attention,
        attention,
        {"sum": [(2,)]},
        flops_of_attention,
        as_quotients,
        "scale causal",
        4.0,
    ),
):
    define(
        _name,
        _sign,
        _kernel,
        keeps=_keeps,
        flops=_flops,
        dtypes=for_kinds("float"),
        conversion=_conversion,
        accumulates="always",
        attributes=_attributes,
        workspace=_workspace,
    )
define(
    "attention_blocks",
    sign_attention_blocks,
    attention_blocks,
    flops=flops_of_attention,
    dtypes=for_kinds("float"),
    conversion=_as_wide,
    attributes="dimension blocks scale causal",
)
