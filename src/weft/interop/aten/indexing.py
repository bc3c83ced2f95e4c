"""ATen's reads and writes at computed places, and orders."""

from __future__ import annotations

from typing import Any

from weft.interop.aten import TABLE, AtenNode, Converter, converts, unsupported
from weft.lang import Symbol, ops
from weft.lang.arithmetic import apply, apply_all
from weft.lang.indexing import broadcast_shape


@converts("index")
def index(node: AtenNode, x: Symbol, indices: list[Symbol | None]) -> Any:
    """Return the elements at places that integer tensors give together."""
    _check_integers(indices)
    return x[tuple(slice(None) if each is None else each for each in indices)]


def _check_integers(indices: list[Symbol | None]) -> None:
    if any(each is not None and each.dtype == "bool" for each in indices):
        raise unsupported("an index by a mask", "torch.where(mask, x, 0): its shape is known")


@converts("index_put")
def index_put(
    node: AtenNode, x: Symbol, indices: list[Symbol | None], values: Symbol, adds: bool = False
) -> Any:
    """Write values, or add them, at places that integer tensors or a mask give."""
    mask = indices[0]
    if mask is not None and len(indices) == 1 and mask.dtype == "bool" and not adds:
        if values.ndim <= x.ndim - mask.ndim:
            shape = (*mask.shape, *(1,) * (x.ndim - mask.ndim))
            return node.choose(mask.reshape(shape), values, x)
        raise unsupported("writing as many values as a mask selects", "write one for all of them")
    _check_integers(indices)
    dims = [dim for dim, each in enumerate(indices) if each is not None]
    arrays = [each for each in indices if each is not None]
    at = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    places = broadcast_shape([each.shape for each in arrays])
    rest = [n for dim, n in enumerate(x.shape) if dim not in dims]
    updates = ops.broadcast_to(values, (*rest[:at], *places, *rest[at:]))
    return ops.scatter_at(x, arrays, dims, at, updates, "sum" if adds else "")


@converts("gather")
def gather(node: AtenNode, x: Symbol, dim: int, at: Symbol, **_: Any) -> Any:
    """Return for each index the element that it names along a dimension."""
    if not x.ndim or not at.ndim:
        return ops.take(x.reshape(-1), at.reshape(-1)).reshape(node.shape)
    kept = tuple(slice(None) if d == dim % x.ndim else slice(n) for d, n in enumerate(at.shape))
    return ops.take_along_axis(x[kept], at, dim, bounds="refuse")


def _scatter(monoid: str) -> Converter:
    def convert(node: AtenNode, x: Symbol, dim: int, at: Symbol, source: Any) -> Any:
        if not x.ndim:
            raise unsupported("a scatter into a scalar")
        if not isinstance(source, Symbol):
            source = node.constant(node.cast(source), at.shape)
        arrays = [
            at
            if d == dim % x.ndim
            else node.numbers(n, at.dtype).reshape([n if d == e else 1 for e in range(x.ndim)])
            for d, n in enumerate(at.shape)
        ]
        updates = node.cast(source[tuple(map(slice, at.shape))])
        return ops.scatter_at(x, arrays, range(x.ndim), 0, updates, monoid, "refuse")

    return convert


TABLE |= {
    "scatter.src": _scatter(""),
    "scatter.value": _scatter(""),
    "scatter_add": _scatter("sum"),
}


@converts("scatter_reduce.two")
def scatter_reduce(
    node: AtenNode,
    x: Symbol,
    dim: int,
    at: Symbol,
    source: Symbol,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """Combine values with those at places along a dimension."""
    monoids = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}
    if reduce not in monoids or not include_self:
        raise unsupported(
            f"scatter_reduce by {reduce!r} with include_self={include_self}",
            "sum, prod, amax or amin, with include_self=True",
        )
    return _scatter(monoids[reduce])(node, x, dim, at, source)


@converts("slice_scatter")
def slice_scatter(
    node: AtenNode,
    x: Symbol,
    source: Symbol,
    dim: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> Any:
    """Replace a slice along a dimension."""
    dim %= x.ndim
    size = x.shape[dim]
    places = range(*slice(start, stop, step).indices(size))
    if not places:
        return x
    low, high, apart = ([0] * x.ndim for _ in range(3))
    low[dim], high[dim], apart[dim] = places[0], size - 1 - places[-1], step - 1
    wide = apply(
        "pad",
        node.cast(source),
        node.constant(node.cast(0)),
        edge_padding_low=tuple(low),
        edge_padding_high=tuple(high),
        interior_padding=tuple(apart),
    )
    at = node.numbers(size, "int64").reshape([size if d == dim else 1 for d in range(x.ndim)])
    inside = (at >= places[0]) & (at <= places[-1])
    if step > 1:
        inside = inside & ((at - places[0]) % step == 0)
    return node.choose(inside, wide, x)


@converts("copy")
def copy(node: AtenNode, x: Symbol, source: Symbol, *_: Any) -> Any:
    """Return another tensor in the shape and dtype of the first."""
    return ops.broadcast_to(node.cast(source), node.shape)


@converts("diagonal")
def diagonal(node: AtenNode, x: Symbol, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return the elements of which the places in two dimensions differ by an offset."""
    first, second = dim1 % x.ndim, dim2 % x.ndim
    rest = [dim for dim in range(x.ndim) if dim not in (first, second)]
    count, x = node.shape[-1], x.transpose(*rest, first, second)
    rows, columns = ([n + skip for n in range(count)] for skip in (max(-offset, 0), max(offset, 0)))
    return x[(..., rows, columns)]


def _place(name: str) -> Converter:
    def convert(node: AtenNode, x: Symbol, dim: int | None = None, keepdim: bool = False) -> Any:
        found = getattr(ops, name)(x, dim, keepdims=keepdim and dim is not None)
        return found.reshape(node.shape) if found.shape != node.shape else found

    return convert


TABLE |= {"argmax": _place("argmax"), "argmin": _place("argmin")}


def _extreme(name: str) -> Converter:
    def convert(node: AtenNode, x: Symbol, dim: int, keepdim: bool = False, **_: Any) -> Any:
        place = getattr(ops, f"arg{name}")(x, dim, keepdims=keepdim) if 1 in node.used else None
        return getattr(ops, name)(x, dim, keepdims=keepdim), place

    return convert


TABLE |= {"max.dim": _extreme("max"), "min.dim": _extreme("min")}


@converts("sort.default", "sort.stable")
def sort(
    node: AtenNode,
    x: Symbol,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: Any = None,
    **more: Any,
) -> Any:
    """Sort along a dimension, and return the places from which elements came."""
    dim, descending = more.get("dim", dim), more.get("descending", descending)
    if not x.ndim:
        return x, node.constant(0, (), "int64")
    return _sorted(node, x, dim % x.ndim, descending)


def _sorted(node: AtenNode, x: Symbol, dim: int, descending: bool) -> tuple[Any, Any]:
    order = {"dimension": dim, "comparison_direction": "GT" if descending else "LT"}
    if 1 not in node.used:
        return apply("sort", x, **order), None
    shape = [n if d == dim else 1 for d, n in enumerate(x.shape)]
    places = ops.broadcast_to(node.numbers(x.shape[dim], "int64").reshape(shape), x.shape)
    values, indices = apply_all("sort", x, places, **order, is_stable=True)
    return values, indices


@converts("topk")
def topk(
    node: AtenNode, x: Symbol, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True
) -> Any:
    """Return the largest, or smallest, elements along a dimension, and their places."""
    dim %= x.ndim
    if not largest:
        kept = (*[slice(None)] * dim, slice(k))
        return tuple(part if part is None else part[kept] for part in _sorted(node, x, dim, False))
    if dim == x.ndim - 1:
        return ops.topk(x, k)
    return tuple(ops.moveaxis(part, -1, dim) for part in ops.topk(ops.moveaxis(x, dim, -1), k))


@converts("cumprod")
def cumprod(node: AtenNode, x: Symbol, dim: int, **_: Any) -> Any:
    """Return running products: those of windows that end at each element."""
    return _running(node, x, dim, "prod", 1) if x.ndim else node.cast(x)


def _running(node: AtenNode, x: Symbol, dim: int, monoid: str, identity: Any) -> Any:
    dim, ones = dim % x.ndim, [1] * x.ndim
    window, padding = [*ones], [0] * (2 * x.ndim)
    window[dim], padding[2 * dim] = x.shape[dim], x.shape[dim] - 1
    return apply(
        "reduce_window",
        node.cast(x),
        node.constant(node.cast(identity)),
        window_dimensions=tuple(window),
        window_strides=tuple(ones),
        base_dilations=tuple(ones),
        window_dilations=tuple(ones),
        padding=tuple(padding),
        monoid=monoid,
    )


@converts("bucketize.Tensor")
def bucketize(
    node: AtenNode, x: Symbol, boundaries: Symbol, *, right: bool = False, **_: Any
) -> Any:
    """Return how many of the sorted boundaries are below each element, or equal with `right`."""
    apart = x.reshape((*x.shape, 1))
    below = boundaries <= apart if right else boundaries < apart
    return below.sum(-1, dtype=node.dtype)
