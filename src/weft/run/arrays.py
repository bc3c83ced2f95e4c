"""Arrays of any library that keeps the array API standard, and what monoids do to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from array_api_compat import array_namespace

from weft.errors import WeftError

Array = Any
"""An array of any library."""


def namespace(*arrays: Array) -> Any:
    """The namespace of some arrays.

    >>> import numpy
    >>> namespace(numpy.ones(3), 2.0).sum(numpy.ones(3))
    np.float64(3.0)
    """
    found: Any = array_namespace(*arrays)
    return found


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
        return True if dtype == xp.bool else -1
    if monoid == "logsumexp":
        return -float("inf")
    if monoid in ("max", "min"):
        return _extreme(xp, dtype, lowest=monoid == "max")
    raise WeftError(f"there is nothing that '{monoid}' leaves as it is")


def _extreme(xp: Any, dtype: Any, lowest: bool) -> Any:
    """The least or the greatest number of a dtype."""
    if dtype == xp.bool:
        return not lowest
    if xp.isdtype(dtype, "integral"):
        info = xp.iinfo(dtype)
        return int(info.min if lowest else info.max)
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


def masked(xp: Any, array: Array, monoid: str) -> Array:
    """An array of its shape that a monoid does not see.

    >>> import numpy
    >>> masked(numpy, numpy.ones(2, "float32"), "prod")
    array([1., 1.], dtype=float32)
    """
    return xp.full(array.shape, identity(xp, monoid, array.dtype), dtype=array.dtype)


def paste(whole: Array, where: tuple[slice, ...], part: Array) -> Array:
    """An array with another in some place of it; arrays that cannot change are made anew."""
    if hasattr(whole, "at"):
        return whole.at[where].set(part)
    whole[where] = part
    return whole
