"""`StructArray`: an array whose elements have several components, each kept as an array of its own.

Any array library can hold the components, so that nothing here depends on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import Component, components, dtype_name, itemsize, struct_dtype

Array = Any


@dataclass(frozen=True, slots=True)
class StructType:
    """The dtype of a struct array.

    >>> StructType("struct<value: float32, index: int64>").itemsize
    12
    """

    name: str

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return itemsize(self.name)

    def __str__(self) -> str:
        return self.name


class StructArray:
    """Arrays of one shape that are the components of one array.

    A component may have dimensions of its own behind those of the array. `x["name"]` is a
    component, and any other index selects elements, as in NumPy's structured arrays.

    >>> import numpy as np
    >>> pairs = StructArray({"value": np.asarray([3.0, 5.0]), "index": np.asarray([4, 0])}, ndim=1)
    >>> print(pairs.dtype, pairs[1:]["value"])
    struct<value: float64, index: int64> [5.]
    """

    __slots__ = ("_parts", "dtype", "ndim")

    def __init__(self, parts: dict[str, Array], ndim: int) -> None:
        self._parts, self.ndim = parts, ndim
        self.dtype = StructType(
            struct_dtype(
                Component(name, dtype_name(part.dtype), tuple(part.shape[ndim:]))
                for name, part in parts.items()
            )
        )

    @classmethod
    def of(cls, array: Array) -> StructArray:
        """Return a structured array of NumPy as a struct array, without a copy.

        >>> import numpy as np
        >>> StructArray.of(np.zeros(2, [("value", "float32"), ("index", "int64")]))
        StructArray(struct<value: float32, index: int64>[2])
        """
        return cls({name: array[name] for name in array.dtype.names}, array.ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array, without what the components have behind it."""
        return tuple(next(iter(self._parts.values())).shape[: self.ndim])

    @property
    def components(self) -> tuple[Array, ...]:
        """The arrays of the components, in order."""
        return tuple(self._parts.values())

    @property
    def nbytes(self) -> int:
        """The bytes of all components."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def device(self) -> Any:
        """The device of the components."""
        return self.components[0].device

    def map(self, function: Callable[[Array], Array], ndim: int | None = None) -> StructArray:
        """Return the array whose components a function makes of these, with `ndim` dimensions."""
        parts = {name: function(part) for name, part in self._parts.items()}
        return StructArray(parts, self.ndim if ndim is None else ndim)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self._parts:
                raise WeftError(
                    f"{self.dtype} has no component {key}", hint=f"it has {', '.join(self._parts)}"
                )
            return self._parts[key]
        every = key if isinstance(key, tuple) else (key,)
        gone = sum(isinstance(part, int) for part in every)
        if any(part is ... for part in every):
            every = _expand(every, self.ndim)
        return self.map(lambda part: part[inner_index(part, every)], self.ndim - gone)

    def __setitem__(self, key: tuple[slice, ...], other: StructArray) -> None:
        for mine, theirs in zip(self.components, other.components):
            mine[inner_index(mine, key)] = theirs

    def copy(self) -> StructArray:
        """Return the same components in memory of their own; for arrays of NumPy."""
        return self.map(lambda part: part.copy())

    def reshape(self, xp: Any, shape: Sequence[int]) -> StructArray:
        """Return the same elements in another shape."""
        return self.map(
            lambda part: xp.reshape(part, (*shape, *part.shape[self.ndim :])), len(shape)
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The same as a structured array of NumPy."""
        numpy = import_module("numpy")
        arrays = {name: numpy.asarray(part) for name, part in self._parts.items()}
        types = [(name, part.dtype, part.shape[self.ndim :]) for name, part in arrays.items()]
        made = numpy.empty(self.shape, types)
        for name, part in arrays.items():
            made[name] = part
        return made

    def __repr__(self) -> str:
        return f"StructArray({self.dtype}{list(self.shape)})"


def inner_index(part: Array, key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the index of elements as one of a component, which may have more dimensions."""
    return key if part.ndim == len(key) else (*key, ...)


def _expand(key: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Return an index with its ellipsis written out.

    >>> _expand((..., 0), 3)
    (slice(None, None, None), slice(None, None, None), 0)
    """
    place = next(n for n, part in enumerate(key) if part is ...)
    return (*key[:place], *(slice(None),) * (ndim - len(key) + 1), *key[place + 1 :])


def empty(xp: Any, shape: Sequence[int], dtype: Any, like: Callable[[str], Any]) -> Array:
    """Return an array with any numbers in it; `like` returns the library's dtype of a name."""
    parts = components(dtype_name(dtype))
    if not parts:
        own = like(dtype) if isinstance(dtype, str) else dtype
        return xp.empty(tuple(shape), dtype=own)
    made = {each.name: xp.empty((*shape, *each.shape), dtype=like(each.dtype)) for each in parts}
    return StructArray(made, len(shape))


def concatenate(xp: Any, arrays: Sequence[Array], axis: int) -> Array:
    """Return arrays side by side along an axis, counted from the front."""
    first = arrays[0]
    if not isinstance(first, StructArray):
        return xp.concat(list(arrays), axis=axis)
    names = [each.name for each in components(first.dtype.name)]
    parts = {name: xp.concat([each[name] for each in arrays], axis=axis) for name in names}
    return StructArray(parts, first.ndim)


def first_component(arrays: Iterable[Array]) -> list[Array]:
    """Return arrays of a library: of a struct array its first component."""
    return [each.components[0] if isinstance(each, StructArray) else each for each in arrays]
