"""Indexing as NumPy does it: from an index to the elements of a stored array that it selects.

Integers, slices, `...` and `None` are *basic* indices: of each dimension they select one element or
a range. Such a `Selection` takes another index, and nothing is read for it. Arrays of integers and
masks are *advanced*: a `Gather` is what one of them, together with basic ones, selects. Of every
dimension it has a range, or of several at once a list of points, in the order of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from operator import index
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.values import Point

Item: TypeAlias = "int | slice | EllipsisType | np.ndarray[Any, Any] | None"
"""A part of an index; an array has integers or booleans."""


class IndexingError(WeftError, IndexError):
    """An index that an array does not have.

    >>> isinstance(IndexingError("index 9 is out of bounds"), IndexError)
    True
    """


MAX_SPARSE = 4
"""The most elements of a box for each of the points in it, where the box is read instead."""


class ChunkEntry(NamedTuple):
    """The elements of one block of chunks, along some dimensions, that a part of a gather takes."""

    chunk: Point
    start: Point
    """The first element in the chunk, along each of the dimensions."""
    shape: Point
    """The elements from there on, counted in steps, and the steps."""
    steps: Point
    pick: tuple[Any, ...] | None
    """The elements of these that are taken, if not all are: an array for each dimension."""
    target: slice | np.ndarray[Any, Any]
    """Where they go in the result."""


@dataclass(frozen=True, slots=True)
class Run:
    """Elements of one dimension at equal distances, in ascending order.

    >>> [entry.target for entry in Run(0, range(1, 9, 3)).entries((4,), (8,))]
    [slice(0, 1, None), slice(1, 3, None)]
    """

    dim: int
    where: range

    @property
    def dims(self) -> Point:
        """The dimension."""
        return (self.dim,)

    @property
    def size(self) -> int:
        """The number of elements."""
        return len(self.where)

    def entries(self, chunks: Point, shards: Point) -> Iterator[ChunkEntry]:
        """Yield the elements chunk by chunk, those of a shard one after the other."""
        (extent,), first, step = chunks, self.where.start, self.where.step
        at = 0
        while at < len(self.where):
            chunk, start = divmod(self.where[at], extent)
            stop = min(len(self.where), -((first - (chunk + 1) * extent) // step))
            count = stop - at
            steps = (step if count > 1 else 1,)
            yield ChunkEntry((chunk,), (start,), (count,), steps, None, slice(at, stop))
            at = stop


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Points of one or more dimensions, in any order.

    >>> points = Points((0,), (np.array([1, 9, 1]),))
    >>> [(entry.chunk, entry.target) for entry in points.entries((4,), (8,))]
    [((0,), array([0, 2])), ((2,), slice(1, 2, None))]
    """

    dims: Point
    where: tuple[np.ndarray[Any, Any], ...]

    @property
    def size(self) -> int:
        """The number of points."""
        return len(self.where[0])

    def entries(self, chunks: Point, shards: Point) -> Iterator[ChunkEntry]:
        """Yield the points chunk by chunk, those of a shard one after the other."""
        numbers = [where // extent for where, extent in zip(self.where, chunks)]
        outer = [where // extent for where, extent in zip(self.where, shards)]
        order = _sorted_together((*outer, *numbers))
        changes = np.zeros(max(0, len(order) - 1), bool)
        for each in numbers:
            ordered = each[order]
            changes |= ordered[1:] != ordered[:-1]
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(order)]
        for first, stop in pairwise(bounds):
            if first < stop:
                yield self._entry(order[first:stop], numbers, chunks)

    def _entry(
        self, at: np.ndarray[Any, Any], numbers: Sequence[np.ndarray[Any, Any]], chunks: Point
    ) -> ChunkEntry:
        chunk = tuple(int(each[at[0]]) for each in numbers)
        inside = [w[at] - k * extent for w, k, extent in zip(self.where, chunk, chunks)]
        start = tuple(int(each.min()) for each in inside)
        shape = tuple(int(each.max()) - low + 1 for each, low in zip(inside, start))
        pick = tuple(each - low for each, low in zip(inside, start))
        is_run = len(pick) == 1 and len(at) == shape[0] and bool((np.diff(pick[0]) == 1).all())
        steps = (1,) * len(chunk)
        is_next = int(at[-1]) - int(at[0]) == len(at) - 1 and bool((np.diff(at) == 1).all())
        target = slice(int(at[0]), int(at[-1]) + 1) if is_next else at
        return ChunkEntry(chunk, start, shape, steps, None if is_run else pick, target)


def _sorted_together(keys: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return the order that sorts by several keys, the first first; equal ones stay in order."""
    sizes = [int(key.max(initial=0)) + 1 for key in keys]
    if prod(sizes) >= 1 << 62:
        return np.lexsort(tuple(reversed(keys)))
    one = keys[0]
    for key, size in zip(keys[1:], sizes[1:]):
        one = one * size + key
    return np.argsort(one, kind="stable")


class Gather(NamedTuple):
    """The elements that are read, and how they become the result.

    An array of the sizes of `parts` is read; reshaped to `shape`, and turned round along the axes
    `flips`, it is the result, repeated to `result` where an index repeats a new axis.
    """

    parts: tuple[Run | Points, ...]
    shape: Point
    flips: Point
    result: Point

    @property
    def box(self) -> ZRange | None:
        """The box that is read, if all parts are consecutive elements of dimensions in order."""
        starts, stops = [], []
        for dim, part in enumerate(self.parts):
            if not isinstance(part, Run) or part.dim != dim:
                return None
            if part.where.step != 1 and len(part.where) > 1:
                return None
            start = part.where.start if len(part.where) else 0
            starts.append(start)
            stops.append(start + len(part.where))
        return ZRange(starts, stops)

    @property
    def sizes(self) -> Point:
        """The shape that is read."""
        return tuple(part.size for part in self.parts)

    def around(self) -> tuple[tuple[Run | Points, ...], tuple[Any, ...]] | None:
        """Return the parts with a box instead of dense points, and the index of the points in it.

        That is quicker than to sort points by chunk, and takes not much more memory: a mask often
        selects a good part of an array. None where no points are dense.
        """
        for place, part in enumerate(self.parts):
            if not isinstance(part, Points) or len(part.dims) < 2:
                continue
            low = [int(where.min()) for where in part.where]
            high = [int(where.max()) + 1 for where in part.where]
            if prod(b - a for a, b in zip(low, high)) > MAX_SPARSE * part.size:
                return None
            runs = [Run(dim, range(a, b)) for dim, a, b in zip(part.dims, low, high)]
            picks = [where - a for where, a in zip(part.where, low)]
            parts = (*self.parts[:place], *runs, *self.parts[place + 1 :])
            return parts, (*(slice(None),) * place, *picks)
        return None

    def arrange(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the result from what was read."""
        found = values.reshape(self.shape)
        if self.flips:
            turned = [slice(None, None, -1 if n in self.flips else 1) for n in range(found.ndim)]
            found = found[tuple(turned)]
        if self.shape != self.result:
            found = np.broadcast_to(found, self.result).copy()
        return found


@dataclass(frozen=True, slots=True)
class Selection:
    """Of each dimension of an array one element or a range, and the axes that they make.

    >>> whole = Selection.whole((20, 4, 30))
    >>> part = whole.select(as_items(np.s_[10:, None]))
    >>> part.select(as_items(np.s_[..., 5])).dims, part.shape
    ((range(10, 20), range(0, 4), 5), (10, 1, 4, 30))
    """

    dims: tuple[int | range, ...]
    axes: tuple[int | range, ...]
    """The dimension of each axis; a new axis is a range of 1 or 0."""

    @classmethod
    def whole(cls, shape: Point) -> Selection:
        """Return the selection of all elements."""
        return cls(tuple(map(range, shape)), tuple(range(len(shape))))

    @property
    def shape(self) -> Point:
        """The shape of the result."""
        return tuple(len(self.range_of(axis)) for axis in range(len(self.axes)))

    def range_of(self, axis: int) -> range:
        """Return the elements of an axis."""
        dim = self.axes[axis]
        where = dim if isinstance(dim, range) else self.dims[dim]
        return where if isinstance(where, range) else range(where, where + 1)

    def select(self, items: Sequence[Item]) -> Selection:
        """Return the selection that basic indices select of this one."""
        dims, axes, axis = list(self.dims), list[int | range](), 0
        for item in self._expanded(items)[0]:
            if item is None:
                axes.append(range(1))
                continue
            dim, where = self.axes[axis], self.range_of(axis)
            if isinstance(item, slice):
                if isinstance(dim, range):
                    axes.append(where[item])
                else:
                    dims[dim] = where[item]
                    axes.append(dim)
            else:
                place = where[_inside(item, len(where), axis)]
                if not isinstance(dim, range):
                    dims[dim] = place
            axis += 1
        return Selection(tuple(dims), tuple(axes))

    def gather(self) -> Gather:
        """Return what is read for all elements of the selection."""
        parts = [Run(d, *_ascending(w)[:1]) for d, w in enumerate(map(_as_range, self.dims))]
        flips = [n for n in range(len(self.axes)) if _ascending(self.range_of(n))[1]]
        return Gather(tuple(parts), self.shape, tuple(flips), self.shape)

    # -- advanced indices

    def select_advanced(self, items: Sequence[Item], *, kind: str = "numpy") -> Gather:
        """Return what indices with arrays or masks select of this selection.

        `kind` says where the axes of arrays go: as NumPy does it; "points" first; "outer", where
        each array has axes of its own.
        """
        entries, places = self._expanded(items)
        found = _GatherBuilder(self, kind)
        axis, advanced = 0, []
        for number, item in enumerate(entries):
            is_array = isinstance(item, np.ndarray)
            if is_array or isinstance(item, int):
                advanced.append(places[number])
                found.here()
            if item is None:
                found.add_new(range(1))
            elif isinstance(item, slice):
                found.add_range(self.axes[axis], self.range_of(axis)[item])
                axis += 1
            elif isinstance(item, int):
                found.add_fixed(self.axes[axis], self.range_of(axis), item, axis)
                axis += 1
            elif isinstance(item, np.ndarray):
                axis = found.add_array(item, axis)
        is_apart = bool(advanced) and advanced[-1] - advanced[0] != len(advanced) - 1
        return found.build(is_apart or kind == "points")

    def _expanded(self, items: Sequence[Item]) -> tuple[list[Item], list[int]]:
        """Return an item for each axis, and the place in the index from which each comes."""
        taken = sum(_axes_of(item) for item in items)
        rank = len(self.axes)
        if taken > rank:
            raise IndexingError(
                f"too many indices: the array has {rank} dimensions, and {taken} were indexed"
            )
        if sum(item is ... for item in items) > 1:
            raise IndexingError("an index can only have a single ellipsis ('...')")
        if not any(item is ... for item in items):
            items = [*items, ...]
        entries, places = list[Item](), list[int]()
        for place, item in enumerate(items):
            many = [slice(None)] * (rank - taken) if item is ... else [item]
            entries += many
            places += [place] * len(many)
        return entries, places


class _GatherBuilder:
    """Collects the parts of a gather, in the order of the index."""

    def __init__(self, selection: Selection, kind: str) -> None:
        self.selection, self.kind = selection, kind
        self.fixed = [
            Run(dim, range(where, where + 1))
            for dim, where in enumerate(selection.dims)
            if isinstance(where, int)
        ]
        self.axes: list[tuple[Run | Points | None, Point, bool]] = []
        """The parts of the result, each with its shape and whether it is turned round."""
        self.first: int | None = None
        """Where the axes of arrays go, if they stand side by side."""
        self.arrays: list[tuple[int | None, np.ndarray[Any, Any]]] = []

    def here(self) -> None:
        """Mark the place of the first advanced index."""
        if self.first is None:
            self.first = len(self.axes)

    def add_new(self, where: range) -> None:
        """Add a new axis."""
        self.axes.append((None, (len(where),), False))

    def add_range(self, dim: int | range, where: range) -> None:
        """Add an axis of a range."""
        if isinstance(dim, range):
            self.add_new(where)
            return
        ascending, is_turned = _ascending(where)
        self.axes.append((Run(dim, ascending), (len(where),), is_turned))

    def add_fixed(self, dim: int | range, where: range, item: int, axis: int) -> None:
        """Add an integer, which has no axis."""
        place = where[_inside(item, len(where), axis)]
        if not isinstance(dim, range):
            self.fixed.append(Run(dim, range(place, place + 1)))

    def add_array(self, item: np.ndarray[Any, Any], axis: int) -> int:
        """Add an array or a mask; return the axis after it."""
        found: list[tuple[int | None, np.ndarray[Any, Any]]] = []
        if item.dtype.kind != "b":
            found.append(self._along(axis, item))
            axis += 1
        elif item.ndim == 0:
            found.append((None, np.zeros(int(item), np.intp)))
        else:
            shape = self.selection.shape[axis : axis + item.ndim]
            if item.shape != shape:
                raise IndexingError(
                    f"a mask of shape {list(item.shape)} indexes axes of shape {list(shape)}"
                )
            for number, where in enumerate(item.nonzero()):
                found.append(self._along(axis + number, where))
            axis += item.ndim
        if self.kind == "outer":
            self.axes.append(self._points(found))
        else:
            self.arrays += found
        return axis

    def _along(
        self, axis: int, item: np.ndarray[Any, Any]
    ) -> tuple[int | None, np.ndarray[Any, Any]]:
        """Return the elements of a dimension that integers name along an axis."""
        where, dim = self.selection.range_of(axis), self.selection.axes[axis]
        size = len(where)
        if item.size and not -size <= int(item.min()) <= int(item.max()) < size:
            wrong = int(item.min()) if int(item.min()) < -size else int(item.max())
            raise IndexingError(f"index {wrong} is out of bounds for axis {axis} with size {size}")
        places = np.where(item < 0, item + size, item)
        return (None if isinstance(dim, range) else dim), where.start + places * where.step

    def _points(
        self, arrays: Sequence[tuple[int | None, np.ndarray[Any, Any]]]
    ) -> tuple[Points | None, Point, bool]:
        """Return the points that arrays name together, and their shape."""
        try:
            shape = np.broadcast_shapes(*(each.shape for _, each in arrays))
        except ValueError:
            shapes = " ".join(str(each.shape) for _, each in arrays)
            raise IndexingError(
                f"shape mismatch: indexing arrays could not be broadcast together: {shapes}"
            ) from None
        used = [(d, np.broadcast_to(w, shape).reshape(-1)) for d, w in arrays if d is not None]
        if not used:
            return None, shape, False
        return Points(tuple(d for d, _ in used), tuple(w for _, w in used)), shape, False

    def build(self, is_first: bool) -> Gather:
        """Return the gather; the axes of arrays come first, or where the first of them stands."""
        if self.arrays:
            place = 0 if is_first or self.first is None else self.first
            self.axes.insert(place, self._points(self.arrays))
        read, result, flips = list[int](), list[int](), list[int]()
        for part, shape, is_turned in self.axes:
            if is_turned:
                flips.append(len(result))
            read += [1] * len(shape) if part is None and 0 not in shape else shape
            result += shape
        parts = [part for part, _, _ in self.axes if part is not None]
        return Gather((*self.fixed, *parts), tuple(read), tuple(flips), tuple(result))


# -- indices


def as_items(given: Any) -> tuple[Item, ...]:
    """Return the parts of an index, with arrays of integers or booleans for lists.

    >>> as_items((0, slice(2), [1, 2]))
    (0, slice(None, 2, None), array([1, 2]))
    """
    return tuple(map(_as_item, given if isinstance(given, tuple) else (given,)))


def is_basic(items: Sequence[Item]) -> bool:
    """Return whether an index has neither arrays nor masks."""
    return not any(isinstance(item, np.ndarray) for item in items)


def _as_item(given: Any) -> Item:
    if given is None or given is ... or isinstance(given, slice):
        return given
    if not isinstance(given, bool | np.bool_ | np.ndarray | list | tuple):
        try:
            return index(given)
        except TypeError:
            pass  # an array of another library, or no index at all
    try:
        found = np.asarray(given)
    except (ValueError, TypeError):
        raise _no_index(given) from None
    if found.dtype.kind == "b":
        return found
    if found.dtype.kind in "iu":
        return int(found) if found.ndim == 0 else found.astype(np.intp)
    if found.size == 0 and not hasattr(given, "dtype"):  # an empty list has no integers
        return found.astype(np.intp)
    raise _no_index(given)


def _no_index(given: Any) -> IndexingError:
    return IndexingError(
        f"invalid index {given!r:.200}: only integers, slices, '...', None, and arrays of integers "
        f"or booleans are indices"
    )


def _axes_of(item: Item) -> int:
    """Return how many axes an item takes."""
    if item is None or item is ...:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype.kind == "b" else 1


def _inside(item: Any, size: int, axis: int) -> int:
    if not -size <= item < size:
        raise IndexingError(f"index {item} is out of bounds for axis {axis} with size {size}")
    return int(item)


def _as_range(where: int | range) -> range:
    return where if isinstance(where, range) else range(where, where + 1)


def _ascending(where: range) -> tuple[range, bool]:
    """Return a range in ascending order, and whether it was turned round for that."""
    return (where[::-1], True) if where.step < 0 else (where, False)
