"""Monoids on arrays: the identity, how two parts combine, how an array is reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import bounds, dtype_name, kind
from weft.lang.kernel import is_low_precision, native

Array = Any
Axes = tuple[int, ...]


@lru_cache(maxsize=256)
def identity(xp: Any, monoid: str, dtype: Any) -> Any:
    """Return the identity of a monoid for a dtype.

    >>> import numpy
    >>> identity(numpy, "max", numpy.dtype("int8")), identity(numpy, "sum", numpy.dtype("int8"))
    (-128, 0)
    """
    if monoid in ("sum", "or"):
        return False if dtype == xp.bool else 0
    if monoid == "prod":
        return 1
    if monoid == "and":
        return _all_ones(xp, dtype)
    if monoid == "logsumexp":
        return -float("inf")
    if monoid in ("max", "min"):
        return _extreme(xp, dtype, lowest=monoid == "max")
    raise WeftError(f"'{monoid}' has no identity")


def _all_ones(xp: Any, dtype: Any) -> Any:
    if dtype == xp.bool:
        return True
    return bounds(dtype_name(dtype))[1] if kind(dtype_name(dtype)) == "uint" else -1


def _extreme(xp: Any, dtype: Any, lowest: bool) -> Any:
    """Return the least or the greatest number of a dtype."""
    if dtype == xp.bool:
        return not lowest
    if kind(dtype_name(dtype)) in ("int", "uint"):
        return bounds(dtype_name(dtype))[0 if lowest else 1]
    return -float("inf") if lowest else float("inf")


@lru_cache(maxsize=256)
def combination(xp: Any, monoid: str, dtype: Any) -> Callable[[Array, Array], Array]:
    """Return the function that combines two parts.

    >>> import numpy
    >>> combination(numpy, "max", numpy.dtype("int8"))(numpy.int8(3), numpy.int8(5))
    np.int8(5)
    """
    logical = dtype == xp.bool
    names = {
        "sum": "logical_or" if logical else "add",
        "prod": "logical_and" if logical else "multiply",
        "max": "logical_or" if logical else "maximum",
        "min": "logical_and" if logical else "minimum",
        "and": "logical_and" if logical else "bitwise_and",
        "or": "logical_or" if logical else "bitwise_or",
        "logsumexp": "logaddexp",
    }
    if monoid not in names:
        raise WeftError(f"parts of '{monoid}' cannot be combined")
    function: Callable[[Array, Array], Array] = getattr(xp, names[monoid])
    return function


def reduction(xp: Any, monoid: str, dtype: Any) -> Callable[[Any, Axes], Any]:
    """Return the function that reduces an array along axes by a monoid.

    Sums and products are computed in `dtype`, whatever the dtype of the array.

    >>> import numpy
    >>> int(reduction(numpy, "max", numpy.dtype("int8"))(numpy.asarray([3, 5]), (0,)))
    5
    """
    logical = dtype == xp.bool
    match monoid:
        case "sum" | "prod" if not logical:
            along = getattr(xp, monoid)
            return lambda x, axes: along(x, axis=axes, dtype=dtype)
        case "max" | "min" if not logical:
            along = getattr(xp, monoid)
            return lambda x, axes: _reduce_any(xp, along, x, axes, identity(xp, monoid, dtype))
        case "and" | "min" | "prod" if logical:
            return lambda x, axes: xp.all(x, axis=axes)
        case "or" | "max" | "sum" if logical:
            return lambda x, axes: xp.any(x, axis=axes)
        case "and" | "or":
            both, empty = getattr(xp, f"bitwise_{monoid}"), identity(xp, monoid, dtype)
            return lambda x, axes: _bitwise(xp, both, x, axes, empty)
        case "logsumexp":
            return lambda x, axes: logsumexp(xp, x, axes)
    raise WeftError(f"there is no reduction by '{monoid}'")


def _reduce_any(xp: Any, along: Callable[..., Any], x: Any, axes: Axes, empty: Any) -> Any:
    """Reduce along axes; no elements give the identity."""
    if all(x.shape[axis] for axis in axes):
        return along(x, axis=axes)
    kept = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    return xp.full(kept, empty, dtype=x.dtype)


def _bitwise(xp: Any, both: Callable[[Any, Any], Any], x: Any, axes: Axes, empty: int) -> Any:
    for axis in sorted(axes, reverse=True):
        head = (slice(None),) * axis
        total = xp.full((*x.shape[:axis], *x.shape[axis + 1 :]), empty, dtype=x.dtype)
        for n in range(x.shape[axis]):
            total = both(total, x[(*head, n, ...)])
        x = total
    return x


def combine(xp: Any, monoid: str, parts: Sequence[Array]) -> Array:
    """Combine parts in their order; low-precision floats are rounded once.

    >>> import numpy
    >>> int(combine(numpy, "sum", [numpy.asarray(1, "float16")] * 5000))
    5000
    """
    first = parts[0]
    if not is_low_precision(first.dtype) or monoid in ("max", "min"):
        return reduce(combination(xp, monoid, first.dtype), parts)
    wide = native(xp, "float32")
    total = reduce(combination(xp, monoid, wide), (xp.astype(part, wide) for part in parts))
    return xp.astype(total, first.dtype)


def logsumexp(xp: Any, x: Any, axes: Axes) -> Any:
    """Return the logarithm of a sum of exponentials, shifted by the largest to avoid overflow."""
    if not all(x.shape[axis] for axis in axes):
        kept = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
        return xp.full(kept, -float("inf"), dtype=x.dtype)
    top = xp.max(x, axis=axes, keepdims=True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    total = xp.sum(xp.exp(x - top), axis=axes, keepdims=True)
    return xp.squeeze(xp.log(total) + top, axis=axes)
