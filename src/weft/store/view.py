"""Stored arrays that behave as NumPy's: indexed, iterated, compared and computed with.

As in NumPy, basic indices (integers, slices, `...`, `None`) give a view, and arrays of integers or
masks give a copy. A view reads nothing: `a[10:20][..., 5]` is read once its elements are needed,
and then only they are. A copy is a NumPy array, and so is an element, a NumPy scalar.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from weft.errors import WeftError
from weft.store.selection import Gather, IndexingError, Item, Selection, as_items, is_basic
from weft.values import Point, scaled

if TYPE_CHECKING:
    from weft.store.array import Array

MAX_PREFETCH = 1 << 28
"""Bytes that iteration reads at a time, where a row of chunks has more."""

READING = frozenset(
    (
        *("all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "clip"),
        *("compress", "conj", "conjugate", "copy", "cumprod", "cumsum", "diagonal", "dot", "dump"),
        *("dumps", "flat", "flatten", "imag", "item", "max", "mean", "min", "nonzero", "prod"),
        *("ravel", "real", "repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum"),
        *("swapaxes", "T", "mT", "take", "tobytes", "tofile", "tolist", "trace", "transpose"),
        *("var", "view"),
    )
)
"""The attributes of NumPy's arrays that read all elements, and are those of the result."""


class LazyArray(NDArrayOperatorsMixin):
    """An array whose elements are read when they are needed.

    It has the attributes of NumPy's arrays; those that need elements, as `sum`, read all of them.
    """

    dtype: np.dtype[Any]

    @property
    def _source(self) -> Array:
        raise NotImplementedError

    @property
    def _selection(self) -> Selection:
        raise NotImplementedError

    # -- shape

    @property
    def shape(self) -> Point:
        """The shape."""
        return self._selection.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements in memory."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    # -- indexing

    def __getitem__(self, index: Any) -> Any:
        """Return a view for basic indices, an element, or a copy for arrays and masks."""
        if self.dtype.names is not None and _names_fields(index):
            return np.asarray(self)[index]
        items = as_items(index)
        if not is_basic(items):
            return self._source._gather(self._selection.select_advanced(items))
        chosen = self._selection.select(items)
        if not chosen.axes and not any(item is ... for item in items):
            return self._source._gather(chosen.gather())[()]
        return View(self._source, chosen)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "stored arrays are read-only: store.create writes a new one, and "
            "store.open(url, mode='a') appends frames"
        )

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing: each array or mask selects along an axis of its own.

        `a.oindex[[1, 5], :, [0, 2]]` has the shape (2, …, 2).
        """
        return Indexer(self, "outer")

    @property
    def vindex(self) -> Indexer:
        """Pointwise indexing: arrays are broadcast against each other; their axes come first."""
        return Indexer(self, "points")

    def __iter__(self) -> Iterator[Any]:
        """Yield the elements of the first axis; a row of chunks is read at a time."""
        if not self.shape:
            raise TypeError("iteration over an array without dimensions")
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        at = 0
        while at < len(self):
            stop = self._row_end(at)
            yield from np.asarray(self[at:stop])
            at = stop

    def _row_end(self, at: int) -> int:
        """Return where the row of chunks of an element of the first axis ends, along that axis."""
        dim, where = self._selection.axes[0], self._selection.range_of(0)
        if isinstance(dim, range):
            return at + 1
        extent, step = max(1, self._source.chunks[dim]), abs(where.step)
        inside = where[at] % extent
        left = (inside if where.step < 0 else extent - 1 - inside) // step + 1
        row = max(1, prod(self.shape[1:]) * self.itemsize)
        return min(len(self), at + max(1, min(left, MAX_PREFETCH // row)))

    # -- elements

    def _load(self) -> np.ndarray[Any, Any]:
        """Return all elements."""
        return self._source._gather(self._selection.gather())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("copy=False is not possible: elements are read into a new array")
        values = self._load()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        changed = inputs[:1] if method == "at" else options.get("out", ())
        if any(isinstance(each, LazyArray) for each in changed):
            raise TypeError("a stored array is read-only, and not the output of a ufunc")
        given = {key: _as_array(value) for key, value in options.items() if key != "out"}
        given |= {"out": options["out"]} if "out" in options else {}
        return getattr(ufunc, method)(*map(_as_array, inputs), **given)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        # NumPy compares elements of any kind with texts and None, and not by its ufunc alone.
        return self._load() == _as_array(other)

    def __ne__(self, other: object) -> Any:
        return self._load() != _as_array(other)

    def __bytes__(self) -> bytes:
        return self._load().tobytes()

    def __format__(self, spec: str) -> str:
        return format(self._load(), spec) if spec else str(self)

    def __dlpack__(self, **options: Any) -> Any:
        return self._load().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # memory of the host

    def __getattr__(self, name: str) -> Any:
        if name in READING:
            return getattr(self._load(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *READING})

    def __bool__(self) -> bool:
        return bool(self._single())

    def __int__(self) -> int:
        return int(self._single())

    def __float__(self) -> float:
        return float(self._single())

    def __complex__(self) -> complex:
        return complex(self._single())

    def _single(self) -> Any:
        """Return the elements of an array of one; of others just as many as make NumPy refuse."""
        return self._load() if self.size == 1 else np.zeros(min(2, self.size))

    def __contains__(self, value: object) -> bool:
        return value in self._load()

    # -- seeing

    def _facts(self) -> dict[str, str]:
        """Return what is known without reading, by name."""
        kind = f"{self._source.metadata.dtype}{list(self.shape)}"
        return {"type": type(self).__name__, "array": kind, "bytes": scaled(self.nbytes, "B")}

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align: left'>{escape(key)}</th>"
            f"<td style='text-align: left'>{escape(value)}</td></tr>"
            for key, value in self._facts().items()
        )
        return f"<table>{rows}</table>"


class HoldsArrays:
    """Holds arrays, and is none: NumPy is refused, which would make an object array of it."""

    __slots__ = ()
    _ARRAYS = ""
    """How an array of it is found."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise TypeError(f"{self!r} is not an array: {self._ARRAYS} is")


class View(LazyArray):
    """A part of a stored array that basic indices select; nothing of it has been read.

    `read()` and `np.asarray` read it.
    """

    def __init__(self, source: Array, selection: Selection) -> None:
        self._array, self._where = source, selection
        self.dtype = source.dtype

    @property
    def _source(self) -> Array:
        return self._array

    @property
    def _selection(self) -> Selection:
        return self._where

    def read(self, *, threads: int | None = None, device: Any = "cpu") -> Any:
        """Return the elements, on at most `threads` threads; `device` is that of `Array.read`."""
        wanted = self._selection.gather()
        if isinstance(device, str) and device == "cpu":
            return self._source._gather(wanted, threads)
        if wanted.box is None:
            raise WeftError(
                "a view with steps is not read to a GPU", hint="read its box, and take steps there"
            )
        return wanted.arrange(self._source.read(wanted.box, threads=threads, device=device))

    def __reduce__(self) -> tuple[object, ...]:
        return View, (self._array, self._where)

    def __repr__(self) -> str:
        kind = f"{self._source.metadata.dtype}{list(self.shape)}"
        return f"<View {kind} of {self._source!r}>"

    def _facts(self) -> dict[str, str]:
        return super()._facts() | {"of": repr(self._source)}


class Indexer:
    """Indexing of another kind: `array.oindex[…]`, `array.vindex[…]`; elements are read at once."""

    def __init__(self, array: LazyArray, kind: str) -> None:
        self.array, self.kind = array, kind

    def __getitem__(self, index: Any) -> Any:
        items = as_items(index)
        if is_basic(items):
            found = self.array[items]
            return found if np.isscalar(found) else np.asarray(found)
        return self.array._source._gather(self._gather(items))

    def _gather(self, items: tuple[Item, ...]) -> Gather:
        return self.array._selection.select_advanced(items, kind=self.kind)


def _names_fields(index: Any) -> bool:
    """Return whether an index names fields of a record."""
    names = index if isinstance(index, list) and index else [index]
    return all(isinstance(name, str) for name in names)


def _as_array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, LazyArray) else value


__all__ = ["Indexer", "IndexingError", "LazyArray", "View"]
