"""Arrays of any library that keeps the array API standard, and what monoids do to them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from array_api_compat import array_namespace

from weft.lang import struct_array
from weft.lang.kernel import native
from weft.lang.struct_array import StructArray, first_component, inner_index

Array = Any
"""An array of any library."""


def namespace(*arrays: Array) -> Any:
    """The namespace of some arrays.

    >>> import numpy
    >>> namespace(numpy.ones(3), 2.0).sum(numpy.ones(3))
    np.float64(3.0)
    """
    found: Any = array_namespace(*first_component(arrays))
    return found


def empty(xp: Any, shape: Sequence[int], dtype: Any) -> Array:
    """An array with any numbers in it; the dtype is the library's own, or a name."""
    return struct_array.empty(xp, shape, dtype, partial(native, xp))


def copied(xp: Any, array: Array) -> Array:
    """The same numbers in memory of their own."""
    if isinstance(array, StructArray):
        return array.map(lambda part: xp.asarray(part, copy=True))
    return xp.asarray(array, copy=True)


def paste(whole: Array, where: tuple[slice, ...], part: Array) -> Array:
    """An array with another in some place of it; arrays that cannot change are made anew."""
    if isinstance(whole, StructArray):
        parts = iter(part.components)
        return whole.map(lambda mine: paste(mine, inner_index(mine, where), next(parts)))
    if hasattr(whole, "at"):
        return whole.at[where].set(part)
    whole[where] = part
    return whole
