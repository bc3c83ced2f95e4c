"""ATen's products and reductions."""

from __future__ import annotations

from math import inf, prod
from typing import Any

from weft.interop.aten.table import TABLE, Said, To, refuse, says
from weft.lang import Symbol, ops
from weft.lang.arithmetic import apply, normalize_axis


@says("mm", "bmm", "matmul")
def matmul(to: To, x: Symbol, y: Symbol) -> Any:
    """A product of matrices, vectors, or batches of matrices."""
    return x @ y


@says("linear")
def linear(to: To, x: Symbol, weight: Symbol, bias: Symbol | None = None) -> Any:
    """A matrix for the last dimension, whose rows make features; a bias is added behind."""
    made = apply(
        "dot_general",
        x,
        weight,
        lhs_contracting_dimensions=(x.ndim - 1,),
        rhs_contracting_dimensions=(weight.ndim - 1,),
    )
    return made if bias is None else made + bias


@says("addmm")
def addmm(to: To, bias: Symbol, x: Symbol, y: Symbol, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """A product of matrices, and something added to it."""
    made = x @ y if alpha == 1 else (x @ y) * to.cast(alpha)
    if beta == 0:
        return made
    return made + (bias if beta == 1 else bias * to.cast(beta))


def _along(name: str) -> Said:
    def said(to: To, x: Symbol, dims: Any = None, keep: bool = False, **said: Any) -> Symbol:
        given = None if dims is None or dims == [] else dims
        keep = said.get("keepdim", keep)
        more = {"dtype": to.dtype} if name in ("sum", "mean", "prod") else {}
        found: Symbol = getattr(ops, name)(to.cast(x), given, keepdims=keep, **more)
        return found

    return said


for _name, _other in {
    "sum": "sum",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
    "prod": "prod",
    "max.default": "max",
    "min.default": "min",
}.items():
    TABLE[_name] = _along(_other)


def _truth(name: str) -> Said:
    def said(to: To, x: Symbol, dims: Any = None, keep: bool = False, **_: Any) -> Any:
        flags = x
        if x.dtype != "bool":
            flags = apply("compare", x, to.cast(0, x.dtype), comparison_direction="NE")
        return getattr(ops, name)(flags, dims, keepdims=keep)

    return said


TABLE["any"] = _truth("any")


def _extreme(name: str) -> Said:
    def said(to: To, x: Symbol, dim: int, keep: bool = False, **_: Any) -> Any:
        return getattr(ops, name)(x, dim, keepdims=keep), None

    return said


TABLE["max.dim"], TABLE["min.dim"] = _extreme("max"), _extreme("min")


@says("var")
def var(to: To, x: Symbol, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    """The mean square of what is left without the mean; with a correction it is larger."""
    across = normalize_axis(dims or None, x.ndim)
    count = prod(x.shape[dim] for dim in across)
    apart = x - x.mean(across, keepdims=True)
    less = count - (1 if correction is None else correction)
    if less <= 0:
        raise refuse(f"the variance of {count} elements with a correction of {correction}")
    return apply("square", apart).sum(across, keepdims=keepdim) / float(less)


def _soft(name: str) -> Said:
    def said(to: To, x: Symbol, dim: int, *_: Any, **__: Any) -> Any:
        return getattr(ops, name)(to.cast(x), dim)

    return said


TABLE["_softmax"], TABLE["_log_softmax"] = _soft("softmax"), _soft("log_softmax")


@says("linalg_vector_norm")
def norm(
    to: To, x: Symbol, order: float = 2, dims: Any = None, keep: bool = False, **_: Any
) -> Any:
    """The length of vectors: by squares, by sizes, or by the largest."""
    x = to.cast(x)
    if order == 2:
        return apply("sqrt", ops.sum(apply("square", x), dims, keepdims=keep))
    if order not in (1, inf):
        raise refuse(f"a norm of order {order:g}", "take 1, 2 or inf")
    return (ops.sum if order == 1 else ops.max)(abs(x), dims, keepdims=keep)


@says("cumsum")
def cumsum(to: To, x: Symbol, dim: int, **_: Any) -> Any:
    """Running sums along a dimension."""
    return ops.cumsum(to.cast(x), dim, dtype=to.dtype)
