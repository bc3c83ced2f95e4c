"""`Reducer`: computes the next level of a pyramid while the elements of a level arrive.

A window of the outermost reduced dimension is not full until its last row arrives. Until then a
mean, a minimum and a maximum need one number for each window, and a median all elements; only that
is held. The workspace of a reduction is needed while blocks are reduced: all reducers of one kind
share as many as there are threads that work at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from weft.errors import WeftError
from weft.store.dtypes import as_dtype
from weft.store.pyramid.window import (
    WindowFold,
    WindowMedian,
    WindowMode,
    reduced,
    window_classes,
    window_classes_before,
)
from weft.values import Point

Numbers: TypeAlias = np.ndarray[Any, Any]

METHODS = ("mean", "min", "max", "median", "first", "mode")
"""The ways to reduce a window to one element."""

MAX_WINDOW = 1 << 30
"""Elements of a window; the halves of 64-bit sums cannot overflow up to it."""


class Reducer:
    """Reduces a stream of elements, in row-major order, by whole factors along every dimension.

    Windows at the ends may be short. The mean of integers is exact and
    rounds half up, so does the median where two elements are in the middle. Floats are added in
    float64, one after the other as they arrive, and rounded once; NaN in a window gives NaN. Of
    bools, the mean and the median are whether at least half are true. Complex numbers have a mean.
    The mode of integers is the most frequent one, of several the least.
    Where 0.0 and -0.0 are least or greatest, the result may be either.

    >>> reducer = Reducer((None, 2, 4), (2, 2, 2), "mean", "uint8")
    >>> frame = np.arange(8, dtype="uint8").reshape(2, 4)
    >>> [block.tolist() for block in reducer.push(frame)]
    []
    >>> [block.tolist() for block in reducer.push(frame + 1)]
    [[[[3, 5]]]]
    """

    def __init__(
        self, shape: Sequence[int | None], factors: Sequence[int], method: str, dtype: Any
    ) -> None:
        self.name, _ = as_dtype(dtype)
        self.shape, self.factors = check_reduction(shape, factors, method, self.name)
        self.method = method
        self._sizes = tuple(n or 0 for n in self.shape)
        self._units = [prod(self._sizes[dim + 1 :]) for dim in range(len(self.shape))]
        self._first = next((d for d, f in enumerate(self.factors) if f > 1), len(self.factors))
        """The outermost dimension that is reduced."""
        self._at = 0
        """The number of elements that arrived."""
        self._known = 0
        """The number of them that belong to windows that are not full."""
        kind = (method, self.name, self.factors[self._first :])
        self._workspaces = Workspaces.of(kind) if kind[2] else None
        """None where nothing is reduced."""
        self._work: WindowFold | WindowMedian | None = None
        """The workspace, while a block is reduced."""
        with self._working():
            self._held = self._hold()

    def push(self, block: Any) -> Iterator[Numbers]:
        """Take the next elements, and return the blocks of the next level that became complete.

        A block is an array whose sizes, except for the first, are the last ones of the stream:
        frames, lines of a frame, or elements; it may begin and end anywhere. It can be reused as
        soon as this returns.
        """
        rows = self._as_block(block)
        with self._working(), np.errstate(all="ignore"):
            return iter([self._as_output(block) for block in self._walk(rows)])

    def finish(self) -> Iterator[Numbers]:
        """Return the windows that are not full, reduced from the elements that they have."""
        if not self._known:
            return iter(())
        with self._working(), np.errstate(all="ignore"):
            block = self._partial_windows()
        self._known = 0
        return iter([self._as_output(block)])

    def memory(self) -> int:
        """Return the bytes that it holds, from the beginning on."""
        return sum(array.nbytes for array in self._held)

    @property
    def workspaces(self) -> Workspaces | None:
        """The workspaces that it shares with all reducers of its kind."""
        return self._workspaces

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Use a workspace."""
        if self._workspaces is None:
            yield
            return
        self._work = self._workspaces.take()
        try:
            yield
        finally:
            self._workspaces.give_back(self._work)
            self._work = None

    def start_at(self, row: int) -> None:
        """Continue at a row of the outermost dimension, where a window begins."""
        if row % self.factors[0]:
            raise WeftError(f"no window begins at row {row}: they have {self.factors[0]} rows")
        self._at = row * self._units[0]

    def max_output(self, count: int) -> int:
        """Return the most elements that one `push` of `count`, or `finish`, returns."""
        if self._workspaces is None:
            return count
        unit = self._units[self._first]
        inner = reduced(self._sizes[self._first + 1 :], self.factors[self._first + 1 :])
        size, factor = self.shape[self._first], self.factors[self._first]
        rows = count // (unit * min(factor, size or factor)) + 2
        if size is not None:  # each may end with a short window
            rows += count // (unit * size) + 1
        return rows * prod(inner)

    @property
    def reduced_shape(self) -> tuple[int | None, ...]:
        """The shape of the reduced stream."""
        counts = reduced(self._sizes, self.factors)
        return tuple(None if n is None else count for n, count in zip(self.shape, counts))

    # -- blocks

    def _as_block(self, block: Any) -> Numbers:
        rows = np.asarray(block)
        if rows.dtype.name != self.name and not (
            self.name == "bfloat16" and rows.dtype == "uint16"
        ):
            raise WeftError(f"the stream is of {self.name}, and the block of {rows.dtype.name}")
        if self.name in ("bool", "bfloat16"):
            rows = rows.view(np.uint8 if self.name == "bool" else np.uint16)
        rank = len(self.shape)
        if not 1 <= rows.ndim <= rank or rows.shape[1:] != self._sizes[rank - rows.ndim + 1 :]:
            wanted = ", ".join(["…", *map(str, self._sizes[1:])])
            raise WeftError(
                f"a block of {list(rows.shape)} is not a part of a stream of [{wanted}]"
            )
        end = None if self.shape[0] is None else prod(self._sizes)
        if end is not None and self._at + rows.size > end:
            raise WeftError(
                f"{rows.size} elements after {self._at} are past the end of {list(self.shape)}: "
                f"{end}"
            )
        return rows

    def _as_output(self, block: Numbers) -> Numbers:
        return block.view(np.bool_) if self.name == "bool" else block

    # -- rows

    def _walk(self, rows: Numbers) -> Iterator[Numbers]:
        """Reduce rows by the outermost dimension along which they are whole."""
        dim = len(self.shape) - rows.ndim
        if not rows.size:
            return
        if self._work is None:
            self._at += rows.size
            yield rows.copy()
        elif self._at % self._units[dim] or dim < self._first - 1:
            yield from self._walk_inside(rows)
        elif dim < self._first:
            self._at += rows.size
            yield self._work.reduce(rows, self.factors[dim:])
        else:
            yield from self._walk_along(rows, dim)

    def _walk_inside(self, rows: Numbers) -> Iterator[Numbers]:
        """Reduce rows that begin inside others, or have more dimensions before them."""
        if rows.flags.c_contiguous:
            yield from self._walk(rows.reshape(-1, *rows.shape[2:]))
            return
        for row in rows:
            yield from self._walk(row)

    def _walk_along(self, rows: Numbers, dim: int) -> Iterator[Numbers]:
        """Reduce rows that are whole along a reduced dimension, or one after it."""
        while len(rows):
            place, size = self._at // self._units[dim], self.shape[dim]
            left = len(rows)
            if size is not None:
                place %= size
                if dim and not place and len(rows) >= size:
                    count = len(rows) // size * size
                    yield from self._walk(rows[:count].reshape(-1, size, *rows.shape[1:]))
                    rows = rows[count:]
                    continue
                left = min(left, size - place)
            yield from self._take(rows[:left], dim, place)
            rows = rows[left:]

    def _take(self, rows: Numbers, dim: int, place: int) -> Iterator[Numbers]:
        """Reduce rows of one row of the dimension before, window by window."""
        assert self._work is not None
        factor, size = self.factors[dim], self.shape[dim]
        while len(rows):
            begun = place % factor
            is_end = place + len(rows) == size
            count = len(rows) if is_end and not begun else len(rows) // factor * factor
            if begun:
                count = min(factor - begun, len(rows))
            if dim == self._first and not begun and count:
                self._at += rows[:count].size
                yield self._work.reduce(rows[:count], self.factors[dim:])
            else:
                count = count or len(rows)
                yield from self._add(rows[:count], dim, place)
            rows, place = rows[count:], place + count

    # -- windows that are not full

    def _hold(self) -> list[Numbers]:
        """Return the accumulators of one row of windows."""
        if self._work is None:
            return []
        inner, factors = self._sizes[self._first + 1 :], self.factors[self._first :]
        if isinstance(self._work, WindowMedian):
            return [np.empty((factors[0], *inner), self._work.dtype)]
        return self._work.accumulators((1, *reduced(inner, factors[1:])))

    def _add(self, rows: Numbers, dim: int, place: int) -> Iterator[Numbers]:
        """Add a part of windows; yield them where it was the last one."""
        if isinstance(self._work, WindowFold):
            self._fold(self._work, rows, dim, place)
        else:
            flat = self._held[0].reshape(-1)[self._known : self._known + rows.size]
            np.copyto(flat.reshape(rows.shape), rows)
        self._at += rows.size
        self._known += rows.size
        if self._is_full():
            yield self._full()

    def _fold(self, work: WindowFold, rows: Numbers, dim: int, place: int) -> None:
        if not self._known:
            work.clear(self._held)
        places = self._places()
        outer = range(self._first + 1, dim)
        at = [places[d] // self.factors[d] for d in outer]
        begun = any(places[d] % self.factors[d] for d in range(self._first, dim))
        into = [array[0][tuple(at)] if dim > self._first else array for array in self._held]
        factor, factors = self.factors[dim], self.factors[dim + 1 :]
        inside = place % factor
        if dim > self._first:
            first = place // factor
            into = [array[first : first - (-len(rows) // factor)] for array in into]
        step = min(factor, len(rows)) if inside else factor
        work.add(rows, (step, *factors), into, not inside and not begun)

    def _places(self) -> Point:
        """Return where the next element lies, along each dimension."""
        return tuple(
            self._at // unit if size is None else self._at // unit % size
            for unit, size in zip(self._units, self.shape)
        )

    def _rows_known(self) -> int:
        """Return the number of rows of the windows that are not full."""
        return self._known // self._units[self._first]

    def _is_full(self) -> bool:
        unit, size = self._units[self._first], self.shape[self._first]
        if self._at % unit:
            return False
        row = self._at // unit
        return self._rows_known() == self.factors[self._first] or (
            size is not None and row % size == 0
        )

    def _full(self) -> Numbers:
        """Return the windows whose last row arrived."""
        rows = self._rows_known()
        inner, factors = self._sizes[self._first + 1 :], self.factors[self._first + 1 :]
        self._known = 0
        if isinstance(self._work, WindowMedian):
            return self._work.reduce(self._held[0][:rows], (rows, *factors))
        assert self._work is not None
        out = np.empty((1, *reduced(inner, factors)), self._work.dtype)
        self._work.finish(self._held, window_classes((rows, *inner), (rows, *factors)), out)
        return out

    def _partial_windows(self) -> Numbers:
        """Return the windows of which only some elements arrived."""
        if self._known % self._units[self._first] == 0:
            return self._full()
        assert self._work is not None
        factors = self.factors[self._first :]
        sizes = (factors[0], *self._sizes[self._first + 1 :])
        stop = (self._rows_known(), *self._places()[self._first + 1 :])
        classes = list(window_classes_before(stop, sizes, factors))
        out = np.empty(reduced(sizes, factors), self._work.dtype)
        if isinstance(self._work, WindowMedian):
            self._work.finish(self._held[0], factors, classes, out)
        else:
            self._work.finish(self._held, classes, out)
        count = sum(each.windows.size for each in classes)
        return out if count == out.size else out.reshape(-1)[:count]


class Workspaces:
    """The workspaces of one kind of reduction: a method, a dtype and factors; any thread calls it.

    They are freed with the last reducer of their kind.
    """

    def __init__(self, method: str, name: str, factors: Point) -> None:
        self._kind = method, name, factors
        self._free: list[WindowFold | WindowMedian] = [self._new()]
        self.nbytes = self._free[0].nbytes
        """The bytes of one of them."""

    @classmethod
    def of(cls, kind: tuple[str, str, Point]) -> Workspaces:
        """Return the workspaces of a kind, which all of its reducers share."""
        with _LOCK:
            found = _WORKSPACES.get(kind) or cls(*kind)
            _WORKSPACES[kind] = found
            return found

    def take(self) -> WindowFold | WindowMedian:
        """Return one that nobody uses."""
        try:
            return self._free.pop()
        except IndexError:
            return self._new()

    def give_back(self, work: WindowFold | WindowMedian) -> None:
        """Let others use one."""
        self._free.append(work)

    def _new(self) -> WindowFold | WindowMedian:
        method, name, factors = self._kind
        if method == "mode":
            return WindowMode(name, factors)
        if method == "median":
            return WindowMedian(name, factors)
        return WindowFold(method, name, factors)


_WORKSPACES: WeakValueDictionary[tuple[str, str, Point], Workspaces] = WeakValueDictionary()
_LOCK = threading.Lock()


def check_reduction(
    shape: Sequence[int | None], factors: Sequence[int], method: str, dtype: Any
) -> tuple[tuple[int | None, ...], Point]:
    """Return the shape and the factors of a stream; refuse what cannot be reduced.

    >>> check_reduction((None, 4), (1, 2), "median", "complex64")
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: complex64 numbers have no median: they have no order
    hint: mean, first
    """
    name, _ = as_dtype(dtype)
    if method not in METHODS:
        raise WeftError(f"{method!r} is not a way to reduce", hint=", ".join(METHODS))
    if name.startswith("complex") and method not in ("mean", "first"):
        raise WeftError(f"{name} numbers have no {method}: they have no order", hint="mean, first")
    if method == "mode" and not (name == "bool" or "int" in name):
        raise WeftError(f"{name} numbers have no mode: it is for integers, as labels are")
    if not shape or len(shape) != len(factors):
        raise WeftError(f"{len(factors)} factors for {len(shape)} dimensions")
    for dim, (n, f) in enumerate(zip(shape, factors)):
        if isinstance(f, bool) or not isinstance(f, int | np.integer) or f < 1:
            raise WeftError(f"dimension {dim} is reduced by {f!r}: expected an integer from 1 on")
        if n is None and dim:
            raise WeftError(f"dimension {dim} cannot be unbounded: only the outermost can")
        if n is not None and n < (1 if dim else 0):
            raise WeftError(f"dimension {dim} of a stream has the size {n}")
    if prod(factors) > MAX_WINDOW:
        raise WeftError(f"windows of {prod(factors)} elements are too large: at most {MAX_WINDOW}")
    return tuple(None if n is None else int(n) for n in shape), tuple(int(f) for f in factors)
