"""Arrays of any library that keeps the array API standard, and what monoids do to them."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from weft.lang.monoid import identity

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
