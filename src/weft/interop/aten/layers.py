"""ATen's layers: norms, attention, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod, sqrt
from typing import Any

from weft.interop.aten.table import To, refuse, says
from weft.lang import Symbol, ops
from weft.lang.arithmetic import apply
from weft.values import Point

EVAL = "put the module into inference: module.eval()"


@says("native_layer_norm")
def layer_norm(
    to: To,
    x: Symbol,
    shape: Sequence[int],
    weight: Symbol | None = None,
    bias: Symbol | None = None,
    eps: float = 1e-5,
) -> Any:
    """The last dimensions with mean 0 and variance 1, then scaled and shifted."""
    kept, size = x.shape[: x.ndim - len(shape)], prod(shape)
    flat = [v if v is None else _reshaped(v, (size,)) for v in (weight, bias)]
    if bias is not None and weight is None:
        flat[0] = to.constant(1.0, (size,))
    vectors = [v for v in flat if v is not None]
    made = apply("layer_norm", _reshaped(x, (*kept, size)), *vectors, eps=float(eps))
    return _reshaped(made, x.shape), None, None


@says("native_group_norm")
def group_norm(to: To, x: Symbol, weight: Symbol | None, bias: Symbol | None, *said: Any) -> Any:
    """Groups of channels, each with mean 0 and variance 1; then channels are scaled and shifted."""
    groups, eps = said[-2:]
    made = apply("layer_norm", x.reshape((x.shape[0], groups, -1)), eps=float(eps))
    made = made.reshape(x.shape)
    made = made if weight is None else made * _channels(weight, x)
    made = made if bias is None else made + _channels(bias, x)
    return made, None, None


@says("_native_batch_norm_legit_no_training")
def batch_norm(
    to: To,
    x: Symbol,
    weight: Symbol | None,
    bias: Symbol | None,
    mean: Symbol,
    variance: Symbol,
    momentum: float,
    eps: float,
) -> Any:
    """Channels less the mean and over the deviation that were learned."""
    channels = (x.shape[1],)
    scale = to.constant(1.0, channels) if weight is None else weight
    shift = to.constant(0.0, channels) if bias is None else bias
    made = apply(
        "batch_norm_inference", x, scale, shift, mean, variance, feature_index=1, epsilon=eps
    )
    return made, None, None


def _channels(vector: Symbol, x: Symbol) -> Any:
    """A number for each channel, to stand beside a tensor."""
    return vector.reshape((-1, *(1,) * (x.ndim - 2)))


def _reshaped(x: Symbol, shape: Sequence[int]) -> Any:
    return x if x.shape == tuple(shape) else x.reshape(tuple(shape))


@says("scaled_dot_product_attention")
def attention(
    to: To,
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
    """For each query the mean of the values, weighted by the softmax of its products with keys.

    A causal query sees the keys up to its own number, where Weft's counts from the last; the two
    are one if there are as many queries as keys. With a mask the scores are written down.
    """
    if dropout:
        raise refuse(f"attention that drops out {dropout:g}", EVAL)
    q, k, v = _batched(q, k, v, enable_gqa)
    if causal and q.shape[-2] != k.shape[-2]:
        mask, causal = _triangle(to, q.shape[-2], k.shape[-2]), False
    if mask is None:
        return apply("attention", q, k, v, causal=causal or None, scale=scale)
    if k.shape[:-2] != q.shape[:-2]:
        k, v = (_shared(x, q.shape[-3]) for x in (k, v))
    scores = (q * (1 / sqrt(q.shape[-1]) if scale is None else float(scale))) @ _turned(k)
    scores = to.choose(mask, scores, -inf) if mask.dtype == "bool" else scores + mask
    return _safe_softmax(to, scores) @ v


def _safe_softmax(to: To, scores: Symbol) -> Any:
    top = scores.max(-1, keepdims=True)
    is_seen = top > -inf
    top = to.choose(is_seen, top, 0.0)
    each = apply("exponential", scores - top)
    total = each.sum(-1, keepdims=True)
    return each / to.choose(is_seen, total, 1.0)


def _batched(q: Symbol, k: Symbol, v: Symbol, shares: bool) -> tuple[Any, Any, Any]:
    """Queries, keys and values of one batch; heads of keys stay as few as they are if they may."""
    kept = 3 if shares else 2
    shapes = [x.shape[:-kept] for x in (q, k, v)]
    wide = max(map(len, shapes))
    sizes = zip(*((1,) * (wide - len(s)) + s for s in shapes))
    batch = tuple(next((n for n in each if n != 1), 1) for each in sizes)
    return tuple(
        x if x.shape[:-kept] == batch else ops.broadcast_to(x, (*batch, *x.shape[-kept:]))
        for x in (q, k, v)
    )  # type: ignore[return-value]


def _shared(x: Symbol, heads: int) -> Any:
    """Each head of keys as often as it serves a head of queries."""
    *batch, few, places, features = x.shape
    apart = x.reshape((*batch, few, 1, places, features))
    wide = ops.broadcast_to(apart, (*batch, few, heads // few, places, features))
    return wide.reshape((*batch, heads, places, features))


def _turned(x: Symbol) -> Any:
    return x.transpose(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)


def _triangle(to: To, queries: int, keys: int) -> Any:
    """Which keys each query sees: those up to its own number."""
    q, k = to.numbers(queries, "int64"), to.numbers(keys, "int64")
    return k.reshape(1, keys) <= q.reshape(queries, 1)


@says("convolution")
def convolution(
    to: To,
    x: Symbol,
    weight: Symbol,
    bias: Symbol | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _: Sequence[int],
    groups: int,
) -> Any:
    """A convolution of any number of dimensions, with a bias for each feature."""
    if transposed:
        raise refuse("a transposed convolution", "only plain ones are read so far")
    count, single = weight.ndim - 2, x.ndim < weight.ndim
    batch = x.reshape((1, *x.shape)) if single else x
    stride, padding, dilation = (_each(n, count) for n in (stride, padding, dilation))
    made = ops.convolve(batch, weight, stride, padding, dilation, groups, bias)
    return made.reshape(to.shape) if single else made


def _each(said: Any, count: int) -> Point:
    """A number for every dimension, where one may stand for all."""
    given = tuple(said) if isinstance(said, Sequence) else (said,)
    return given * count if len(given) == 1 else given


@says("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    to: To,
    x: Symbol,
    window: Sequence[int],
    stride: Sequence[int] = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Any:
    """The largest of each window; where it hangs over the end, of what is there."""
    count = len(window)
    sizes, lows, apart = (_each(n, count) for n in (window, padding, dilation))
    steps = _each(stride, count) or sizes
    reach = [(n - 1) * d + 1 for n, d in zip(sizes, apart)]
    edges = _edges(to, x, reach, steps, lows)
    if set(apart) == {1}:
        made = apply("max_pool", x, window=sizes, strides=steps, padding=edges)
    else:
        ones = (1,) * (x.ndim - count)
        made = apply(
            "reduce_window",
            x,
            -inf,
            window_dimensions=(*ones, *sizes),
            window_strides=(*ones, *steps),
            window_dilations=(*ones, *apart),
            padding=(*[0, 0] * len(ones), *edges),
            monoid="max",
        )
    return made, None


def _edges(
    to: To, x: Symbol, reach: Sequence[int], steps: Sequence[int], lows: Sequence[int]
) -> Point:
    """The padding before and behind, so that there are as many windows as ATen makes."""
    found: list[int] = []
    for n, made, r, step, low in zip(
        x.shape[-len(reach) :], to.shape[-len(reach) :], reach, steps, lows
    ):
        found += [low, max(0, (made - 1) * step + r - n - low)]
    return tuple(found)


@says("avg_pool2d", "avg_pool3d")
def avg_pool(
    to: To,
    x: Symbol,
    window: Sequence[int],
    stride: Sequence[int] = (),
    padding: Any = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window."""
    count = len(window)
    sizes, lows = _each(window, count), _each(padding, count)
    steps = _each(stride, count) or sizes
    edges = _edges(to, x, sizes, steps, lows)
    hangs = any(high > low for low, high in zip(edges[::2], edges[1::2]))
    if hangs and any(lows) and (count_include_pad or divisor_override):
        raise refuse(
            "a mean of windows that hang over the padding (ceil_mode=True)",
            "count_include_pad=False, or ceil_mode=False",
        )
    counts = (count_include_pad and not hangs) or divisor_override is not None
    said = {"count_include_pad": False} if not counts else {}
    made = apply("avg_pool", x, window=sizes, strides=steps, padding=edges, **said)
    return made if divisor_override is None else made * (prod(sizes) / divisor_override)


@says("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(to: To, x: Symbol, sizes: Sequence[int]) -> Any:
    """The mean of windows that share the array: of one size, or each for itself."""
    count = len(sizes)
    given, made = x.shape[-count:], to.shape[-count:]
    if all(n % m == 0 for n, m in zip(given, made)):
        window = tuple(n // m for n, m in zip(given, made))
        return x if window == (1,) * count else apply("avg_pool", x, window=window)
    for dim, (n, m) in enumerate(zip(given, made), x.ndim - count):
        x = x if n == m else ops.concatenate([_mean(x, dim, k, n, m) for k in range(m)], dim)
    return x


def _mean(x: Symbol, dim: int, k: int, n: int, m: int) -> Any:
    """The mean of the k-th of m windows over n elements, which may overlap by one."""
    part = slice(k * n // m, -(-(k + 1) * n // m))
    return x[(*[slice(None)] * dim, part, ...)].mean(dim, keepdims=True)
