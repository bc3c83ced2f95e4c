"""Kernels of what neural networks are made of: softmax, normalisation, attention."""

from __future__ import annotations

from math import sqrt
from typing import Any

from weft.lang.block import Block


def softmax(block: Block, x: Any) -> Any:
    """Exponentials that sum to one along a dimension."""
    xp, axis = block.xp, block.attributes.get("dimension", -1) % x.ndim
    each = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return each / xp.sum(each, axis=axis, keepdims=True)


def log_softmax(block: Block, x: Any) -> Any:
    """The logarithm of the softmax."""
    xp, axis = block.xp, block.attributes.get("dimension", -1) % x.ndim
    x = x - xp.max(x, axis=axis, keepdims=True)
    return x - xp.log(xp.sum(xp.exp(x), axis=axis, keepdims=True))


def layer_norm(block: Block, x: Any, *scale_and_shift: Any) -> Any:
    """The last dimension with mean 0 and variance 1, then scaled and shifted."""
    xp, eps = block.xp, block.attributes.get("eps", 1e-5)
    x = x - xp.mean(x, axis=-1, keepdims=True)
    x = x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps)
    return _scaled(x, *scale_and_shift)


def rms_norm(block: Block, x: Any, *scale: Any) -> Any:
    """The last dimension over the root of its mean square, then scaled."""
    xp, eps = block.xp, block.attributes.get("eps", 1e-6)
    return _scaled(x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps), *scale)


def _scaled(x: Any, weight: Any = None, bias: Any = None) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def attention(block: Block, q: Any, k: Any, v: Any) -> Any:
    """For each query the mean of the values, weighted by the softmax of its products with keys.

    With `causal` a query sees the keys up to its own place, where the last query has the place of
    the last key; a query that sees none gives zeros.
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
        scores = _behind(block, scores)
    top = xp.max(scores, axis=-1, keepdims=True)
    each = xp.exp(scores - xp.where(xp.isfinite(top), top, xp.zeros_like(top)))
    total = xp.sum(each, axis=-1, keepdims=True)
    made = xp.matmul(each, v) / xp.where(total == 0, xp.ones_like(total), total)
    return xp.reshape(made, (*shape[:-1], v.shape[-1]))


def _behind(block: Block, scores: Any) -> Any:
    """The scores with the keys ahead of each query struck out."""
    xp, sizes, queries = block.xp, block.signature.sizes, block.span("q")
    ahead = sizes["k"] - sizes["q"]
    last = xp.reshape(xp.arange(queries.start + ahead, queries.stop + ahead), (-1, 1))
    seen = xp.arange(sizes["k"]) <= last
    return xp.where(seen, scores, xp.full_like(scores, -float("inf")))
