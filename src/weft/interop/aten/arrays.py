"""ATen's products, reductions, moves of elements and constants."""

from __future__ import annotations

from itertools import accumulate
from math import inf, prod
from typing import Any

from weft.interop.aten import TABLE, AtenNode, Converter, converts, unsupported
from weft.lang import Symbol, ops
from weft.lang.arithmetic import apply, normalize_axis


@converts("linear")
def linear(node: AtenNode, x: Symbol, weight: Symbol, bias: Symbol | None = None) -> Any:
    """Multiply the last dimension by the rows of a matrix, and add a bias."""
    result = apply(
        "dot_general",
        x,
        weight,
        lhs_contracting_dimensions=(x.ndim - 1,),
        rhs_contracting_dimensions=(weight.ndim - 1,),
    )
    return result if bias is None else result + bias


@converts("addmm")
def addmm(
    node: AtenNode, bias: Symbol, x: Symbol, y: Symbol, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """Multiply matrices and add a bias, each scaled."""
    result = x @ y if alpha == 1 else (x @ y) * node.cast(alpha)
    if beta == 0:
        return result
    return result + (bias if beta == 1 else bias * node.cast(beta))


def _reduction(name: str) -> Converter:
    def convert(
        node: AtenNode, x: Symbol, dims: Any = None, keepdim: bool = False, **_: Any
    ) -> Symbol:
        given = None if dims is None or dims == [] else dims
        more = {"dtype": node.dtype} if name in ("sum", "mean", "prod") else {}
        result: Symbol = getattr(ops, name)(node.cast(x), given, keepdims=keepdim, **more)
        return result

    return convert


for _name, _other in {
    "sum": "sum",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
    "prod": "prod",
    "max.default": "max",
    "min.default": "min",
}.items():
    TABLE[_name] = _reduction(_other)


def _truth(name: str) -> Converter:
    def convert(
        node: AtenNode, x: Symbol, dims: Any = None, keepdim: bool = False, **_: Any
    ) -> Any:
        flags = x
        if x.dtype != "bool":
            flags = apply("compare", x, node.cast(0, x.dtype), comparison_direction="NE")
        return getattr(ops, name)(flags, dims, keepdims=keepdim)

    return convert


TABLE["any"] = _truth("any")


@converts("var")
def var(
    node: AtenNode, x: Symbol, dims: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> Any:
    """Return the variance, with a correction of the count."""
    across = normalize_axis(dims or None, x.ndim)
    count = prod(x.shape[dim] for dim in across)
    centred = x - x.mean(across, keepdims=True)
    less = count - (1 if correction is None else correction)
    if less <= 0:
        raise unsupported(f"a variance of {count} elements with a correction of {correction}")
    return apply("square", centred).sum(across, keepdims=keepdim) / node.cast(less)


@converts("var_mean.correction")
def var_mean(node: AtenNode, x: Symbol, dims: Any = None, **options: Any) -> Any:
    """Return the variance, and the mean."""
    mean = ops.mean(x, dims or None, keepdims=options.get("keepdim", False))
    return var(node, x, dims, **options), mean


def _soft(name: str) -> Converter:
    def convert(node: AtenNode, x: Symbol, dim: int, *_: Any, **__: Any) -> Any:
        return getattr(ops, name)(node.cast(x), dim)

    return convert


TABLE["_softmax"], TABLE["_log_softmax"] = _soft("softmax"), _soft("log_softmax")


@converts("linalg_vector_norm")
def norm(
    node: AtenNode, x: Symbol, order: float = 2, dims: Any = None, keepdim: bool = False, **_: Any
) -> Any:
    """Return the norm of vectors, of order 1, 2 or inf."""
    x = node.cast(x)
    if order == 2:
        return apply("sqrt", ops.sum(apply("square", x), dims, keepdims=keepdim))
    if order not in (1, inf):
        raise unsupported(f"a norm of order {order:g}", "take 1, 2 or inf")
    return (ops.sum if order == 1 else ops.max)(abs(x), dims, keepdims=keepdim)


def view(node: AtenNode, x: Symbol, *_: Any) -> Any:
    """Return the same elements in the shape of the result."""
    return x.reshape(node.shape) if x.shape != node.shape else x


@converts("repeat")
def repeat(node: AtenNode, x: Symbol, times: list[int]) -> Any:
    """Tile a tensor: a new dimension before each is broadcast and merged with it."""
    shape = (1,) * (len(times) - x.ndim) + x.shape
    pairs = [(count, size) for count, size in zip(times, shape)]
    apart = x.reshape(tuple(n for _, size in pairs for n in (1, size)))
    return ops.broadcast_to(apart, [n for pair in pairs for n in pair]).reshape(node.shape)


def _along(x: Symbol, dim: int, part: Any) -> Any:
    return x[(*[slice(None)] * (dim % x.ndim), part, ...)]


@converts("cat")
def cat(node: AtenNode, tensors: list[Symbol], dim: int = 0) -> Any:
    """Concatenate tensors; ATen ignores those of shape [0]."""
    parts = [node.cast(x) for x in tensors if x.shape != (0,)]
    return ops.concatenate(parts, dim) if len(parts) > 1 else parts[0]


@converts("stack")
def stack(node: AtenNode, tensors: list[Symbol], dim: int = 0) -> Any:
    """Stack tensors along a new dimension."""
    at = dim % len(node.shape)
    shape = (*node.shape[:at], 1, *node.shape[at + 1 :])
    return cat(node, [x.reshape(shape) for x in tensors], at)


@converts("split_with_sizes")
def split(node: AtenNode, x: Symbol, sizes: list[int], dim: int = 0) -> Any:
    """Split along a dimension into slices of given sizes."""
    stops = accumulate(sizes)
    return tuple(_along(x, dim, slice(stop - n, stop)) for stop, n in zip(stops, sizes))


@converts("constant_pad_nd")
def pad(node: AtenNode, x: Symbol, edges: list[int], value: Any = 0) -> Any:
    """Pad with a number, the last dimension first; negative padding cuts off."""
    low, high = [0] * x.ndim, [0] * x.ndim
    for n, dim in enumerate(reversed(range(x.ndim - len(edges) // 2, x.ndim))):
        low[dim], high[dim] = edges[2 * n : 2 * n + 2]
    cut = tuple(
        slice(0 if a >= 0 else -a, n if b >= 0 else n + b) for a, b, n in zip(low, high, x.shape)
    )
    return apply(
        "pad",
        x[cut],
        node.cast(value, x.dtype),
        edge_padding_low=tuple(a if a >= 0 else 0 for a in low),
        edge_padding_high=tuple(b if b >= 0 else 0 for b in high),
        interior_padding=(0,) * x.ndim,
    )


@converts("arange.start_step")
def arange(node: AtenNode, start: Any, stop: Any, step: Any = 1, **_: Any) -> Any:
    """Return evenly spaced numbers."""
    if any(isinstance(n, float) and not n.is_integer() for n in (start, step)):
        raise unsupported(f"arange from {start} in steps of {step}", "count in whole numbers")
    result = node.numbers(node.shape[0], node.dtype)
    result = result if step == 1 else result * node.cast(step)
    return result if start == 0 else result + node.cast(start)


TABLE |= {
    **dict.fromkeys(("mm", "bmm", "matmul"), lambda node, x, y: x @ y),
    **dict.fromkeys(("view", "unsqueeze", "squeeze"), view),
    "cumsum": lambda node, x, dim, **_: ops.cumsum(node.cast(x), dim, dtype=node.dtype),
    "permute": lambda node, x, dims: x.transpose(*dims) if x.ndim else x,
    "expand": lambda node, x, *_, **__: (
        ops.broadcast_to(x, node.shape) if x.shape != node.shape else x
    ),
    "slice": lambda node, x, dim=0, start=None, stop=None, step=1: _along(
        x, dim, slice(start, stop, step)
    ),
    "select": lambda node, x, dim, at: _along(x, dim, at),
    "flip": lambda node, x, dims: ops.flip(x, tuple(dims)),
    "full": lambda node, size, value, **_: node.constant(node.cast(value), node.shape),
    "full_like": lambda node, x, value, **_: node.constant(node.cast(value), node.shape),
    "scalar_tensor": lambda node, value, **_: node.constant(node.cast(value)),
    "embedding": lambda node, table, at, *_, **__: apply("embedding", table, at),
    "index_select": lambda node, x, dim, at: ops.take(x, at, dim),
}
