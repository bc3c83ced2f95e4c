"""Windows of a reduction: blocks of elements that become one element of the next level.

The windows of a level are the blocks of a `BlockGrid`; the last ones may be short. `WindowFold`
computes the mean, minimum, maximum or first element of windows, and `WindowMedian` the median, both
exactly and in bounded memory.

Integers are added in a type that holds any sum, or in their own where the values are small enough;
64-bit ones in two halves. Floats are added in float64, in arrival order, so that the result does
not depend on how a stream was cut into blocks. The median of small windows is found by a sorting
network: the same minima and maxima for all windows at once, and of those only the ones that the
middle depends on. NaN passes through both sides of a comparison, and so reaches the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import inf, prod
from typing import Any, TypeAlias

import numpy as np

from weft.space import BlockGrid, ZRange
from weft.store.dtypes import as_dtype
from weft.values import Point

Numbers: TypeAlias = np.ndarray[Any, Any]
Slices: TypeAlias = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class WindowClass:
    """A box of windows that all have the same elements, relative to each window's first place."""

    windows: ZRange
    count: int
    """The number of elements of a window."""
    offsets: Iterable[Point]


def reduced(sizes: Sequence[int], factors: Sequence[int]) -> Point:
    """Return the number of windows along each dimension.

    >>> reduced((5, 8), (2, 4))
    (3, 2)
    """
    return BlockGrid.blocks(sizes, factors).counts


def window_classes(sizes: Sequence[int], factors: Sequence[int]) -> Iterator[WindowClass]:
    """Yield the windows by their number of elements: full ones, and short ones at the ends.

    >>> [(str(each.windows), each.count) for each in window_classes((5,), (2,))]
    [('[0:2]', 2), ('[2:3]', 1)]
    """
    grid = BlockGrid.blocks(sizes, factors)
    for picked in product(*map(grid.classes, range(grid.ndim))):
        extents = [each.extent for each in picked]
        windows = ZRange.of([each.count for each in picked], [each.first for each in picked])
        yield WindowClass(windows, prod(extents), product(*map(range, extents)))


def window_classes_before(
    stop: Sequence[int], sizes: Sequence[int], factors: Sequence[int]
) -> Iterator[WindowClass]:
    """Yield the windows that have elements before `stop` in row-major order, by which they have.

    >>> for each in window_classes_before((1, 1), (2, 2), (2, 1)):
    ...     print(each.windows, list(each.offsets))
    [0:1, 0:1] [(0, 0), (1, 0)]
    [0:1, 1:2] [(0, 0)]
    """
    grid, whole = BlockGrid.blocks(sizes, factors), ZRange.of(sizes)
    classes = [each.windows for each in window_classes(sizes, factors)]
    for box in _boxes_before(stop, grid):
        for windows in (box & each for each in classes):
            if windows.is_empty:
                continue
            first = [low * f for low, f in zip(windows.start, factors)]
            offsets = [
                offset
                for offset in product(*map(range, factors))
                for at in [tuple(a + o for a, o in zip(first, offset))]
                if at in whole and at < tuple(stop)
            ]
            if offsets:
                yield WindowClass(windows, len(offsets), offsets)


def _boxes_before(stop: Sequence[int], grid: BlockGrid) -> Iterator[ZRange]:
    """Yield boxes of windows on both sides of the one that holds `stop`, by dimension."""
    low, high = [0] * grid.ndim, list(grid.counts)
    for dim, (at, factor) in enumerate(zip(stop, grid.block_shape)):
        here = min(at // factor, grid.counts[dim])
        yield ZRange(low, [*high[:dim], here, *high[dim + 1 :]])
        after = min(here + 1, grid.counts[dim])
        yield ZRange([*low[:dim], after, *low[dim + 1 :]], high)
        low[dim], high[dim] = here, after
    yield ZRange(low, high)


def pieces(shape: Sequence[int], limit: int) -> list[ZRange]:
    """Return boxes that cover an array, in row-major order, of at most `limit` elements each.

    >>> print(*pieces((2, 5), 4)[:2])
    [0:1, 0:4] [0:1, 4:5]
    """
    extents, left = [1] * len(shape), limit
    for dim in reversed(range(len(shape))):
        extents[dim] = max(1, min(shape[dim], left))
        left //= extents[dim]
    return BlockGrid.blocks(shape, extents).boxes()


def element_slices(windows: ZRange, factors: Sequence[int]) -> Slices:
    """Return the elements of a box of windows as an index; it ends where the array ends."""
    sides = zip(windows.start, windows.stop, factors)
    return tuple(slice(low * f, high * f) for low, high, f in sides)


PIECE = 1 << 18
"""Elements that are reduced at a time, so that they stay in a core's cache."""

LOW = 0xFFFFFFFF
"""The lower half of a 64-bit integer."""

_TINY = 2.0**-126
"""Below it, bfloat16 has steps of 2^-133."""

_STEPS = 1.5 * 2.0 ** (52 - 133)
"""Added and taken off again, it rounds a small float64 to steps of 2^-133."""


class WindowFold:
    """Reduces every window to one element; it holds its workspace, and nothing else.

    >>> WindowFold("mean", "uint8", (2, 2)).reduce(np.uint8([[1, 2, 9], [3, 5, 7]]), (2, 2))
    array([[3, 8]], dtype=uint8)
    """

    def __init__(
        self, method: str, name: str, factors: Sequence[int], max_windows: int = 0
    ) -> None:
        self.method, self.name = method, name
        self.dtype = np.dtype("uint8") if name == "bool" else as_dtype(name)[1]
        self.op = {"min": np.minimum, "max": np.maximum}.get(method, np.add)
        count = prod(factors)
        self.held = self._held(count)
        self.planes = 2 if method == "mean" and self.dtype.kind in "iu" and self.is_64 else 1
        self.max_windows = max_windows or max(1 << 10, PIECE // count)
        """Windows that are reduced at a time."""
        self._sums = [np.empty(self.max_windows, self.held) for _ in range(self.planes)]
        self._spare = np.empty(self.max_windows, self.held)
        self._own = np.empty(self.max_windows, self.dtype)
        self._rows = np.empty(self.max_windows * factors[-1], self.dtype)
        self._small = np.empty(self.max_windows, bool)

    @property
    def is_64(self) -> bool:
        """Whether elements have 64 bits; sums of such integers are kept in halves."""
        return self.dtype.itemsize == 8

    def _held(self, count: int) -> np.dtype[Any]:
        """Return the type of the accumulator of a window."""
        if self.name == "bfloat16" and self.method != "first":
            return np.dtype("float64" if self.method == "mean" else "float32")
        if self.method != "mean":
            return self.dtype
        if self.dtype.kind in "fc":
            return np.dtype("complex128" if self.dtype.kind == "c" else "float64")
        limits = np.iinfo(self.dtype)
        most = max(limits.max, -limits.min) * count + count
        sizes = (size for size in (2, 4, 8) if size >= self.dtype.itemsize)
        kinds = (np.dtype(f"{self.dtype.kind}{size}") for size in sizes)
        return next((k for k in kinds if np.iinfo(k).max >= most), np.dtype(f"{self.dtype.kind}8"))

    @property
    def nbytes(self) -> int:
        """The bytes of its workspace."""
        held = [*self._sums, self._spare, self._own, self._rows, self._small]
        return sum(array.nbytes for array in held)

    def accumulators(self, shape: Sequence[int]) -> list[Numbers]:
        """Return accumulators for windows that are not full yet."""
        return [np.empty(shape, self.held) for _ in range(self.planes)]

    def clear(self, into: Sequence[Numbers]) -> None:
        """Reset accumulators."""
        for array in into:
            array.fill(self._identity())

    def _identity(self) -> Any:
        """Return the identity: -0.0 of a sum of floats, because 0.0 + -0.0 is 0.0."""
        if self.method in ("mean", "first"):
            return -0.0 if self.held.kind == "f" else 0
        if self.held.kind == "f":
            return inf if self.method == "min" else -inf
        limits = np.iinfo(self.held)
        return limits.max if self.method == "min" else limits.min

    # -- whole windows

    def reduce(self, block: Numbers, factors: Sequence[int]) -> Numbers:
        """Return the windows of a block that has all of their elements."""
        out = np.empty(reduced(block.shape, factors), self.dtype)
        for windows in pieces(out.shape, self.max_windows):
            part = block[element_slices(windows, factors)]
            sums = self._folded(part, factors)
            target = out[windows.slices()]
            for each in window_classes(part.shape, factors):
                where = each.windows.slices()
                self._finish([array[where] for array in sums], each.count, target[where])
        return out

    def add(
        self, block: Numbers, factors: Sequence[int], into: Sequence[Numbers], is_first: bool
    ) -> None:
        """Fold elements of windows into their accumulators.

        `is_first` says that the first element of every window is among them.
        """
        if self.method == "first":
            if is_first:
                np.copyto(into[0], block[tuple(slice(0, None, f) for f in factors)])
            return
        for windows in pieces(into[0].shape, self.max_windows):
            part = block[element_slices(windows, factors)]
            target = [array[windows.slices()] for array in into]
            if self._is_exact(part, prod(factors)):
                self._join(target, self._in_own_type(part, factors))
            else:
                for where, numbers in self._numbers(part, factors):
                    self._join([array[where] for array in target], numbers)

    def finish(self, into: Sequence[Numbers], classes: Iterable[WindowClass], out: Numbers) -> None:
        """Write the elements of the next level from accumulators."""
        for each in classes:
            for piece in pieces(each.windows.shape, self.max_windows):
                at = piece.translate(each.windows.start).slices()
                self._finish([array[at] for array in into], each.count, out[at])

    # -- folding

    def _folded(self, part: Numbers, factors: Sequence[int]) -> list[Numbers]:
        if self.method == "first":
            return [part[tuple(slice(0, None, f) for f in factors)]]
        if self._is_exact(part, prod(factors)):
            return [self._in_own_type(part, factors)]
        shape = reduced(part.shape, factors)
        sums = [array[: prod(shape)].reshape(shape) for array in self._sums]
        for count, (where, numbers) in enumerate(self._numbers(part, factors)):
            if count == 0:
                self._begin(sums, numbers)
            else:
                self._join([array[where] for array in sums], numbers)
        return sums

    def _is_exact(self, part: Numbers, count: int) -> bool:
        """Return whether folding in the elements' own type loses nothing."""
        if self.name == "bfloat16" or self.dtype.kind in "fc":
            return self.method != "mean" and self.name != "bfloat16"
        if self.method != "mean":
            return True
        limits = np.iinfo(self.dtype)
        if count > limits.max:
            return False
        least = int(part.min()) if self.dtype.kind == "i" else 0
        return int(part.max()) * count + count // 2 <= limits.max and least * count >= limits.min

    def _in_own_type(self, part: Numbers, factors: Sequence[int]) -> Numbers:
        """Fold rows onto rows first, which are contiguous, and then within each row."""
        *outer, last = factors
        shape = reduced(part.shape, factors)
        if prod(outer) > 1:
            wide = (*shape[:-1], part.shape[-1])
            rows = self._rows[: prod(wide)].reshape(wide)
            self._stack(part, (*outer, 1), rows)
            part = rows
        if last > 1:
            out = self._own[: prod(shape)].reshape(shape)
            self._stack(part, (*[1] * len(outer), last), out)
            part = out
        return part

    def _stack(self, part: Numbers, factors: Sequence[int], out: Numbers) -> None:
        views = _views(part, factors)
        _, one = next(views)
        two = next(views, None)
        if two is None or two[1].shape != out.shape:
            np.copyto(out, one)
        else:
            self.op(one, two[1], out=out)
        if two is not None and two[1].shape != out.shape:
            self.op(out[two[0]], two[1], out=out[two[0]])
        for where, view in views:
            self.op(out[where], view, out=out[where])

    def _numbers(self, part: Numbers, factors: Sequence[int]) -> Iterator[tuple[Slices, Numbers]]:
        """Yield the elements of windows one after the other, as numbers that can be added."""
        if self._is_paired(part, factors):
            half = self.dtype.itemsize * 8
            for where, pairs in _views(part.view(self.held), (*factors[:-1], factors[-1] // 2)):
                spare = self._spare[: pairs.size].reshape(pairs.shape)
                np.left_shift(pairs, half, out=spare)
                np.right_shift(spare, half, out=spare)
                yield where, spare
                yield where, np.right_shift(pairs, half, out=spare)
            return
        for where, view in _views(part, factors):
            yield where, self._lifted(view) if self.name == "bfloat16" else view

    def _is_paired(self, part: Numbers, factors: Sequence[int]) -> bool:
        """Return whether two neighbours can be read as one number of twice the width: faster."""
        wide, size = self.held.itemsize, self.dtype.itemsize
        return (
            self.dtype.kind in "iu"
            and self.name != "bfloat16"
            and wide == 2 * size
            and part.dtype.isnative
            and factors[-1] % 2 == 0
            and part.shape[-1] % 2 == 0
            and part.strides[-1] == size
            and not any(n % wide for n in (part.ctypes.data, *part.strides[:-1]))
        )

    def _begin(self, into: Sequence[Numbers], numbers: Numbers) -> None:
        if self.planes == 2:
            np.bitwise_and(numbers, LOW, out=into[0])
            np.right_shift(numbers, 32, out=into[1])
        else:
            np.copyto(into[0], numbers)

    def _join(self, into: Sequence[Numbers], numbers: Numbers) -> None:
        if self.planes == 2:
            spare = self._spare[: numbers.size].reshape(numbers.shape)
            np.bitwise_and(numbers, LOW, out=spare)
            np.add(into[0], spare, out=into[0])
            np.right_shift(numbers, 32, out=spare)
            np.add(into[1], spare, out=into[1])
        else:
            self.op(into[0], numbers, out=into[0])

    def _lifted(self, view: Numbers) -> Numbers:
        """Return bfloat16 as float32, of which it is the upper half."""
        single = self._spare.view(np.float32)[: view.size].reshape(view.shape)
        _widen(view, single)
        return single

    # -- results

    def _finish(self, sums: Sequence[Numbers], count: int, out: Numbers) -> None:
        """Write one element for each window of `count` elements; `sums` are overwritten."""
        if self.method == "first":
            np.copyto(out, sums[0])
        elif self.name == "bfloat16":
            self._finish_bfloat16(sums[0], count, out)
        elif self.method != "mean":
            np.copyto(out, sums[0])
        elif self.dtype.kind in "fc":
            parts = sums[0].view(np.float64)  # a complex number is divided part by part
            np.divide(parts, count, out=parts)
            np.copyto(out, sums[0], casting="same_kind")
        elif len(sums) == 2:
            self._finish_halves(sums[0], sums[1], count, out)
        else:
            _divide(sums[0], count, out)

    def _finish_halves(self, low: Numbers, high: Numbers, count: int, out: Numbers) -> None:
        """Write (high * 2^32 + low + count // 2) // count; no step exceeds 64 bits."""
        whole = self._spare[: low.size].reshape(low.shape)
        np.floor_divide(high, count, out=whole)
        np.remainder(high, count, out=high)
        np.left_shift(high, 32, out=high)
        np.add(high, low, out=high)
        np.left_shift(whole, 32, out=whole)
        _divide(high, count, high)
        np.add(whole, high, out=out)

    def _finish_bfloat16(self, sums: Numbers, count: int, out: Numbers) -> None:
        """Round to the nearest once, to even: by way of float32 it would be twice."""
        if self.method == "mean":
            np.divide(sums, count, out=sums)
            spare = self._spare[: sums.size].reshape(sums.shape)
            self._round_tiny(sums, spare)
            _round_to_8_bits(sums.view(np.uint64), spare.view(np.uint64))
        single = self._spare.view(np.float32)[: sums.size].reshape(sums.shape)
        np.copyto(single, sums, casting="same_kind")
        _narrow(single, out)

    def _round_tiny(self, sums: Numbers, spare: Numbers) -> None:
        is_small = self._small[: sums.size].reshape(sums.shape)
        np.less(np.absolute(sums, out=spare), _TINY, out=is_small)
        if is_small.any():
            np.copyto(spare, sums)
            np.add(spare, _STEPS, out=spare, where=is_small)
            np.subtract(spare, _STEPS, out=spare, where=is_small)
            np.copysign(spare, sums, out=sums)


def _divide(sums: Numbers, count: int, out: Numbers) -> None:
    """Write the quotient, rounded half up; `sums` are overwritten."""
    if count > 1:
        np.add(sums, count // 2, out=sums)
    is_power = not count & (count - 1)
    op, by = (np.right_shift, count.bit_length() - 1) if is_power else (np.floor_divide, count)
    if sums.dtype == out.dtype:
        op(sums, by, out=out)
    else:
        np.copyto(out, op(sums, by, out=sums), casting="unsafe")


def _widen(bfloat16: Numbers, single: Numbers) -> None:
    """Write bfloat16 as float32, of which it is the upper half."""
    bits = single.view(np.uint32)
    np.copyto(bits, bfloat16)
    np.left_shift(bits, 16, out=bits)


def _narrow(single: Numbers, bfloat16: Numbers) -> None:
    """Write the upper halves of float32 numbers, which are overwritten."""
    bits = single.view(np.uint32)
    np.right_shift(bits, 16, out=bits)
    np.copyto(bfloat16, bits, casting="unsafe")


def _round_to_8_bits(bits: Numbers, spare: Numbers) -> None:
    """Round the bits of float64 numbers to 8 binary places, half to even."""
    np.right_shift(bits, 45, out=spare)
    np.bitwise_and(spare, 1, out=spare)
    np.add(spare, (1 << 44) - 1, out=spare)
    np.add(bits, spare, out=bits)
    np.bitwise_and(bits, ~((1 << 45) - 1) & ((1 << 64) - 1), out=bits)


def _views(part: Numbers, factors: Sequence[int]) -> Iterator[tuple[Slices, Numbers]]:
    """Yield the first elements of all windows, then the second ones, …: the windows, the elements.

    The elements of a window come in arrival order.
    """
    for offset in product(*map(range, factors)):
        view = part[tuple(slice(o, None, f) for o, f in zip(offset, factors))]
        if view.size:
            yield tuple(slice(0, n) for n in view.shape), view


MAX_COMPARED = 32
"""Elements of windows that go through a sorting network; larger windows are partitioned."""


class WindowMedian:
    """Reduces every window to one element; it holds its workspace, and nothing else.

    >>> WindowMedian("uint8", (2, 2)).reduce(np.uint8([[1, 2, 9], [3, 50, 7]]), (2, 2))
    array([[3, 8]], dtype=uint8)
    """

    def __init__(self, name: str, factors: Sequence[int]) -> None:
        self.name, count = name, prod(factors)
        self.dtype = np.dtype("uint8") if name == "bool" else as_dtype(name)[1]
        self.max_windows = max(1 << 8, PIECE // 4 // count)
        """Windows that are reduced at a time."""
        kind = np.dtype("float32") if name == "bfloat16" else self.dtype
        self._room = np.empty((count + 1) * self.max_windows, kind)
        is_float = kind.kind == "f"
        self._mean = WindowFold("mean", name, (2,), self.max_windows) if is_float else None
        self._sums = np.empty(self.max_windows if is_float else 0, np.float64)
        self._is_nan = np.empty(self.max_windows if is_float else 0, bool)

    @property
    def nbytes(self) -> int:
        """The bytes of its workspace."""
        held = [self._room, self._sums, self._is_nan]
        return sum(array.nbytes for array in held) + (self._mean.nbytes if self._mean else 0)

    def reduce(self, block: Numbers, factors: Sequence[int]) -> Numbers:
        """Return the windows of a block that has all of their elements."""
        out = np.empty(reduced(block.shape, factors), self.dtype)
        self.finish(block, factors, window_classes(block.shape, factors), out)
        return out

    def finish(
        self, block: Numbers, factors: Sequence[int], classes: Iterable[WindowClass], out: Numbers
    ) -> None:
        """Write one element for each window, some of which may have fewer elements than others."""
        for each in classes:
            offsets = list(each.offsets)
            for piece in pieces(each.windows.shape, self.max_windows):
                at = piece.translate(each.windows.start)
                rows = self._gather(block, factors, at, offsets)
                self._reduce_rows(rows, out[at.slices()])

    def _gather(
        self, block: Numbers, factors: Sequence[int], windows: ZRange, offsets: list[Point]
    ) -> Numbers:
        """Return a row for each place of a window, with the elements of all windows, and a spare.

        A row has the shape of the box of windows.
        """
        count, shape = len(offsets), windows.shape
        rows = self._room[: (count + 1) * windows.size].reshape(count + 1, *shape)
        for row, offset in zip(rows, offsets):
            sides = zip(windows.start, shape, offset, factors)
            places = [slice(w * f + o, (w + n - 1) * f + o + 1, f) for w, n, o, f in sides]
            (_widen if self.name == "bfloat16" else _copy)(block[tuple(places)], row)
        return rows

    def _reduce_rows(self, rows: Numbers, out: Numbers) -> None:
        """Write the medians of windows; `rows` are overwritten."""
        count = len(rows) - 1
        low, high = (count - 1) // 2, count // 2
        if count <= MAX_COMPARED:
            ordered = _compared(rows, network(count))
        else:
            ordered = self._partitioned(rows, low, high)
        if count % 2:
            (_narrow if self.name == "bfloat16" else _copy)(ordered[low], out)
        else:
            self._put_mean(ordered[low], ordered[high], ordered[count], out)

    def _partitioned(self, rows: Numbers, low: int, high: int) -> list[Numbers]:
        """Return rows of which two are in their place."""
        last = len(rows) - 2
        rows[:-1].partition([low, high, last], axis=0)
        if rows.dtype.kind == "f":  # NaN is sorted to the end, and must reach the middle
            is_nan = self._is_nan[: rows[0].size].reshape(rows[0].shape)
            np.isnan(rows[last], out=is_nan)
            np.copyto(rows[low], rows[last], where=is_nan)
        return list(rows)

    def _put_mean(self, low: Numbers, high: Numbers, spare: Numbers, out: Numbers) -> None:
        """Write the mean of two: half up for integers, and in float64 for floats."""
        if self._mean is None:  # (low + high + 1) // 2, whose sum may need one bit more
            np.bitwise_xor(low, high, out=spare)
            np.right_shift(spare, 1, out=spare)
            np.bitwise_or(low, high, out=low)
            np.subtract(low, spare, out=out)
            return
        sums = self._sums[: low.size].reshape(low.shape)
        np.copyto(sums, low)
        np.add(sums, high, out=sums)
        self._mean.finish([sums], [WindowClass(ZRange.of(low.shape), 2, ())], out)


class WindowMode(WindowMedian):
    """Reduces every window of integers to the most frequent one, of several to the least.

    >>> WindowMode("uint8", (2, 2)).reduce(np.uint8([[7, 7, 4], [1, 2, 3]]), (2, 2))
    array([[7, 3]], dtype=uint8)
    """

    def __init__(self, name: str, factors: Sequence[int]) -> None:
        super().__init__(name, factors)
        self._runs = np.empty((2, self.max_windows), np.int32)
        self._is_more = np.empty(self.max_windows, bool)

    @property
    def nbytes(self) -> int:
        """The bytes of its workspace."""
        return super().nbytes + self._runs.nbytes + self._is_more.nbytes

    def _reduce_rows(self, rows: Numbers, out: Numbers) -> None:
        """Write the most frequent elements: the longest runs once they are sorted."""
        count, shape = len(rows) - 1, out.shape
        if count <= MAX_COMPARED:
            *ordered, found = _compared(rows, _merge_sort(count))
        else:
            rows[:-1].sort(axis=0)
            *ordered, found = rows
        run, longest = (each[: out.size].reshape(shape) for each in self._runs)
        is_more = self._is_more[: out.size].reshape(shape)
        np.copyto(found, ordered[0])
        run.fill(1)
        longest.fill(1)
        for one, before in zip(ordered[1:], ordered):
            np.equal(one, before, out=is_more)
            np.multiply(run, is_more, out=run)
            np.add(run, 1, out=run)
            np.greater(run, longest, out=is_more)
            np.copyto(longest, run, where=is_more)
            np.copyto(found, one, where=is_more)
        np.copyto(out, found)


def _copy(source: Numbers, target: Numbers) -> None:
    np.copyto(target, source)


def _compared(rows: Numbers, comparisons: Iterable[tuple[int, int]]) -> list[Numbers]:
    """Return rows after comparisons, each with the smaller one first; the last row is a spare."""
    place, spare = list(range(len(rows))), len(rows) - 1
    for a, b in comparisons:
        np.minimum(rows[place[a]], rows[place[b]], out=rows[place[spare]])
        np.maximum(rows[place[a]], rows[place[b]], out=rows[place[b]])
        place[a], place[spare] = place[spare], place[a]
    return [rows[number] for number in place]


@cache
def network(count: int) -> tuple[tuple[int, int], ...]:
    """Return the comparisons that move the middle of `count` elements to its place.

    Batcher's odd-even merge sort, less those that the middle does not depend on.

    >>> len(network(4)), len(network(8)), len(network(9))
    (5, 17, 24)
    """
    wanted = {(count - 1) // 2, count // 2}
    kept = []
    for a, b in reversed(list(_merge_sort(count))):
        if a in wanted or b in wanted:
            wanted |= {a, b}
            kept.append((a, b))
    return tuple(reversed(kept))


def _merge_sort(count: int) -> Iterator[tuple[int, int]]:
    p = 1
    while p < count:
        k = p
        while k:
            for j in range(k % p, count - k, 2 * k):
                for i in range(min(k, count - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        yield i + j, i + j + k
            k //= 2
        p *= 2
