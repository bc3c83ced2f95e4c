"""Kernels of reductions by a monoid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.errors import WeftError
from weft.lang.block import Block, Kernel

Axes = tuple[int, ...]


def reduction(xp: Any, monoid: str, dtype: Any) -> Callable[[Any, Axes], Any]:
    """What reduces an array along axes by a monoid.

    >>> import numpy
    >>> int(reduction(numpy, "max", numpy.dtype("int8"))(numpy.asarray([3, 5]), (0,)))
    5
    """
    logical = dtype == xp.bool
    match monoid:
        case "sum" | "prod" if not logical:
            along = getattr(xp, monoid)
            return lambda x, axes: along(x, axis=axes, dtype=x.dtype)
        case "max" | "min" if not logical:
            along = getattr(xp, monoid)
            return lambda x, axes: along(x, axis=axes)
        case "and" | "min" | "prod" if logical:
            return lambda x, axes: xp.all(x, axis=axes)
        case "or" | "max" | "sum" if logical:
            return lambda x, axes: xp.any(x, axis=axes)
        case "and" | "or":
            return lambda x, axes: _bitwise(getattr(xp, f"bitwise_{monoid}"), x, axes)
        case "logsumexp":
            return lambda x, axes: logsumexp(xp, x, axes)
    raise WeftError(f"there is no reduction by '{monoid}'")


def _bitwise(both: Callable[[Any, Any], Any], x: Any, axes: Axes) -> Any:
    for axis in sorted(axes, reverse=True):
        head = (slice(None),) * axis
        total = x[(*head, 0, ...)]
        for place in range(1, x.shape[axis]):
            total = both(total, x[(*head, place, ...)])
        x = total
    return x


def logsumexp(xp: Any, x: Any, axes: Axes, keepdims: bool = False) -> Any:
    """The logarithm of a sum of exponentials, from the largest, so that none overflows."""
    top = xp.max(x, axis=axes, keepdims=True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    total = xp.sum(xp.exp(x - top), axis=axes, keepdims=True)
    with_dims = xp.log(total) + top
    if keepdims:
        return with_dims
    return xp.squeeze(with_dims, axis=axes)


def reduce(block: Block, *operands: Any) -> Any:
    """One input reduced, and an initial value that counts once."""
    if block.attributes.get("region") == "custom" or len(operands) != 2:
        raise WeftError("a reduction by a region of its own cannot be run box by box")
    x, init = operands
    monoid, axes = block.attributes.get("monoid", "sum"), tuple(block.attributes["dimensions"])
    both = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
    made = reduction(block.xp, monoid, x.dtype)(x, axes) if axes else x
    if monoid in both and x.dtype != block.xp.bool:
        return getattr(block.xp, both[monoid])(made, init)
    return made & init if monoid in ("and", "min", "prod") else made | init


def along(monoid: str, mean: bool = False) -> Kernel:
    """The kernel that reduces along `dimensions`, keeping them as single if `keep` says so."""

    def kernel(block: Block, x: Any) -> Any:
        axes = tuple(dim % x.ndim for dim in block.attributes["dimensions"])
        made = reduction(block.xp, monoid, x.dtype)(x, axes) if axes else x
        if mean:
            whole = block.signature.operand_shapes[0]
            for axis in axes:
                made = made / whole[axis]
        return block.xp.reshape(made, block.results[0].shape)

    return kernel
