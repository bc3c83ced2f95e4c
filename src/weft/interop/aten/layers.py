"""ATen's layers: norms, attention, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod, sqrt
from typing import Any

from weft.interop.aten import AtenNode, converts, unsupported
from weft.lang import Symbol, ops
from weft.lang.arithmetic import apply
from weft.values import Point

EVAL = "switch the module to inference: module.eval()"


@converts("native_layer_norm")
def layer_norm(
    node: AtenNode,
    x: Symbol,
    shape: Sequence[int],
    weight: Symbol | None = None,
    bias: Symbol | None = None,
    eps: float = 1e-5,
) -> Any:
    """Normalize the last dimensions, then scale and shift them."""
    kept, size = x.shape[: x.ndim - len(shape)], prod(shape)
    flat = [v if v is None else _reshaped(v, (size,)) for v in (weight, bias)]
    if bias is not None and weight is None:
        flat[0] = node.constant(1.0, (size,))
    vectors = [v for v in flat if v is not None]
    result = apply("layer_norm", _reshaped(x, (*kept, size)), *vectors, eps=float(eps))
    return _reshaped(result, x.shape), None, None


@converts("native_group_norm")
def group_norm(
    node: AtenNode, x: Symbol, weight: Symbol | None, bias: Symbol | None, *rest: Any
) -> Any:
    """Normalize groups of channels, then scale and shift each channel."""
    groups, eps = rest[-2:]
    result = apply("layer_norm", x.reshape((x.shape[0], groups, -1)), eps=float(eps))
    result = result.reshape(x.shape)
    result = result if weight is None else result * _channels(weight, x)
    result = result if bias is None else result + _channels(bias, x)
    return result, None, None


@converts("_native_batch_norm_legit_no_training")
def batch_norm(
    node: AtenNode,
    x: Symbol,
    weight: Symbol | None,
    bias: Symbol | None,
    mean: Symbol,
    variance: Symbol,
    momentum: float,
    eps: float,
) -> Any:
    """Normalize channels by their learned mean and variance."""
    channels = (x.shape[1],)
    scale = node.constant(1.0, channels) if weight is None else weight
    shift = node.constant(0.0, channels) if bias is None else bias
    result = apply(
        "batch_norm_inference", x, scale, shift, mean, variance, feature_index=1, epsilon=eps
    )
    return result, None, None


def _channels(vector: Symbol, x: Symbol) -> Any:
    """Return a vector of channels, shaped to broadcast with a tensor."""
    return vector.reshape((-1, *(1,) * (x.ndim - 2)))


def _reshaped(x: Symbol, shape: Sequence[int]) -> Any:
    return x if x.shape == tuple(shape) else x.reshape(tuple(shape))


@converts("scaled_dot_product_attention")
def attention(
    node: AtenNode,
    q: Symbol,
    k: Symbol,
    v: Symbol,
    mask: Symbol | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return attention, with a mask or causal.

    A causal query sees the keys up to its own number; Weft aligns the last query with the last key,
    which is the same for as many queries as keys. A mask, or dropout, needs the scores as an array.
    """
    q, k, v = _batched(q, k, v, enable_gqa)
    if causal and (dropout or q.shape[-2] != k.shape[-2]):
        mask, causal = _triangle(node, q.shape[-2], k.shape[-2]), False
    if mask is None and not dropout:
        return apply("attention", q, k, v, causal=causal or None, scale=scale)
    if k.shape[:-2] != q.shape[:-2]:
        k, v = (_shared(x, q.shape[-3]) for x in (k, v))
    scores = (q * (1 / sqrt(q.shape[-1]) if scale is None else float(scale))) @ _transposed(k)
    if mask is not None:
        scores = node.choose(mask, scores, -inf) if mask.dtype == "bool" else scores + mask
    weights = _safe_softmax(node, scores)
    return (ops.dropout(weights, dropout, node.random_key()) if dropout else weights) @ v


def _safe_softmax(node: AtenNode, scores: Symbol) -> Any:
    top = scores.max(-1, keepdims=True)
    is_seen = top > -inf
    top = node.choose(is_seen, top, 0.0)
    each = apply("exponential", scores - top)
    total = each.sum(-1, keepdims=True)
    return each / node.choose(is_seen, total, 1.0)


def _batched(q: Symbol, k: Symbol, v: Symbol, shares: bool) -> tuple[Any, Any, Any]:
    """Broadcast queries, keys and values to one batch; shared heads of keys are kept."""
    kept = 3 if shares else 2
    shapes = [x.shape[:-kept] for x in (q, k, v)]
    wide = max(map(len, shapes))
    sizes = zip(*((1,) * (wide - len(s)) + s for s in shapes))
    batch = tuple(
        each[0] if len({*each}) == 1 else next((n for n in each if n != 1), 1) for each in sizes
    )
    return tuple(
        x if x.shape[:-kept] == batch else ops.broadcast_to(x, (*batch, *x.shape[-kept:]))
        for x in (q, k, v)
    )  # type: ignore[return-value]


def _shared(x: Symbol, heads: int) -> Any:
    """Repeat each head of keys for the heads of queries that share it."""
    *batch, few, positions, features = x.shape
    apart = x.reshape((*batch, few, 1, positions, features))
    wide = ops.broadcast_to(apart, (*batch, few, heads // few, positions, features))
    return wide.reshape((*batch, heads, positions, features))


def _transposed(x: Symbol) -> Any:
    return x.transpose(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)


def _triangle(node: AtenNode, queries: int, keys: int) -> Any:
    """Return which keys each query sees: those up to its own number."""
    q, k = node.numbers(queries, "int64"), node.numbers(keys, "int64")
    return k.reshape(1, keys) <= q.reshape(queries, 1)


@converts("convolution")
def convolution(
    node: AtenNode,
    x: Symbol,
    weight: Symbol,
    bias: Symbol | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    more: Sequence[int],
    groups: int,
) -> Any:
    """Convolve along any number of dimensions, with a bias for each feature.

    A transposed convolution is one with the kernel reversed, over elements `stride` apart.
    """
    count, single = weight.ndim - 2, x.ndim < weight.ndim
    batch = x.reshape((1, *x.shape)) if single else x
    stride, padding, dilation, more = (_each(n, count) for n in (stride, padding, dilation, more))
    if transposed:
        reach = [d * (n - 1) - p for d, n, p in zip(dilation, weight.shape[2:], padding)]
        edges = [(n, n + m) for n, m in zip(reach, more)]
        weight = _exchanged(ops.flip(weight, tuple(range(2, weight.ndim))), groups)
        result = ops.convolve(batch, weight, 1, edges, dilation, groups, bias, stride)
    else:
        result = ops.convolve(batch, weight, stride, padding, dilation, groups, bias)
    return result.reshape(node.shape) if single else result


def _exchanged(weight: Symbol, groups: int) -> Any:
    """Return a kernel with its inputs and outputs exchanged in every group."""
    few, many, *window = weight.shape
    apart = weight.reshape((groups, few // groups, many, *window))
    order = (0, 2, 1, *range(3, apart.ndim))
    return apart.transpose(*order).reshape((groups * many, few // groups, *window))


@converts("linalg_cholesky_ex")
def cholesky(node: AtenNode, x: Symbol, *, upper: bool = False, **_: Any) -> Any:
    """Return the triangular factor of matrices; that they have one is not checked."""
    lower = apply("cholesky", x, lower=True)
    return _transposed(lower) if upper else lower, None


def _each(value: Any, count: int) -> Point:
    """Return a number for every dimension; one may be given for all."""
    given = tuple(value) if isinstance(value, Sequence) else (value,)
    return given * count if len(given) == 1 else given


@converts("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    node: AtenNode,
    x: Symbol,
    window: Sequence[int],
    stride: Sequence[int] = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Any:
    """Return the largest element of each window, ignoring padding."""
    count = len(window)
    sizes, lows, apart = (_each(n, count) for n in (window, padding, dilation))
    steps = _each(stride, count) or sizes
    extents = [(n - 1) * d + 1 for n, d in zip(sizes, apart)]
    edges = _edges(node, x, extents, steps, lows)
    if set(apart) == {1}:
        result = apply("max_pool", x, window=sizes, strides=steps, padding=edges)
    else:
        ones = (1,) * (x.ndim - count)
        result = apply(
            "reduce_window",
            x,
            -inf,
            window_dimensions=(*ones, *sizes),
            window_strides=(*ones, *steps),
            window_dilations=(*ones, *apart),
            padding=(*[0, 0] * len(ones), *edges),
            monoid="max",
        )
    return result, None


def _edges(
    node: AtenNode, x: Symbol, extents: Sequence[int], steps: Sequence[int], lows: Sequence[int]
) -> Point:
    """Return the padding before and after, for as many windows as ATen has."""
    padding: list[int] = []
    for n, count, r, step, low in zip(
        x.shape[-len(extents) :], node.shape[-len(extents) :], extents, steps, lows
    ):
        padding += [low, max(0, (count - 1) * step + r - n - low)]
    return tuple(padding)


@converts("avg_pool2d", "avg_pool3d")
def avg_pool(
    node: AtenNode,
    x: Symbol,
    window: Sequence[int],
    stride: Sequence[int] = (),
    padding: Any = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the mean of each window."""
    count = len(window)
    sizes, lows = _each(window, count), _each(padding, count)
    steps = _each(stride, count) or sizes
    edges = _edges(node, x, sizes, steps, lows)
    hangs = any(high > low for low, high in zip(edges[::2], edges[1::2]))
    if hangs and any(lows) and (count_include_pad or divisor_override):
        raise unsupported(
            "a mean of windows beyond the padding (ceil_mode=True)",
            "count_include_pad=False, or ceil_mode=False",
        )
    counts = (count_include_pad and not hangs) or divisor_override is not None
    options = {"count_include_pad": False} if not counts else {}
    result = apply("avg_pool", x, window=sizes, strides=steps, padding=edges, **options)
    return result if divisor_override is None else result * (prod(sizes) / divisor_override)


@converts("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(node: AtenNode, x: Symbol, sizes: Sequence[int]) -> Any:
    """Return the means of windows that divide the array."""
    count = len(sizes)
    old, new = x.shape[-count:], node.shape[-count:]
    if all(n % m == 0 for n, m in zip(old, new)):
        window = tuple(n // m for n, m in zip(old, new))
        return x if window == (1,) * count else apply("avg_pool", x, window=window)
    for dim, (n, m) in enumerate(zip(old, new), x.ndim - count):
        x = x if n == m else ops.concatenate([_mean(x, dim, k, n, m) for k in range(m)], dim)
    return x


def _mean(x: Symbol, dim: int, k: int, n: int, m: int) -> Any:
    """Return the mean of the k-th of m windows over n elements, which may overlap by one."""
    part = slice(k * n // m, -(-(k + 1) * n // m))
    return x[(*[slice(None)] * dim, part, ...)].mean(dim, keepdims=True)
