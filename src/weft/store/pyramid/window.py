"""The windows of a reduction: blocks of elements that become one, counted and cut into pieces.

Dimension d is cut into windows of `factors[d]`; the last one may be shorter. Everything here is
integers: which windows have how many elements, and which pieces of them are small enough to work
on.

`Fold`: the mean, minimum, maximum or first element of windows, exactly, in bounded memory.

Integers are added in a type that holds any sum, or in their own where those that came are small
enough; 64-bit ones in two halves. Floats are added in float64, one after the other as they come, so
that it does not matter into which blocks a stream was cut.

`Median`: the middle element of windows, or the mean of the two middle ones.

The elements of small windows are brought side by side and compared by a network: the same few
minima and maxima for all windows at once, and of those only the ones that the middle depends on.
NaN goes through both sides of a comparison, and so reaches the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import inf, prod
from typing import Any, TypeAlias

import numpy as np

from weft.store.dtypes import as_dtype
from weft.values import Point

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A box of windows that all have the same elements, seen from each window's first place."""

    windows: Slices
    count: int
    offsets: Iterable[Point]


def reduced(sizes: Sequence[int], factors: Sequence[int]) -> Point:
    """How many windows there are along every dimension.

    >>> reduced((5, 8), (2, 4))
    (3, 2)
    """
    return tuple(-(-n // f) for n, f in zip(sizes, factors))


def regions(sizes: Sequence[int], factors: Sequence[int]) -> Iterator[Region]:
    """The windows by how many elements they have: full ones, and short ones at the ends.

    >>> [(region.windows, region.count) for region in regions((5,), (2,))]
    [((slice(0, 2, None),), 2), ((slice(2, 3, None),), 1)]
    """
    for picked in product(*map(_extents, sizes, factors)):
        windows, extents = zip(*picked) if picked else ((), ())
        yield Region(windows, prod(extents), product(*map(range, extents)))


def _extents(size: int, factor: int) -> list[tuple[slice, int]]:
    whole, rest = divmod(size, factor)
    found = [(slice(0, whole), factor)] if whole else []
    return [*found, (slice(whole, whole + 1), rest)] if rest else found


def regions_before(
    stop: Sequence[int], sizes: Sequence[int], factors: Sequence[int]
) -> Iterator[Region]:
    """The windows that have elements before `stop` in row-major order, by which ones they have.

    >>> found = regions_before((1, 1), (2, 2), (2, 1))
    >>> [(region.windows, list(region.offsets)) for region in found]
    [((slice(0, 1, None), slice(0, 1, None)), [(0, 0), (1, 0)]),
    ((slice(0, 1, None), slice(1, 2, None)), [(0, 0)])]
    """
    for box in _boxes_before(stop, reduced(sizes, factors), factors):
        for windows in product(*map(_edges, box, sizes, factors)):
            if any(span.start >= span.stop for span in windows):
                continue
            first = [span.start * f for span, f in zip(windows, factors)]
            offsets = [
                offset
                for offset in product(*map(range, factors))
                if _is_before([a + o for a, o in zip(first, offset)], sizes, stop)
            ]
            if offsets:
                yield Region(windows, len(offsets), offsets)


def _is_before(at: Sequence[int], sizes: Sequence[int], stop: Sequence[int]) -> bool:
    return all(a < n for a, n in zip(at, sizes)) and list(at) < list(stop)


def _boxes_before(stop: Sequence[int], counts: Point, factors: Sequence[int]) -> Iterator[Slices]:
    """Boxes of windows on either side of the one in which `stop` lies, dimension by dimension."""
    head: Slices = ()
    for dim, (at, f) in enumerate(zip(stop, factors)):
        rest = tuple(slice(0, n) for n in counts[dim + 1 :])
        here = at // f
        yield (*head, slice(0, min(here, counts[dim])), *rest)
        yield (*head, slice(here + 1, counts[dim]), *rest)
        head = (*head, slice(here, min(here + 1, counts[dim])))
    yield head


def _edges(span: slice, size: int, factor: int) -> list[slice]:
    """A span of windows in full ones and a short last one."""
    whole = size // factor
    return [
        slice(span.start, min(span.stop, whole)),
        slice(max(span.start, whole), span.stop),
    ]


def pieces(shape: Sequence[int], most: int) -> Iterator[Slices]:
    """Boxes that cover an array, in row-major order, each with at most so many elements.

    >>> list(pieces((2, 5), 4))[:2]
    [(slice(0, 1, None), slice(0, 4, None)), (slice(0, 1, None), slice(4, 5, None))]
    """
    if not prod(shape):
        return
    dim, inner = len(shape), 1
    while dim and inner * shape[dim - 1] <= most:
        dim -= 1
        inner *= shape[dim]
    if not dim:
        yield tuple(slice(0, n) for n in shape)
        return
    step = most // inner
    tail = tuple(slice(0, n) for n in shape[dim:])
    for head in product(*map(range, shape[: dim - 1])):
        for start in range(0, shape[dim - 1], step):
            cut = slice(start, min(start + step, shape[dim - 1]))
            yield (*(slice(i, i + 1) for i in head), cut, *tail)


def elements(windows: Slices, factors: Sequence[int]) -> Slices:
    """The elements of a box of windows; beyond the end of an array there are none."""
    return tuple(slice(span.start * f, span.stop * f) for span, f in zip(windows, factors))


def inside(windows: Slices, piece: Slices) -> Slices:
    """A piece of a box of windows, seen from the array."""
    return tuple(slice(a.start + b.start, a.start + b.stop) for a, b in zip(windows, piece))


Numbers: TypeAlias = np.ndarray[Any, Any]

PIECE = 1 << 18
"""Elements that are worked on at a time, so that they stay in a core's cache."""

LOW = 0xFFFFFFFF
"""The lower half of a 64-bit integer."""

_TINY = 2.0**-126
"""Below it, bfloat16 has steps of 2^-133."""

_STEPS = 1.5 * 2.0 ** (52 - 133)
"""Added and taken off again, it rounds a small float64 to steps of 2^-133."""


class Fold:
    """Makes one element of every window; it holds what it works with, and nothing else.

    >>> Fold("mean", "uint8", (2, 2)).reduce(np.uint8([[1, 2, 9], [3, 5, 7]]), (2, 2))
    array([[3, 8]], dtype=uint8)
    """

    def __init__(self, method: str, name: str, factors: Sequence[int], most: int = 0) -> None:
        self.method, self.name = method, name
        self.dtype = np.dtype("uint8") if name == "bool" else as_dtype(name)[1]
        self.op = {"min": np.minimum, "max": np.maximum}.get(method, np.add)
        count = prod(factors)
        self.held = self._held(count)
        self.planes = 2 if method == "mean" and self.dtype.kind in "iu" and self.is_64 else 1
        self.most = most or max(1 << 10, PIECE // count)
        """Windows that are worked on at a time."""
        self._sums = [np.empty(self.most, self.held) for _ in range(self.planes)]
        self._spare = np.empty(self.most, self.held)
        self._own = np.empty(self.most, self.dtype)
        self._rows = np.empty(self.most * factors[-1], self.dtype)
        self._small = np.empty(self.most, bool)

    @property
    def is_64(self) -> bool:
        """Whether integers have 64 bits, of which sums are kept in halves."""
        return self.dtype.itemsize == 8

    def _held(self, count: int) -> np.dtype[Any]:
        """The type of what is kept of a window while it is not full."""
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
        """The bytes it works with."""
        held = [*self._sums, self._spare, self._own, self._rows, self._small]
        return sum(array.nbytes for array in held)

    def accumulators(self, shape: Sequence[int]) -> list[Numbers]:
        """Room for what is known of windows that are not full yet."""
        return [np.empty(shape, self.held) for _ in range(self.planes)]

    def clear(self, into: Sequence[Numbers]) -> None:
        """Forget what was known: nothing has come yet."""
        for array in into:
            array.fill(self._nothing())

    def _nothing(self) -> Any:
        """What changes nothing: -0.0 of a sum of floats, since 0.0 would make 0.0 of -0.0."""
        if self.method in ("mean", "first"):
            return -0.0 if self.held.kind == "f" else 0
        if self.held.kind == "f":
            return inf if self.method == "min" else -inf
        limits = np.iinfo(self.held)
        return limits.max if self.method == "min" else limits.min

    # -- windows into one element each

    def reduce(self, block: Numbers, factors: Sequence[int]) -> Numbers:
        """The windows of a block that has all of their elements."""
        made = np.empty(reduced(block.shape, factors), self.dtype)
        for windows in pieces(made.shape, self.most):
            part = block[elements(windows, factors)]
            found = self._folded(part, factors)
            for region in regions(part.shape, factors):
                views = [array[region.windows] for array in found]
                self._end(views, region.count, made[windows][region.windows])
        return made

    def add(
        self, block: Numbers, factors: Sequence[int], into: Sequence[Numbers], is_first: bool
    ) -> None:
        """Fold some elements of windows into what is known of them.

        `is_first` says that the first element of every window is among them.
        """
        if self.method == "first":
            if is_first:
                np.copyto(into[0], block[tuple(slice(0, None, f) for f in factors)])
            return
        for windows in pieces(into[0].shape, self.most):
            part = block[elements(windows, factors)]
            target = [array[windows] for array in into]
            if self._is_exact(part, prod(factors)):
                self._join(target, self._in_own_type(part, factors))
            else:
                for where, numbers in self._numbers(part, factors):
                    self._join([array[where] for array in target], numbers)

    def end(self, into: Sequence[Numbers], found: Iterator[Region], made: Numbers) -> None:
        """Make elements of what is known of windows."""
        for region in found:
            shape = [span.stop - span.start for span in region.windows]
            for piece in pieces(shape, self.most):
                at = inside(region.windows, piece)
                self._end([array[at] for array in into], region.count, made[at])

    # -- how they are folded

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
        """Whether nothing is lost if windows are folded in their own type."""
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
        """Rows onto rows first, which lie one behind the other, and then within each row."""
        *outer, last = factors
        shape = reduced(part.shape, factors)
        if prod(outer) > 1:
            wide = (*shape[:-1], part.shape[-1])
            rows = self._rows[: prod(wide)].reshape(wide)
            self._stack(part, (*outer, 1), rows)
            part = rows
        if last > 1:
            made = self._own[: prod(shape)].reshape(shape)
            self._stack(part, (*[1] * len(outer), last), made)
            part = made
        return part

    def _stack(self, part: Numbers, factors: Sequence[int], made: Numbers) -> None:
        views = _views(part, factors)
        _, one = next(views)
        two = next(views, None)
        if two is None or two[1].shape != made.shape:
            np.copyto(made, one)
        else:
            self.op(one, two[1], out=made)
        if two is not None and two[1].shape != made.shape:
            self.op(made[two[0]], two[1], out=made[two[0]])
        for where, view in views:
            self.op(made[where], view, out=made[where])

    def _numbers(self, part: Numbers, factors: Sequence[int]) -> Iterator[tuple[Slices, Numbers]]:
        """Elements of windows one after the other, as something that can be added."""
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
        """Whether two neighbours can be read as one number of twice the width, which is faster."""
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
        """Numbers that NumPy can compute with: bfloat16 is the upper half of a float32."""
        bits = self._spare.view(np.uint32)[: view.size].reshape(view.shape)
        np.copyto(bits, view)
        np.left_shift(bits, 16, out=bits)
        return bits.view(np.float32)

    # -- what comes out

    def _end(self, sums: Sequence[Numbers], count: int, made: Numbers) -> None:
        """An element of each window, of which so many came; `sums` are used up."""
        if self.method == "first":
            np.copyto(made, sums[0])
        elif self.name == "bfloat16":
            self._end_bfloat16(sums[0], count, made)
        elif self.method != "mean":
            np.copyto(made, sums[0])
        elif self.dtype.kind in "fc":
            parts = sums[0].view(np.float64)  # a complex number is divided part by part
            np.divide(parts, count, out=parts)
            np.copyto(made, sums[0], casting="same_kind")
        elif len(sums) == 2:
            self._end_halves(sums[0], sums[1], count, made)
        else:
            _divide(sums[0], count, made)

    def _end_halves(self, low: Numbers, high: Numbers, count: int, made: Numbers) -> None:
        """(high * 2^32 + low + count // 2) // count; no step of it leaves 64 bits."""
        whole = self._spare[: low.size].reshape(low.shape)
        np.floor_divide(high, count, out=whole)
        np.remainder(high, count, out=high)
        np.left_shift(high, 32, out=high)
        np.add(high, low, out=high)
        np.left_shift(whole, 32, out=whole)
        _divide(high, count, high)
        np.add(whole, high, out=made)

    def _end_bfloat16(self, sums: Numbers, count: int, made: Numbers) -> None:
        """Rounded to the nearest once, to even: by float32 it would be twice."""
        if self.method == "mean":
            np.divide(sums, count, out=sums)
            spare = self._spare[: sums.size].reshape(sums.shape)
            self._round_tiny(sums, spare)
            _round_to_8_bits(sums.view(np.uint64), spare.view(np.uint64))
        single = self._spare.view(np.float32)[: sums.size].reshape(sums.shape)
        np.copyto(single, sums, casting="same_kind")
        bits = single.view(np.uint32)
        np.right_shift(bits, 16, out=bits)
        np.copyto(made, bits, casting="unsafe")

    def _round_tiny(self, sums: Numbers, spare: Numbers) -> None:
        is_small = self._small[: sums.size].reshape(sums.shape)
        np.less(np.absolute(sums, out=spare), _TINY, out=is_small)
        if is_small.any():
            np.copyto(spare, sums)
            np.add(spare, _STEPS, out=spare, where=is_small)
            np.subtract(spare, _STEPS, out=spare, where=is_small)
            np.copysign(spare, sums, out=sums)


def _divide(sums: Numbers, count: int, made: Numbers) -> None:
    """The quotient, rounded half up; `sums` are used up."""
    if count > 1:
        np.add(sums, count // 2, out=sums)
    is_power = not count & (count - 1)
    op, by = (np.right_shift, count.bit_length() - 1) if is_power else (np.floor_divide, count)
    if sums.dtype == made.dtype:
        op(sums, by, out=made)
    else:
        np.copyto(made, op(sums, by, out=sums), casting="unsafe")


def _round_to_8_bits(bits: Numbers, spare: Numbers) -> None:
    """The bits of float64 numbers, rounded to 8 binary places of them, half to even."""
    np.right_shift(bits, 45, out=spare)
    np.bitwise_and(spare, 1, out=spare)
    np.add(spare, (1 << 44) - 1, out=spare)
    np.add(bits, spare, out=bits)
    np.bitwise_and(bits, ~((1 << 45) - 1) & ((1 << 64) - 1), out=bits)


def _views(part: Numbers, factors: Sequence[int]) -> Iterator[tuple[Slices, Numbers]]:
    """The first elements of all windows, then the second ones, …: which windows, and the elements.

    A window's own elements come in the order in which they arrive.
    """
    for offset in product(*map(range, factors)):
        view = part[tuple(slice(o, None, f) for o, f in zip(offset, factors))]
        if view.size:
            yield tuple(slice(0, n) for n in view.shape), view


MOST_COMPARED = 32
"""Elements of windows that go through a network; larger windows are partitioned one by one."""


class Median:
    """Makes one element of every window; it holds what it works with, and nothing else.

    >>> Median("uint8", (2, 2)).reduce(np.uint8([[1, 2, 9], [3, 50, 7]]), (2, 2))
    array([[3, 8]], dtype=uint8)
    """

    def __init__(self, name: str, factors: Sequence[int]) -> None:
        self.name, count = name, prod(factors)
        self.dtype = np.dtype("uint8") if name == "bool" else as_dtype(name)[1]
        self.most = max(1 << 8, PIECE // 4 // count)
        """Windows that are worked on at a time."""
        kind = np.dtype("float32") if name == "bfloat16" else self.dtype
        self._room = np.empty((count + 1) * self.most, kind)
        is_float = kind.kind == "f"
        self._mean = Fold("mean", name, (2,), self.most) if is_float else None
        self._sums = np.empty(self.most if is_float else 0, np.float64)
        self._is_nan = np.empty(self.most if is_float else 0, bool)

    @property
    def nbytes(self) -> int:
        """The bytes it works with."""
        held = [self._room, self._sums, self._is_nan]
        return sum(array.nbytes for array in held) + (self._mean.nbytes if self._mean else 0)

    def reduce(self, block: Numbers, factors: Sequence[int]) -> Numbers:
        """The windows of a block that has all of their elements."""
        made = np.empty(reduced(block.shape, factors), self.dtype)
        self.end(block, factors, regions(block.shape, factors), made)
        return made

    def end(
        self, block: Numbers, factors: Sequence[int], found: Iterator[Region], made: Numbers
    ) -> None:
        """Make elements of windows, some of which may have fewer elements than others."""
        for region in found:
            shape = [span.stop - span.start for span in region.windows]
            offsets = list(region.offsets)
            for piece in pieces(shape, self.most):
                at = inside(region.windows, piece)
                views = self._views(block, factors, [s.start for s in at], offsets)
                self._middle(views, [s.stop - s.start for s in at], region.count, made[at])

    def _views(
        self, block: Numbers, factors: Sequence[int], first: Point | list[int], offsets: list[Point]
    ) -> Iterator[Numbers]:
        """From each place of a window the elements of all windows."""
        for offset in offsets:
            steps = zip(first, offset, factors)
            yield block[tuple(slice(w * f + o, None, f) for w, o, f in steps)]

    def _middle(
        self, views: Iterable[Numbers], shape: Sequence[int], count: int, made: Numbers
    ) -> None:
        whole, size = tuple(slice(0, n) for n in shape), prod(shape)
        rows = self._room[: (count + 1) * size].reshape(count + 1, size)
        for row, view in zip(rows, views):
            self._copy(row.reshape(shape), view[whole])
        if count <= MOST_COMPARED:
            low, high, spare = self._compared(rows, count)
        else:
            low, high, spare = self._partitioned(rows, count)
        if count % 2:
            self._put(low.reshape(shape), made)
        else:
            self._put_mean(low.reshape(shape), high.reshape(shape), spare.reshape(shape), made)

    def _copy(self, row: Numbers, view: Numbers) -> None:
        if self.name == "bfloat16":
            bits = row.view(np.uint32)
            np.copyto(bits, view)
            np.left_shift(bits, 16, out=bits)
        else:
            np.copyto(row, view)

    def _compared(self, rows: Numbers, count: int) -> tuple[Numbers, Numbers, Numbers]:
        """The two in the middle, and a row that nobody needs."""
        place, spare = list(range(count)), count
        for a, b in network(count):
            np.minimum(rows[place[a]], rows[place[b]], out=rows[spare])
            np.maximum(rows[place[a]], rows[place[b]], out=rows[place[b]])
            place[a], spare = spare, place[a]
        return rows[place[(count - 1) // 2]], rows[place[count // 2]], rows[spare]

    def _partitioned(self, rows: Numbers, count: int) -> tuple[Numbers, Numbers, Numbers]:
        low, high, last = (count - 1) // 2, count // 2, count - 1
        rows[:count].partition([low, high, last], axis=0)
        if rows.dtype.kind == "f":  # NaN is sorted to the end, and must be seen in the middle
            is_nan = np.isnan(rows[last], out=self._is_nan[: rows.shape[1]])
            np.copyto(rows[low], rows[last], where=is_nan)
        return rows[low], rows[high], rows[count]

    def _put(self, value: Numbers, made: Numbers) -> None:
        if self.name == "bfloat16":
            bits = value.view(np.uint32)
            np.right_shift(bits, 16, out=bits)
            np.copyto(made, bits, casting="unsafe")
        else:
            np.copyto(made, value)

    def _put_mean(self, low: Numbers, high: Numbers, spare: Numbers, made: Numbers) -> None:
        """Half up for integers, and in float64 for floats."""
        if self._mean is None:  # (low + high + 1) // 2, whose sum may need one bit more
            np.bitwise_xor(low, high, out=spare)
            np.right_shift(spare, 1, out=spare)
            np.bitwise_or(low, high, out=low)
            np.subtract(low, spare, out=made)
            return
        sums = self._sums[: low.size].reshape(low.shape)
        np.copyto(sums, low)
        np.add(sums, high, out=sums)
        whole = tuple(slice(0, n) for n in low.shape)
        self._mean.end([sums], iter([Region(whole, 2, ())]), made)


@cache
def network(count: int) -> tuple[tuple[int, int], ...]:
    """The comparisons that bring the middle of `count` elements to its place.

    Batcher's odd-even merge sort, less those that the middle does not depend on.

    >>> len(network(4)), len(network(8)), len(network(9))
    (5, 17, 24)
    """
    wanted = {(count - 1) // 2, count // 2}
    found = []
    for a, b in reversed(list(_merge_sort(count))):
        if a in wanted or b in wanted:
            wanted |= {a, b}
            found.append((a, b))
    return tuple(reversed(found))


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
