"""ATen's operators that move elements, and those that make tensors of nothing."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from weft.interop.aten.table import To, refuse, says
from weft.lang import Symbol, ops
from weft.lang.arithmetic import apply


@says("view", "unsqueeze", "squeeze")
def view(to: To, x: Symbol, *_: Any) -> Any:
    """The same elements in the shape of the result."""
    return x.reshape(to.shape) if x.shape != to.shape else x


@says("permute")
def permute(to: To, x: Symbol, dims: list[int]) -> Any:
    """The dimensions in another order."""
    return x.transpose(*dims) if x.ndim else x


@says("expand")
def expand(to: To, x: Symbol, *_: Any, **__: Any) -> Any:
    """Single dimensions repeated to the shape of the result."""
    return ops.broadcast_to(x, to.shape) if x.shape != to.shape else x


@says("repeat")
def repeat(to: To, x: Symbol, times: list[int]) -> Any:
    """The whole tensor side by side: a dimension before each, repeated, and merged with it."""
    shape = (1,) * (len(times) - x.ndim) + x.shape
    pairs = [(count, size) for count, size in zip(times, shape)]
    apart = x.reshape(tuple(n for _, size in pairs for n in (1, size)))
    return ops.broadcast_to(apart, [n for pair in pairs for n in pair]).reshape(to.shape)


@says("slice")
def slice_(
    to: To, x: Symbol, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> Any:
    """Every so many elements along a dimension."""
    return _along(x, dim, slice(start, stop, step))


@says("select")
def select(to: To, x: Symbol, dim: int, index: int) -> Any:
    """One element along a dimension, which is gone then."""
    return _along(x, dim, index)


def _along(x: Symbol, dim: int, part: Any) -> Any:
    return x[(*[slice(None)] * (dim % x.ndim), part, ...)]


@says("cat")
def cat(to: To, tensors: list[Symbol], dim: int = 0) -> Any:
    """Tensors side by side; ATen leaves out those of shape [0]."""
    parts = [to.cast(x) for x in tensors if x.shape != (0,)]
    return ops.concatenate(parts, dim) if len(parts) > 1 else parts[0]


@says("stack")
def stack(to: To, tensors: list[Symbol], dim: int = 0) -> Any:
    """Tensors side by side along a new dimension."""
    at = dim % len(to.shape)
    shape = (*to.shape[:at], 1, *to.shape[at + 1 :])
    return cat(to, [x.reshape(shape) for x in tensors], at)


@says("split_with_sizes")
def split(to: To, x: Symbol, sizes: list[int], dim: int = 0) -> Any:
    """Slices along a dimension, side by side."""
    stops = accumulate(sizes)
    return tuple(_along(x, dim, slice(stop - n, stop)) for stop, n in zip(stops, sizes))


@says("flip")
def flip(to: To, x: Symbol, dims: list[int]) -> Any:
    """Dimensions from their end."""
    return apply("reverse", x, dimensions=tuple(dim % x.ndim for dim in dims))


@says("constant_pad_nd")
def pad(to: To, x: Symbol, edges: list[int], value: Any = 0) -> Any:
    """A number around a tensor, the last dimension first; fewer than none cuts off."""
    low, high = [0] * x.ndim, [0] * x.ndim
    for n, dim in enumerate(reversed(range(x.ndim - len(edges) // 2, x.ndim))):
        low[dim], high[dim] = edges[2 * n : 2 * n + 2]
    cut = tuple(slice(max(0, -a), n - max(0, -b)) for a, b, n in zip(low, high, x.shape))
    return apply(
        "pad",
        x[cut],
        to.cast(value, x.dtype),
        edge_padding_low=tuple(max(0, a) for a in low),
        edge_padding_high=tuple(max(0, b) for b in high),
        interior_padding=(0,) * x.ndim,
    )


@says("full", "full_like")
def full(to: To, *said: Any, **_: Any) -> Any:
    """A number everywhere."""
    return to.constant(to.cast(said[-1]), to.shape)


@says("scalar_tensor")
def scalar_tensor(to: To, value: Any, **_: Any) -> Any:
    """A number as a tensor of rank 0."""
    return to.constant(to.cast(value))


@says("arange.start_step")
def arange(to: To, start: Any, stop: Any, step: Any = 1, **_: Any) -> Any:
    """Numbers from a first one on, in steps."""
    if any(isinstance(n, float) and not n.is_integer() for n in (start, step)):
        raise refuse(f"arange from {start} in steps of {step}", "count in whole numbers")
    found = to.numbers(to.shape[0], to.dtype)
    found = found if step == 1 else found * to.cast(step)
    return found if start == 0 else found + to.cast(start)


@says("embedding")
def embedding(to: To, table: Symbol, indices: Symbol, *_: Any, **__: Any) -> Any:
    """A row of a table for each index."""
    return apply("embedding", table, indices)


@says("index_select")
def index_select(to: To, x: Symbol, dim: int, indices: Symbol) -> Any:
    """The elements along a dimension at each index."""
    return _taken(x, dim % x.ndim, indices, to)


@says("index")
def index(to: To, x: Symbol, places: list[Symbol | None]) -> Any:
    """The elements along one dimension at indices of any shape."""
    dims = [dim for dim, place in enumerate(places) if place is not None]
    if len(dims) != 1 or "int" not in places[dims[0]].dtype:  # type: ignore[union-attr]
        raise refuse(
            "an index by several tensors, or by a mask", "index one dimension, by integers"
        )
    return _taken(x, dims[0], places[dims[0]], to)


def _taken(x: Symbol, dim: int, indices: Any, to: To) -> Any:
    """Elements along a dimension: rows of a table, if it is first. Indices count from both ends."""
    rest = [d for d in range(x.ndim) if d != dim]
    rows = x.transpose(dim, *rest).reshape(x.shape[dim], -1) if x.ndim != 2 or dim else x
    indices = to.choose(indices < 0, indices + x.shape[dim], indices)
    found = apply("embedding", rows, indices)
    found = found.reshape((*indices.shape, *(x.shape[d] for d in rest)))
    order = [*range(indices.ndim, indices.ndim + dim), *range(indices.ndim)]
    return found.transpose(*order, *range(indices.ndim + dim, found.ndim)) if dim else found
