"""What monoids do to arrays: what they leave as it is, how they combine, how they reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import bounds, dtype_name, kind
from weft.lang.kernels.dtypes import is_low_precision, native

Array = Any
Axes = tuple[int, ...]


@lru_cache(maxsize=256)
def identity(xp: Any, monoid: str, dtype: Any) -> Any:
    """What a monoid leaves as it is, for a dtype.

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
    raise WeftError(f"there is nothing that '{monoid}' leaves as it is")


def _all_ones(xp: Any, dtype: Any) -> Any:
    if dtype == xp.bool:
        return True
    return bounds(dtype_name(dtype))[1] if kind(dtype_name(dtype)) == "uint" else -1


def _extreme(xp: Any, dtype: Any, lowest: bool) -> Any:
    """The least or the greatest number of a dtype."""
    if dtype == xp.bool:
        return not lowest
    if kind(dtype_name(dtype)) in ("int", "uint"):
        return bounds(dtype_name(dtype))[0 if lowest else 1]
    return -float("inf") if lowest else float("inf")


@lru_cache(maxsize=256)
def combination(xp: Any, monoid: str, dtype: Any) -> Callable[[Array, Array], Array]:
    """What combines two parts.

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
    found: Callable[[Array, Array], Array] = getattr(xp, names[monoid])
    return found


def reduction(xp: Any, monoid: str, dtype: Any) -> Callable[[Any, Axes], Any]:
    """Return what reduces an array along axes by a monoid, in a dtype.

    Sums and products are made in that dtype of arrays of any other.

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
            return lambda x, axes: _of_any(xp, along, x, axes, identity(xp, monoid, dtype))
        case "and" | "min" | "prod" if logical:
            return lambda x, axes: xp.all(x, axis=axes)
        case "or" | "max" | "sum" if logical:
            return lambda x, axes: xp.any(x, axis=axes)
        case "and" | "or":
            both, nothing = getattr(xp, f"bitwise_{monoid}"), identity(xp, monoid, dtype)
            return lambda x, axes: _bitwise(xp, both, x, axes, nothing)
        case "logsumexp":
            return lambda x, axes: logsumexp(xp, x, axes)
    raise WeftError(f"there is no reduction by '{monoid}'")


def _of_any(xp: Any, along: Callable[..., Any], x: Any, axes: Axes, nothing: Any) -> Any:
    """A reduction that has a value for no element, too."""
    if all(x.shape[axis] for axis in axes):
        return along(x, axis=axes)
    kept = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    return xp.full(kept, nothing, dtype=x.dtype)


def _bitwise(xp: Any, both: Callable[[Any, Any], Any], x: Any, axes: Axes, nothing: int) -> Any:
    for axis in sorted(axes, reverse=True):
        head = (slice(None),) * axis
        total = xp.full((*x.shape[:axis], *x.shape[axis + 1 :]), nothing, dtype=x.dtype)
        for place in range(x.shape[axis]):
            total = both(total, x[(*head, place, ...)])
        x = total
    return x


def combine(xp: Any, monoid: str, parts: Sequence[Array]) -> Array:
    """Return parts combined, in their order; floats of less than 32 bits are rounded once.

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
    """The logarithm of a sum of exponentials, from the largest, so that none overflows."""
    if not all(x.shape[axis] for axis in axes):
        kept = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
        return xp.full(kept, -float("inf"), dtype=x.dtype)
    top = xp.max(x, axis=axes, keepdims=True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    total = xp.sum(xp.exp(x - top), axis=axes, keepdims=True)
    return xp.squeeze(xp.log(total) + top, axis=axes)
