"""Which chunks a box meets, shard by shard, and which bytes of each are wanted where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from types import EllipsisType
from typing import NamedTuple, TypeAlias

from weft.space import ZRange
from weft.values import Point

Place: TypeAlias = tuple[slice | EllipsisType, ...]
"""An index that makes a view of an array of any rank, 0 too."""


class Part(NamedTuple):
    """The part of a chunk that lies in a box."""

    slot: int
    """Of the chunk in its shard."""
    first: int
    """The byte of the chunk at which the part begins."""
    reach: int
    """The bytes from there to the end of its last element."""
    shape: Point
    into: Place
    """The same elements in an array that holds the box."""


class Grid:
    """The chunks of an array in their shards, and the bytes of a chunk in its own order."""

    def __init__(self, chunks: Point, shards: Point, order: Point, itemsize: int) -> None:
        self.chunks, self.shards, self.itemsize = chunks, shards, itemsize
        self.per_shard = tuple(s // c for s, c in zip(shards, chunks))
        self.weights = _strides(self.per_shard, tuple(range(len(chunks))), 1)
        self.strides = _strides(chunks, order or tuple(range(len(chunks))), itemsize)
        """The bytes from an element of a stored chunk to the next, along each dimension."""

    @property
    def slots(self) -> int:
        """The chunks of a shard."""
        return prod(self.per_shard)

    @property
    def size(self) -> int:
        """The bytes of a chunk."""
        return prod(self.chunks) * self.itemsize

    def shards_of(self, box: ZRange) -> Iterator[Point]:
        """The shards that a box meets, by their coordinates.

        >>> grid = Grid((2, 2), (4, 8), (), 1)
        >>> list(grid.shards_of(ZRange((3, 0), (6, 8))))
        [(0, 0), (1, 0)]
        >>> [part.slot for part in grid.parts_of(ZRange((3, 0), (6, 4)), (0, 0))]
        [4, 5]
        """
        if not box.is_empty:
            sides = zip(box.start, box.stop, self.shards)
            yield from points([range(low // s, (high - 1) // s + 1) for low, high, s in sides])

    def parts_of(self, box: ZRange, shard: Point) -> list[Part]:
        """The parts of a box that lie in one shard, in the order of their slots."""
        sides = map(self._along, range(len(shard)), shard, box.start, box.stop)
        parts = []
        for places in product(*sides):
            slots, firsts, reaches, shape, into = zip(*places) if places else ((),) * 5
            reach = sum(reaches) + self.itemsize
            parts.append(Part(sum(slots), sum(firsts), reach, shape, (*into, ...)))
        return parts

    def _along(
        self, dim: int, shard: int, low: int, high: int
    ) -> list[tuple[int, int, int, int, slice]]:
        """The same along one dimension."""
        chunk, weight, stride = self.chunks[dim], self.weights[dim], self.strides[dim]
        start = shard * self.shards[dim]
        first, end = max(low, start), min(high, start + self.shards[dim])
        found = []
        for place in range((first - start) // chunk, (end - 1 - start) // chunk + 1):
            corner = start + place * chunk
            a, b = max(first, corner), min(end, corner + chunk)
            reach = (b - a - 1) * stride
            found.append(
                (place * weight, (a - corner) * stride, reach, b - a, slice(a - low, b - low))
            )
        return found

    def box(self, shard: Point, slot: int | None = None) -> ZRange:
        """The box of a shard, or of a chunk in it, beyond the array's edge too."""
        start = [s * n for s, n in zip(shard, self.shards)]
        if slot is None:
            return ZRange.of(self.shards, start)
        for dim, weight in enumerate(self.weights):
            place, slot = divmod(slot, weight)
            start[dim] += place * self.chunks[dim]
        return ZRange.of(self.chunks, start)


def points(sides: Sequence[range]) -> Iterator[Point]:
    """Yield the points of a box in row-major order; unlike `product`, no range is listed first.

    >>> list(points([range(2), range(5, 7)])), next(points([range(2**60)]))
    ([(0, 5), (0, 6), (1, 5), (1, 6)], (0,))
    """
    if not sides:
        yield ()
        return
    first, *rest = sides
    for place in first:
        for behind in points(rest):
            yield (place, *behind)


def _strides(sizes: Point, order: Point, unit: int) -> Point:
    """How far apart neighbours are along each dimension, if they are stored in some order."""
    found = [0] * len(sizes)
    for dim in reversed(order):
        found[dim] = unit
        unit *= sizes[dim]
    return tuple(found)
