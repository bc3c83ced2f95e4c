"""`Median`: the middle element of windows, or the mean of the two middle ones.

The elements of small windows are brought side by side and compared by a network: the same few
minima and maxima for all windows at once, and of those only the ones that the middle depends on.
NaN goes through both sides of a comparison, and so reaches the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from weft.store.dtypes import as_dtype
from weft.store.pyramid.fold import PIECE, Fold
from weft.store.pyramid.windows import Region, inside, pieces, reduced, regions
from weft.values import Point

Numbers: TypeAlias = np.ndarray[Any, Any]

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
